package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

const (
	frame      = 200 * time.Millisecond // between two looks at the tables
	drainLimit = 60 * time.Second       // without any progress
	stopLimit  = 40 * time.Second       // more than the drain time-out of the pipeline
)

// conductor plays the piece: who starts, who crashes, and when.
type conductor struct {
	*system
	*view
	tables  *tables
	now     counts
	dropped int // duplicates that JetStream dropped, over all lives of the relay
}

// conduct runs the demo and says whether every promise was kept.
func conduct(ctx context.Context, s settings) (ok bool, err error) {
	v := newView(s.events)
	sys, err := bringUp(ctx, s, v.say)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, sys.down()) }()
	t, err := openTables(ctx, sys)
	if err != nil {
		return false, err
	}
	defer t.close(context.WithoutCancel(ctx))

	c := &conductor{system: sys, view: v, tables: t}
	if err := c.play(ctx); err != nil {
		return false, err
	}
	return c.finale(ctx)
}

// play is the piece up to the last event.
func (c *conductor) play(ctx context.Context) error {
	for _, con := range consumers {
		crash := 0
		if con.name == "email" {
			crash = c.events * 3 / 4
		}
		if err := c.startConsumer(con.name, con.verb, crash); err != nil {
			return err
		}
	}
	if err := errors.Join(c.startRelay(), c.startOrders()); err != nil {
		return err
	}
	c.say("Started: relay (pid %d), order service, shipping, e-mail", c.relay.cmd.Process.Pid)

	if err := c.until(ctx, func() bool { return c.now.delivered() >= c.events*2/5 }); err != nil {
		return err
	}
	c.scrape(ctx)
	c.killRelay("The order service goes on; its events wait in the outbox")
	enough := c.now.committed + c.events/10
	if err := c.until(ctx, func() bool { return c.now.committed >= min(enough, c.events) }); err != nil {
		return err
	}
	if err := c.worstMoment(ctx); err != nil {
		return err
	}
	if err := c.startRelay(); err != nil {
		return err
	}
	c.say("%s", c.paint(green, fmt.Sprintf("The relay is started again (pid %d), with %d events waiting", c.relay.cmd.Process.Pid, c.now.waiting)))

	done := func() bool { return !c.orders.running() && c.now.waiting == 0 && c.now.delivered() == c.now.committed }
	return c.until(ctx, done)
}

func (c *conductor) killRelay(then string) {
	pid := c.relay.cmd.Process.Pid
	c.relay.kill()
	c.relay = nil
	c.say("%s", c.paint(red, fmt.Sprintf("kill -9 %d: the relay is gone. %s", pid, then)))
}

// worstMoment starts the relay and kills it when the broker has its events and the outbox still has their rows, so that the
// next one has to publish them again. That moment lasts a few milliseconds: here it is as long as somebody else holds the
// locks of the rows.
func (c *conductor) worstMoment(ctx context.Context) error {
	hold, err := c.tables.lockOutbox(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = hold.Rollback(context.WithoutCancel(ctx)) }()
	if err := c.startRelay(); err != nil {
		return err
	}
	before := c.now.delivered()
	if err := c.until(ctx, func() bool { return c.now.delivered() > before }); err != nil {
		return err
	}
	c.killRelay("The broker has confirmed events whose rows it could not delete any more")
	return c.tables.endRelaySessions(ctx)
}

// until looks at the tables and shows them until the condition holds. It fails when somebody ended who should not have, or
// nothing moves any more.
func (c *conductor) until(ctx context.Context, reached func() bool) error {
	tick := time.NewTicker(frame)
	defer tick.Stop()
	moved := time.Now()
	for {
		if err := c.alive(); err != nil {
			return err
		}
		now, err := c.tables.count(ctx)
		if err != nil {
			return err
		}
		if now.committed != c.now.committed || now.waiting != c.now.waiting || now.delivered() != c.now.delivered() {
			moved = time.Now()
		}
		c.now = now
		relay, up := c.relayState()
		c.show(now, relay, up)
		if reached() {
			return nil
		}
		if time.Since(moved) > drainLimit {
			return fmt.Errorf("nothing moved for %s: %d committed, %d in the outbox, %d delivered", drainLimit, now.committed, now.waiting, now.delivered())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *conductor) relayState() (string, bool) {
	if c.relay == nil {
		return "killed", false
	}
	return fmt.Sprintf("running, pid %d", c.relay.cmd.Process.Pid), true
}

// alive fails when a process ended on its own, but for the order service that is done and the e-mail consumer's crash.
func (c *conductor) alive() error {
	if c.orders != nil && !c.orders.running() && c.orders.err != nil {
		return c.orders.ended()
	}
	for _, p := range []*process{c.nats, c.relay, c.consumers["shipping"]} {
		if p != nil && !p.running() {
			return p.ended()
		}
	}
	if email := c.consumers["email"]; !email.running() {
		if email.err == nil || email.err.Error() != "signal: killed" {
			return email.ended()
		}
		c.say("%s", c.paint(red, "The e-mail consumer crashed between its commit and its ack, and is started again"))
		return c.startConsumer("email", consumers[1].verb, 0)
	}
	return nil
}

// finale stops the relay as an operator would, and counts.
func (c *conductor) finale(ctx context.Context) (bool, error) {
	c.scrape(ctx)
	began := time.Now()
	if err := c.relay.stop(stopLimit); err != nil {
		return false, fmt.Errorf("stop the relay: %w", c.relay.ended())
	}
	c.say("SIGTERM: the relay drained and ended in %s", time.Since(began).Round(time.Millisecond))
	now, err := c.tables.count(ctx)
	if err != nil {
		return false, err
	}
	c.erase()
	fmt.Printf("\n  From the service's tables:    %d events committed, %d rolled back, %d left in the outbox\n",
		now.committed, now.rolledBack, now.waiting)
	fmt.Println("  From the consumers' tables:")
	fmt.Printf("\n    %-10s %10s %6s %10s %14s %14s %20s\n", "", "delivered", "lost", "invented", "out of order", "handled twice", "duplicates dropped")
	good := now.waiting == 0
	for _, con := range consumers {
		v, err := c.tables.verify(ctx, con.name)
		if err != nil {
			return false, err
		}
		in := now.consumers[con.name]
		style := green
		if !v.good() {
			style, good = red, false
		}
		fmt.Printf("    %-10s %10d %s %20d\n", con.title, in.handled,
			c.paint(style, fmt.Sprintf("%6d %10d %14d %14d", v.lost, v.invented, v.disordered, v.twice)), in.duplicates)
	}
	fmt.Printf("\n  Repeats that JetStream dropped by their id before any consumer saw them: %d\n\n", c.dropped)
	if good {
		fmt.Println("  " + c.paint(green, "Every promise was kept."))
	} else {
		fmt.Println("  " + c.paint(red, "A PROMISE WAS BROKEN."))
	}
	return good, nil
}

var duplicates = regexp.MustCompile(`(?m)^relevo_\S*_duplicates_total(?:\{\S*\})? (\d+)`)

// scrape adds up what the relay's metrics say of duplicates, before this life of it ends. The figure is for show: a relay
// that does not answer leaves it as it is.
func (c *conductor) scrape(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.listen+"/metrics", nil)
	if err != nil {
		return
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return
	}
	for _, m := range duplicates.FindAllStringSubmatch(string(body), -1) {
		if n, err := strconv.Atoi(m[1]); err == nil {
			c.dropped += n
		}
	}
}

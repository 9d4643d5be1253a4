package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/relevo-io/relevo/sdk"
)

// stream is what an attempt has of the host; *sdk.SinkStream is one.
type stream interface {
	answers
	Requests() <-chan sdk.Request
	Opened(o sdk.SinkOpened) error
}

// run is one attempt at publishing, from Open to Stop.
func run(ctx context.Context, o sdk.SinkOpen[Config], s *sdk.SinkStream) error {
	return attempt(ctx, o, s)
}

func attempt(ctx context.Context, o sdk.SinkOpen[Config], s stream) (err error) {
	e, err := open(ctx, o, s)
	if err != nil || e == nil {
		return err
	}
	// Close waits for nothing: whatever has not been confirmed by now is not acked, and comes again.
	defer e.link.Close()
	if err := s.Opened(sdk.SinkOpened{KeepsOrder: e.keepsOrder}); err != nil {
		return fmt.Errorf("answer open: %w", err)
	}
	return e.loop(ctx, s.Requests(), o.DrainTimeout)
}

// open connects and finds the stream, trying again while the servers are away. An error is for a person, or the host's
// end; nil and nil: the host said Stop before.
func open(ctx context.Context, o sdk.SinkOpen[Config], s stream) (*engine, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = reconnectFirst, reconnectMost
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		e, err := tryOpen(ctx, o, s)
		if err == nil || sdk.ErrorOf(err).Class != sdk.ClassTransient || ctx.Err() != nil {
			return e, err
		}
		se := sdk.ErrorOf(err)
		if err := s.Status(sdk.SinkStatus{State: sdk.SinkDown, Text: downText(se), OldestUnconfirmed: -1}); err != nil {
			return nil, fmt.Errorf("report status: %w", err)
		}
		timer.Reset(pause.NextBackOff())
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case r, ok := <-s.Requests():
			if _, stop := r.(sdk.Stop); stop || !ok {
				return nil, nil
			}
		case <-timer.C:
		}
	}
}

func downText(e *sdk.Error) string {
	if e.Hint == "" {
		return e.Error()
	}
	return e.Error() + " (" + e.Hint + ")"
}

func tryOpen(ctx context.Context, o sdk.SinkOpen[Config], s stream) (_ *engine, err error) {
	c := o.Config
	l, err := dial(ctx, c, connectionName(o.Instance))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	js, err := jetstream.New(l.nc)
	if err != nil {
		return nil, fmt.Errorf("make a JetStream client: %w", err)
	}
	in, err := subscribe(l, c)
	if err != nil {
		return nil, err
	}
	facts, err := resolve(ctx, js, l, c, o.ConstantDestination)
	if err != nil {
		return nil, err
	}
	if facts != nil && c.Publish == publishBatch && !facts.atomic {
		return nil, atomicMissing(facts.name)
	}
	e := newEngine(ctx, o, s, l, in, facts)
	mode := publishKeySerial
	if e.keepsOrder {
		mode = publishBatch
	}
	name := ""
	if facts != nil {
		name = facts.name
	}
	slog.InfoContext(ctx, "connected", "server", l.nc.ConnectedUrlRedacted(), "version", l.nc.ConnectedServerVersion(),
		"stream", name, "publish", mode)
	return e, nil
}

func connectionName(i sdk.Instance) string { return "relevo/" + i.Pipeline + "/" + i.Name }

func newEngine(ctx context.Context, o sdk.SinkOpen[Config], s answers, l *link, in inbox, facts *streamFacts) *engine {
	c := o.Config
	e := &engine{
		config: c, ackTimeout: time.Duration(c.AckTimeout), out: s, link: l, nc: l.nc, logCtx: ctx,
		compose: newComposer(o.Instance, c.Stream), inbox: in, batchPrefix: nuid.Next() + "-",
		lanes: map[string]*lane{}, ops: map[uint64]*op{},
		lookup:    lookup{cache: map[string]*outlet{}, pending: map[string][]*entry{}},
		statusDue: true, seen: l.look(),
	}
	if facts != nil {
		e.fixed = newOutlet(*facts, c.Publish != publishKeySerial)
		e.outlets = []*outlet{e.fixed}
		e.keepsOrder = e.fixed.facts.atomic
		return e
	}
	// Whether a stream takes batches shows with its first event. For one that does not, the engine keeps the order of a
	// key itself, one message at a time.
	e.keepsOrder = c.Publish != publishKeySerial && hasBatches(l.nc)
	return e
}

// hasBatches reports whether the server has atomic batches.
func hasBatches(nc *nats.Conn) bool { return atLeast(nc, 2, 12) }

// atLeast reports whether the server is of that version or a later one.
func atLeast(nc *nats.Conn, major, minor int) bool {
	var a, b int
	_, err := fmt.Sscanf(nc.ConnectedServerVersion(), "%d.%d", &a, &b)
	return err == nil && (a > major || a == major && b >= minor)
}

// inbox is where answers to what is published arrive.
type inbox struct {
	prefix  string // of reply subjects, with its dot
	replies chan *nats.Msg
}

// subscribe opens the inbox. It fails when the user may not have one.
func subscribe(l *link, c Config) (inbox, error) {
	in := inbox{prefix: l.nc.NewInbox() + ".", replies: make(chan *nats.Msg, maxReplies)}
	if _, err := l.nc.ChanSubscribe(in.prefix+"*", in.replies); err != nil {
		return in, sdk.Transient(fmt.Errorf("subscribe to confirmations: %w", err))
	}
	// The server answers in order: after the flush a refusal is known.
	if err := l.nc.FlushTimeout(apiTimeout); err != nil {
		return in, sdk.Transient(fmt.Errorf("subscribe to confirmations: %w", err))
	}
	if err := l.nc.LastError(); subscriptionDenied(err) {
		return in, inboxDenied(err, c)
	}
	return in, nil
}

package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// Ways to begin without a position.
const (
	backlogPublish = "publish"
	backlogSkip    = "skip"
)

// keptStream is what an attempt needs of *sdk.SourceStream.
type keptStream interface {
	stream
	Progress(position []byte) error
}

// kept is one attempt at a table whose rows stay. Nothing is written to the database; the position is all that tells what
// is published, so it must never cover an event that was not.
//
// Numbers and commits do not come in one order, so a number is no position. A snapshot is: it says of each transaction
// whether it had ended. What had ended at a new snapshot and not at the last one is a pair; pairs cut the commits into
// parts that meet and do not overlap, so every event is in exactly one, and a long transaction delays only itself. The
// database's own view of a row would not do instead: xmin of a row that was inserted behind a savepoint is another
// transaction's than the one that a snapshot lists.
type kept struct {
	source
	st       keptStream
	flight   *keptFlight
	server   keptServer
	lockWait time.Duration
}

// runKept is one attempt; see run.
func runKept(ctx context.Context, o sdk.SourceOpen[config], s keptStream) error {
	k := &kept{
		source: source{c: o.Config, o: o, s: s, log: slog.With("table", o.Config.Table)},
		st:     s, flight: newKeptFlight(o.Window), lockWait: keptLockWait,
	}
	var err error
	if k.name, err = outbox.ParseName(k.c.Table); err != nil {
		return sdk.Config(err).WithCode("table_invalid")
	}
	if k.m, err = outbox.Map(k.c.Preset, k.c.Columns); err != nil {
		return classify(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	soft, stop := context.WithCancelCause(ctx) // reading ends
	defer stop(nil)
	ended := make(chan struct{})
	requests := make(chan error, 1) // the end of the one goroutine that is started here
	go func() {
		err := k.requests(ended)
		if errors.Is(err, errStop) {
			stop(errStop)
		} else if err != nil {
			cancel(err)
		}
		requests <- err
	}()
	err = k.lead(ctx, soft)
	cancel(err)
	close(ended)
	if e := <-requests; e != nil && !errors.Is(e, errGone) && !errors.Is(e, errStop) {
		return e
	}
	switch {
	case errors.Is(err, errStop), errors.Is(context.Cause(ctx), errGone):
		return nil
	}
	return err
}

// requests obeys the host until it says stop (errStop), the stream ends (errGone), or the attempt does.
func (k *kept) requests(ended <-chan struct{}) error {
	for {
		select {
		case <-ended:
			return nil
		case r, open := <-k.st.Requests():
			if !open {
				return errGone
			}
			switch r := r.(type) {
			case sdk.Stop:
				return errStop // with nothing left to do: an ack has taken effect when it arrives
			case sdk.Ack:
				if err := k.flight.ack(r.ThroughSeq, r.Position); err != nil {
					return err
				}
			case sdk.Window:
				k.flight.mu.Lock()
				k.flight.window = r
				k.flight.mu.Unlock()
			case sdk.Hold, sdk.Release:
				return errors.New("protocol: a key was held, which Opened did not offer")
			}
			wake(k.flight.wake)
		}
	}
}

// lead connects, becomes the only relay, and reads. It returns errStop once the host has said so.
func (k *kept) lead(ctx, soft context.Context) error {
	s, other, err := k.sessions(soft, readerSettings, nil)
	if err != nil {
		return err
	}
	defer s.close()
	other.close() // it has shown that there is no pooler
	t, err := outbox.Inspect(soft, s.conn, k.name)
	if err != nil {
		return softly(soft, lost(err, "connection_lost"))
	}
	key := lockKey(t.OID, 0)
	if err := k.lockKept(soft, s, key); err != nil {
		return softly(soft, err)
	}
	l, err := k.layout(soft, s)
	if err == nil && l.Table.OID != t.OID {
		err = sdk.Transient(errors.New("the table was replaced while it was looked at")).WithCode("table_changed")
	}
	if err != nil {
		return softly(soft, lost(err, "connection_lost"))
	}
	if k.server, err = identify(soft, s, l.Table); err != nil {
		return softly(soft, lost(err, "connection_lost"))
	}
	from, err := k.begin()
	if err != nil {
		return err
	}
	if err := k.work(ctx, soft, s, l, from); err != nil {
		return err
	}
	if err := s.unlock(context.WithoutCancel(ctx), key); err != nil {
		return lost(err, "lock_lost")
	}
	return errStop
}

// begin is where to read on: where the stored position is, or as backlog says.
func (k *kept) begin() (position, error) {
	stored := k.o.Position
	if stored != nil {
		p, gap := k.server.judge(stored)
		if gap == nil {
			k.flight.resume(stored)
			return p, nil
		}
		if k.c.AcceptGap != gap.Token() {
			return position{}, gap.Config()
		}
		k.log.Warn("a gap was accepted: the stored position is dropped", "reason", gap.Reason, "backlog", k.c.backlog(), "position", string(stored))
	}
	p := k.server.base
	if k.c.backlog() == backlogSkip {
		p.old, p.lsn, p.at = k.server.snap, k.server.lsn, k.server.now
		k.log.Warn("no position: beginning with what commits from now on; rows that are in the table are not published")
	} else {
		k.log.Warn("no position: every row in the table WILL be published")
	}
	return p, nil
}

func (c config) backlog() string {
	if c.Backlog == "" {
		return backlogPublish
	}
	return c.Backlog
}

// work reads until the host says stop.
func (k *kept) work(ctx, soft context.Context, s *session, l *outbox.Layout, from position) error {
	order := describeOrder(l)
	for _, p := range l.Ignored {
		k.log.Warn("a column is not used", "reason", p.Message, "hint", p.Hint)
	}
	k.log.Info("reading the outbox", "after_publish", outbox.AfterKeep, "order", order.name, "order_column", order.column, "hint", order.hint)
	if err := k.s.Opened(sdk.SourceOpened{HasPositions: true, Order: order.name}); err != nil {
		return err
	}
	r := newKeptReader(k, s, l, from)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { defer close(r.out); return r.run(gctx, soft) })
	g.Go(func() error { return r.send(gctx) })
	if k.c.Retention != nil {
		house := newHousekeeper(k.c, l, k.o.Instance.Pipeline, k.log)
		house.published = k.flight.published
		k.flight.keepHouse(house.figures)
		g.Go(func() error { return house.run(gctx, soft.Done()) })
	}
	g.Go(func() error { return k.status(gctx, soft) })
	err := g.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return k.s.Status(k.flight.status(time.Now()))
}

// status reports until reading has stopped.
func (k *kept) status(ctx, soft context.Context) error {
	t := time.NewTicker(statusInterval)
	defer t.Stop()
	for {
		if err := k.s.Status(k.flight.status(time.Now())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-soft.Done():
			return nil
		case <-t.C:
		}
	}
}

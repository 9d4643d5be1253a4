package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// stream is what an attempt needs of *sdk.SourceStream.
type stream interface {
	Requests() <-chan sdk.Request
	Opened(o sdk.SourceOpened) error
	Send(b *sdk.Batch, position []byte) (first uint64, err error)
	Held(keys [][]byte, ids []string) error
	Status(st sdk.SourceStatus) error
}

// connectBackoff is the longest wait between tries to connect.
const connectBackoff = time.Second

// errStop ends the reading: the host said Stop. errGone ends everything: the stream is over.
var (
	errStop = errors.New("the host said stop")
	errGone = errors.New("the host has gone")
)

// source is one attempt.
type source struct {
	c    config
	o    sdk.SourceOpen[config]
	s    stream
	e    *engine
	log  *slog.Logger
	name outbox.Name
	m    outbox.Mapping
}

// run is one attempt: it connects, stands by until it leads, reads until the host says stop, and gives the lock back.
func run(ctx context.Context, o sdk.SourceOpen[config], s stream) error {
	src := &source{c: o.Config, o: o, s: s, log: slog.With("table", o.Config.Table)}
	var err error
	if src.name, err = outbox.ParseName(src.c.Table); err != nil {
		return sdk.Config(err).WithCode("table_invalid")
	}
	if src.m, err = outbox.Map(src.c.Preset, src.c.Columns); err != nil {
		return classify(err)
	}
	// Soft stop: reading ends. Hard stop: ctx.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	soft, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	src.e = newEngine(o, soft.Done(), func() { stop(errStop) })
	requests := make(chan error, 1) // the end of the one goroutine that run itself starts
	go func() {
		err := src.e.requests(s.Requests())
		if err != nil {
			cancel(err)
		}
		requests <- err
	}()
	err = src.lead(ctx, soft)
	cancel(err)
	src.e.end()
	if e := <-requests; e != nil && !errors.Is(e, errGone) {
		return e
	}
	switch {
	case errors.Is(err, errStop), errors.Is(context.Cause(ctx), errGone):
		return nil
	}
	return err
}

// lead connects, stands by and works. It returns errStop once the host has said so and everything is in order.
func (s *source) lead(ctx, soft context.Context) error {
	reader, remover, err := s.sessions(soft, readerSettings, removerSettings)
	if err != nil {
		return err
	}
	defer reader.close()
	defer remover.close()
	layout, own, err := s.own(soft, reader)
	if err != nil {
		return err
	}
	if err := s.work(ctx, reader, remover, layout, own.share); err != nil {
		return err
	}
	if err := own.leave(context.WithoutCancel(ctx)); err != nil {
		return lost(err, "lock_lost")
	}
	return errStop
}

// ownership is what a relay holds while it works.
type ownership struct {
	leave func(ctx context.Context) error // gives it back
	share *share                          // nil: the outbox is ours alone
}

// own stands by until the outbox is ours, or ours to share.
func (s *source) own(ctx context.Context, reader *session) (*outbox.Layout, ownership, error) {
	if s.c.Sharing == sharingBuckets {
		layout, keys, err := s.enter(ctx, reader)
		if err != nil {
			return nil, ownership{}, err
		}
		h := &share{e: s.e, s: reader, k: keys, log: s.log}
		return layout, ownership{leave: h.leave, share: h}, nil
	}
	layout, key, err := s.lock(ctx, reader)
	return layout, ownership{leave: func(ctx context.Context) error { return reader.unlock(ctx, key) }}, err
}

// sessions opens two sessions. Nothing is set in them before it is sure that they are sessions: behind a transaction
// pooler it would be set for the service.
func (s *source) sessions(ctx context.Context, ofA, ofB [][2]string) (a, b *session, err error) {
	if a, err = s.connect(ctx); err != nil {
		return nil, nil, err
	}
	if b, err = s.connect(ctx); err != nil {
		a.close()
		return nil, nil, err
	}
	if err = probePooler(ctx, a, b); err == nil {
		err = a.setUp(ctx, ofA)
	}
	if err == nil {
		err = b.setUp(ctx, ofB)
	}
	if err != nil {
		a.close()
		b.close()
		return nil, nil, softly(ctx, classify(err))
	}
	return a, b, nil
}

// connect tries until it has a session, in which nothing is set. What only a person can mend it returns.
func (s *source) connect(ctx context.Context) (*session, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, connectBackoff
	for told := false; ; {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if err := s.s.Status(sdk.SourceStatus{State: sdk.StateConnecting, OldestUnpublished: -1, LagBytes: -1, Backlog: -1}); err != nil {
			return nil, err
		}
		con, err := dial(ctx, s.c, s.o.Instance.Pipeline, "source")
		if err == nil && con.standby {
			con.close()
			err = errStandbyServer
		}
		if err == nil {
			return con, nil
		}
		if e := context.Cause(ctx); e != nil {
			return nil, e
		}
		c := classify(err)
		if c.Class != sdk.ClassTransient {
			return nil, c
		}
		if !told {
			s.log.Warn("connecting failed, trying on", "err", err, "code", c.Code, "hint", c.Hint)
			told = true
		}
		if err := s.s.Status(sdk.SourceStatus{
			State: sdk.StateConnecting, Text: err.Error(), OldestUnpublished: -1, LagBytes: -1, Backlog: -1,
		}); err != nil {
			return nil, err
		}
		if err := pause(ctx, wait.NextBackOff()); err != nil {
			return nil, err
		}
	}
}

// softly is the reason to stop where there is one, else err: a connection that was broken off on purpose tells of itself.
func softly(soft context.Context, err error) error {
	if cause := context.Cause(soft); cause != nil {
		return cause
	}
	return err
}

// lock stands by until the lock is ours. The table is looked up before, because its oid names the lock, and again after:
// it may have been replaced while we stood by.
func (s *source) lock(ctx context.Context, reader *session) (*outbox.Layout, int64, error) {
	for {
		t, err := outbox.Inspect(ctx, reader.conn, s.name)
		if err != nil {
			return nil, 0, softly(ctx, lost(err, "connection_lost"))
		}
		key := lockKey(t.OID, 0)
		if err := s.standBy(ctx, reader, key); err != nil {
			return nil, 0, err
		}
		layout, err := s.layout(ctx, reader)
		if err == nil && layout.Table.OID == t.OID {
			return layout, key, nil
		}
		if e := reader.unlock(ctx, key); err == nil {
			err = e
		}
		if err != nil {
			return nil, 0, softly(ctx, lost(err, "connection_lost"))
		}
	}
}

// layout looks the table up and checks that it can be relayed.
func (s *source) layout(ctx context.Context, reader *session) (*outbox.Layout, error) {
	t, err := outbox.Inspect(ctx, reader.conn, s.name)
	if err != nil {
		return nil, err
	}
	l, err := outbox.Bind(s.m, t)
	if err != nil {
		return nil, err
	}
	problems, err := startProblems(ctx, reader.conn, l, s.c)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, problems[0]
	}
	return l, nil
}

func (s *source) standBy(ctx context.Context, reader *session, key int64) error {
	return s.standByFor(ctx, "another relay reads this outbox", func(ctx context.Context) (bool, error) { return reader.tryLock(ctx, key) })
}

// standByFor waits until try gives the lock.
func (s *source) standByFor(ctx context.Context, reason string, try func(context.Context) (bool, error)) error {
	for since := (time.Time{}); ; {
		ok, err := try(ctx)
		if e := context.Cause(ctx); e != nil {
			return e // also when it was given: it ends with the session
		}
		switch {
		case err != nil:
			return lost(err, "connection_lost")
		case ok:
			return nil
		}
		if now := time.Now(); now.Sub(since) >= statusInterval {
			if since.IsZero() {
				s.log.Info("standing by: another relay has the outbox")
			}
			since = now
			if err := s.s.Status(sdk.SourceStatus{
				State: sdk.StateStandby, Text: reason, OldestUnpublished: -1, LagBytes: -1, Backlog: -1,
			}); err != nil {
				return err
			}
		}
		if err := pause(ctx, standbyPoll); err != nil {
			return err
		}
	}
}

// work reads and removes until the host says stop; then the acks that came before it have taken effect.
func (s *source) work(ctx context.Context, reader, rem *session, l *outbox.Layout, h *share) error {
	order := describeOrder(l)
	for _, p := range l.Ignored {
		s.log.Warn("a column is not used", "reason", p.Message, "hint", p.Hint)
	}
	s.log.Info("reading the outbox", "after_publish", removes(s.c), "sharing", s.c.Sharing, "order", order.name, "order_column", order.column, "hint", order.hint)
	if err := s.s.Opened(sdk.SourceOpened{HoldsKeys: true, Order: order.name}); err != nil {
		return err
	}
	s.e.bind(l)
	if h != nil { // before anybody asks how it goes
		if err := h.look(ctx); err != nil {
			return lost(err, "lock_lost")
		}
	}
	q := newQueries(l, s.c)
	r := newReader(s.e, reader, q, s.c, s.s, s.log)
	r.share = h
	d := &remover{e: s.e, s: rem, q: q, log: s.log, what: removes(s.c), limit: max(s.c.Batch, 1000)}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { defer close(r.out); return r.run(gctx) })
	g.Go(func() error { return r.send(gctx) })
	g.Go(func() error { return d.run(gctx, s.o.DrainTimeout) })
	if s.c.Retention != nil {
		house := newHousekeeper(s.c, l, s.o.Instance.Pipeline, s.log)
		s.e.keepHouse(house.figures)
		g.Go(func() error { return house.run(gctx, s.e.stopping) })
	}
	g.Go(func() error { return s.status(gctx) })
	err := g.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return s.s.Status(s.e.status(time.Now())) // the last figures
}

// statusInterval is how often the host hears how it goes.
const statusInterval = time.Second

// status reports until reading has stopped.
func (s *source) status(ctx context.Context) error {
	t := time.NewTicker(statusInterval)
	defer t.Stop()
	for {
		if err := s.s.Status(s.e.status(time.Now())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.e.stopping:
			return nil
		case <-s.e.wakeStatus:
		case <-t.C:
		}
	}
}

// order in the words of the documentation.
type order struct{ name, column, hint string }

func describeOrder(l *outbox.Layout) order {
	switch l.Kind() {
	case outbox.OrderPerKey:
		return order{
			"per key", l.Order.Name,
			"holds where the transaction that serialises a key has its transaction id before it inserts the event: it locks or writes the aggregate's row first",
		}
	case outbox.OrderRounds:
		return order{
			"best effort", "",
			"for order per key add an identity column seq (cache 1) with a unique index to the drained table, or use postgres-cdc",
		}
	}
	hint := fmt.Sprintf("for order per key let the database number %s one by one: generated always as identity (cache 1)", outbox.Quote(l.Order.Name))
	if l.Order.Sequence != "" {
		hint = fmt.Sprintf("for order per key run: ALTER SEQUENCE %s CACHE 1 INCREMENT 1 NO CYCLE", l.Order.Sequence)
	}
	return order{"best effort", l.Order.Name, hint}
}

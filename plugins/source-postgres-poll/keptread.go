package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/relevo-io/relevo/internal/failpoint"
	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

const (
	// progressInterval is how often a position without events is given: the host writes each to its disk.
	progressInterval = time.Second
	// foreseenInterval is how often rows of the future are looked for.
	foreseenInterval = 30 * time.Second
)

// keptReader reads pair after pair, on the session that holds the lock. One goroutine.
type keptReader struct {
	k   *kept
	s   *session
	l   *outbox.Layout
	q   *keptQueries
	f   *keptFlight
	log *slog.Logger

	out  chan keptItem // to send; capacity 1: the next read runs while a batch is sent
	free chan *sdk.Batch

	base     position // system, timeline, database, table
	pair              // new is the zero value between two pairs
	lsn      uint64   // end of the WAL when the newer snapshot was taken
	at       time.Time
	durable  bool // WAL has reached the server's disk up to lsn
	moved    bool // the position is another one than the host was given
	givenAt  time.Time
	starting bool // nothing is read before the first position is acked

	list   []int64
	next   int  // the next of list to read
	full   bool // there may be more of the pair behind the list
	onward bool // the list was full

	row        outbox.Row
	average    float64 // size of a row, smoothed; 0: not known
	pace       pace
	foreseenAt time.Time
}

func newKeptReader(k *kept, s *session, l *outbox.Layout, from position) *keptReader {
	r := &keptReader{
		k: k, s: s, l: l, q: newKeptQueries(l), f: k.flight, log: k.log,
		out:  make(chan keptItem, 1),
		free: make(chan *sdk.Batch, 4),
		base: k.server.base,
		pair: pair{old: from.old, new: from.new, after: from.after, begun: !from.new.none()},
		lsn:  from.lsn, at: from.at,
		full: !from.new.none(),
		pace: pace{longest: time.Duration(k.c.PollInterval), wait: pollMin, last: time.Now()},
		// It was looked for to start.
		foreseenAt: time.Now(),
	}
	// Beginning with what commits from now on: "now" must be durable before anything behind it is published, or a crash
	// would begin at a later one, and leave out what lies between.
	r.starting = !from.old.none() && from.at.Equal(k.server.now)
	r.moved = r.starting
	return r
}

// where is what the position is now. It is given to the host, and events are, only once it is durable at the server. A
// crash of the server may lose the id of an aborted transaction, and give it to another one, whose events would count as
// published; once WAL up to the position's lsn has reached the disk, recovery sees every id that it counts as ended. It
// also sees every commit, so that no event is published which a crash takes back (synchronous_commit = off).
func (r *keptReader) where() position {
	p := r.base
	p.old, p.lsn, p.at = r.old, r.lsn, r.at
	if r.begun {
		p.new, p.after = r.new, r.after
	}
	return p
}

// run reads until the host says stop.
func (r *keptReader) run(ctx, soft context.Context) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, time.Second
	for {
		if soft.Err() != nil {
			return context.Cause(ctx) // nil: it was the host's stop
		}
		o, err := r.read(ctx, soft)
		switch {
		case err != nil && again(err):
			r.log.Warn("read did not get through, trying again", "err", err)
			r.trouble("reading the outbox: " + err.Error())
			if err := r.rest(ctx, soft, wait.NextBackOff(), false); err != nil {
				return err
			}
			continue
		case err != nil:
			return lost(fmt.Errorf("read the outbox: %w", err), "lock_lost")
		}
		r.trouble("")
		wait.Reset()
		d := r.pace.next(time.Now(), o.rows > 0)
		if o.more {
			continue
		}
		if err := r.rest(ctx, soft, d, o.blocked); err != nil {
			return err
		}
	}
}

// trouble says for the status what is wrong at the moment; "": nothing.
func (r *keptReader) trouble(text string) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.f.figures.text = text
}

// read does one step: it reads rows of the pair, lists more of it first, or begins the next.
func (r *keptReader) read(ctx, soft context.Context) (outcome, error) {
	if r.starting && !r.f.begun() {
		if err := r.flushed(ctx, soft); err != nil || !r.durable {
			return outcome{}, err
		}
		return outcome{blocked: true}, r.give(ctx)
	}
	r.starting = false
	if r.next == len(r.list) {
		if err := r.turn(ctx); err != nil || r.next == len(r.list) {
			return outcome{more: r.full}, err
		}
	}
	events, bytes := r.f.room()
	if events == 0 {
		return outcome{blocked: true}, nil
	}
	n, err := r.rows(ctx, soft, min(events, r.k.c.Batch), min(bytes, readBytes))
	return outcome{more: true, rows: n}, err
}

// turn lists more of the pair, or begins the next one.
func (r *keptReader) turn(ctx context.Context) error {
	if !r.full {
		m, err := r.s.look(ctx)
		if err != nil {
			return err
		}
		if err := r.lookAhead(ctx); err != nil {
			return err
		}
		r.durable = r.durable || m.flushed >= r.lsn
		if err := r.give(ctx); err != nil {
			return err
		}
		if m.snap.equal(r.old) {
			return nil // nothing has ended since
		}
		if !m.snap.follows(r.old) {
			return sdk.Transient(fmt.Errorf("transactions that had ended at %s had not at %s", r.old, m.snap)).WithCode("snapshot_backwards")
		}
		r.new, r.lsn, r.at, r.durable = m.snap, m.lsn, m.now, m.flushed >= m.lsn
		r.f.mu.Lock()
		r.f.figures.clock, r.f.figures.running = int64(time.Until(m.now)), len(m.snap.xip)
		r.f.mu.Unlock()
	}
	r.list, r.next = r.list[:0], 0
	_, _, err := r.s.read(ctx, r.q.list(r.pair, r.onward), func() int { return keptList - len(r.list) }, func(values [][]byte) bool {
		if len(values) != 1 || len(values[0]) != 8 {
			return false
		}
		r.list = append(r.list, int64(binary.BigEndian.Uint64(values[0])))
		return true
	})
	if err != nil {
		r.list, r.full = r.list[:0], true // once more, with the same snapshot
		return err
	}
	r.full = len(r.list) == keptList
	r.onward = r.full
	r.closeIfRead()
	return nil
}

// closeIfRead ends the pair if all of it was read.
func (r *keptReader) closeIfRead() {
	if r.next < len(r.list) || r.full {
		return
	}
	r.pair = pair{old: r.new}
	r.onward, r.moved = false, true
}

// lookAhead looks for rows of the future from time to time: they can come into the table at any time.
func (r *keptReader) lookAhead(ctx context.Context) error {
	if time.Since(r.foreseenAt) < foreseenInterval {
		return nil
	}
	r.foreseenAt = time.Now()
	p, err := foreseen(ctx, r.s.conn, r.l)
	if err != nil {
		return err
	}
	if p != nil {
		return p
	}
	return nil
}

// flushed waits until the position is durable at the server, or the host says stop. The next commit of anybody brings it
// to the disk, and the server does so by itself after wal_writer_delay, 200 ms.
func (r *keptReader) flushed(ctx, soft context.Context) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = time.Millisecond, 20*time.Millisecond
	for since := time.Now(); !r.durable && soft.Err() == nil; {
		m, err := r.s.look(ctx)
		if err != nil {
			return err
		}
		if r.durable = m.flushed >= r.lsn; r.durable {
			break
		}
		if time.Since(since) > time.Second {
			r.trouble("events wait until the server has written its log to the disk")
		}
		if err := pause(ctx, wait.NextBackOff()); err != nil {
			return err
		}
	}
	return nil
}

// give hands a position over without events, when the last one was some time ago. Else the old snapshot would stay for as
// long as no event comes, and what lies behind it is looked through each time.
func (r *keptReader) give(ctx context.Context) error {
	if !r.moved || !r.durable || time.Since(r.givenAt) < progressInterval {
		return nil
	}
	p := r.where().encode()
	r.gave()
	return r.queue(ctx, keptItem{position: p})
}

func (r *keptReader) gave() { r.moved, r.givenAt = false, time.Now() }

// rows reads rows of the list and hands them over.
func (r *keptReader) rows(ctx, soft context.Context, events, bytes int) (int, error) {
	numbers := r.list[r.next:min(len(r.list), r.next+events)]
	q := r.q.rows(r.pair, numbers)
	q.limit = len(numbers)
	l := keptLoad{r: r, pair: r.pair, events: len(numbers), bytes: bytes}
	_, done, err := r.s.read(ctx, q, l.step, l.take)
	switch {
	case err != nil:
		return 0, err
	case l.twice:
		return 0, r.numberedTwice(l.last)
	case l.bad:
		return 0, errBadAnswer
	case done:
		l.place = len(numbers) // what is missing was deleted
	}
	if err := r.flushed(ctx, soft); err != nil || !r.durable {
		return 0, err // it is read again, or the host has said stop
	}
	r.next += l.place
	r.begun, r.after, r.moved = true, numbers[l.place-1], true
	r.closeIfRead()
	r.f.mu.Lock()
	g := &r.f.figures
	g.rows += uint64(l.rows)
	if r.new.none() {
		g.pairs++
	}
	g.listed, g.more = len(r.list)-r.next, r.full
	r.f.mu.Unlock()
	if l.rows == 0 {
		return 0, nil
	}
	failpoint.Hit(failpoint.SourceRead)
	return l.rows, l.queue(ctx)
}

func (r *keptReader) numberedTwice(n int64) error {
	order, table := outbox.Quote(r.l.Order.Name), r.l.Table.Name
	return &outbox.Problem{
		Code: "order_duplicate", Path: "/columns/order", Message: fmt.Sprintf("two new rows of %s have the number %d in %s", table, n, order),
		Hint: "the place in what is read is a number, and must be one row's; give one of them another number, and put a unique index on the column",
		SQL:  fmt.Sprintf("SELECT * FROM %s WHERE %s = %d;", table, order, n),
	}
}

// rest waits for d, or for an ack where the window is full.
func (r *keptReader) rest(ctx, soft context.Context, d time.Duration, blocked bool) error {
	t := time.NewTimer(d)
	defer t.Stop()
	due := t.C
	if blocked {
		due = nil
	}
	p := time.NewTicker(pingInterval)
	defer p.Stop()
	for {
		acked := r.f.wake
		if !blocked {
			acked = nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-soft.Done():
			return nil
		case <-due:
			return nil
		case <-acked:
			return nil
		case <-p.C:
			if err := r.s.ping(ctx); err != nil {
				return lost(fmt.Errorf("keep the session: %w", err), "lock_lost")
			}
		}
	}
}

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/relevo-io/relevo/internal/failpoint"
	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/internal/wire"
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
	owed     bool // batches were sent behind it without one
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

// keptItem is a batch with its position, or a position alone. A batch without one is covered by the next.
type keptItem struct {
	batch    *sdk.Batch
	first    uint64
	position []byte
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
	r.moved, r.owed = r.starting, r.starting
	return r
}

// where is what the position is now. It is given to the host only once it is durable at the server. An aborted
// transaction's id may be lost in a crash of the server, and be given to another one afterwards, whose events would count
// as published; once WAL up to the position's lsn has reached the disk, recovery has seen every id that it counts as ended.
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
		o, err := r.read(ctx)
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
		if o.more {
			continue
		}
		if err := r.rest(ctx, soft, r.pace.next(time.Now(), o.rows > 0), o.blocked); err != nil {
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
func (r *keptReader) read(ctx context.Context) (outcome, error) {
	if r.starting && !r.f.begun() {
		return outcome{blocked: true}, r.settle(ctx)
	}
	r.starting = false
	if r.next == len(r.list) {
		if err := r.turn(ctx); err != nil || r.next == len(r.list) {
			return outcome{more: r.full}, err
		}
	}
	events, bytes := r.f.room()
	if events == 0 {
		return outcome{blocked: true}, r.settle(ctx)
	}
	n, err := r.rows(ctx, min(events, r.k.c.Batch), min(bytes, readBytes))
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
		if m.snap.equal(r.old) || r.owed {
			// Nothing has ended since; or batches wait for a position, and would wait for ever where each pair begins before
			// the last one has reached the disk.
			return nil
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

// settle gives a position that is owed, if it has become durable.
func (r *keptReader) settle(ctx context.Context) error {
	if !r.owed {
		return nil
	}
	if err := r.confirm(ctx); err != nil {
		return err
	}
	return r.give(ctx)
}

// confirm asks whether the position is durable at the server.
func (r *keptReader) confirm(ctx context.Context) error {
	if r.durable {
		return nil
	}
	m, err := r.s.look(ctx)
	r.durable = err == nil && m.flushed >= r.lsn
	return err
}

// give hands a position over without events: where batches wait for it, or when the last one was some time ago. Else the
// old snapshot would stay for as long as no event comes, and what lies behind it is looked through each time.
func (r *keptReader) give(ctx context.Context) error {
	if !r.moved || !r.durable || !r.owed && time.Since(r.givenAt) < progressInterval {
		return nil
	}
	p := r.where().encode()
	r.gave()
	return r.queue(ctx, keptItem{position: p})
}

func (r *keptReader) gave() { r.moved, r.owed, r.givenAt = false, false, time.Now() }

// rows reads rows of the list and hands them over.
func (r *keptReader) rows(ctx context.Context, events, bytes int) (int, error) {
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
	r.next += l.place
	r.begun, r.after, r.moved = true, numbers[l.place-1], true
	r.closeIfRead()
	if err := r.confirm(ctx); err != nil {
		return 0, err // nothing was handed over, and the attempt is over
	}
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

// keptLoad is what one read takes.
type keptLoad struct {
	r             *keptReader
	pair              // that the rows are of
	events, bytes int // what may be taken

	parts []keptPart
	rows  int
	size  int
	place int   // in the numbers, of the last row that was taken
	last  int64 // number of it
	twice bool  // a number came twice
	bad   bool  // an answer that is none
}

// keptPart is one batch.
type keptPart struct {
	batch *sdk.Batch
	fly   keptBatch
	last  int64 // number of its last row
}

// step is how many rows to fetch next: as many as will fit, by what rows have been like.
func (l *keptLoad) step() int {
	n := l.events - l.rows
	if l.r.average == 0 {
		return min(n, firstStep)
	}
	return min(n, max(1, int(float64(l.bytes-l.size)/l.r.average)))
}

// take decodes a row into a batch; false: it does not fit any more.
func (l *keptLoad) take(values [][]byte) bool {
	at := values[len(values)-1]
	if l.bad = len(at) != 8; l.bad {
		return false
	}
	row := &l.r.row
	l.r.l.Decode(values, row)
	if l.twice = l.rows > 0 && row.Order == l.last; l.twice {
		return false
	}
	size := row.Event.Size()
	if row.Rejected == nil && size > wire.MaxEvent {
		row.Reject(row.Event.Check())
	}
	if row.Rejected != nil {
		size = rejectedSize + min(len(row.Rejected.Key), wire.MaxKey)
	}
	l.r.average += (float64(size) - l.r.average) / 64
	if l.rows > 0 && l.size+size > l.bytes {
		l.r.average = max(l.r.average, float64(size)/2) // rows have become large: short steps at once
		return false
	}
	p := l.part(size)
	if row.Rejected != nil {
		p.batch.Reject(*row.Rejected)
	} else if err := p.batch.Add(&row.Event); err != nil {
		row.Reject(err)
		p.batch.Reject(*row.Rejected)
	}
	p.last = row.Order
	p.fly.events, p.fly.bytes = p.fly.events+1, p.fly.bytes+size
	if row.Event.HasTime {
		p.fly.oldest = min(p.fly.oldest, row.Event.TimeMicro)
	}
	l.rows, l.size, l.last, l.place = l.rows+1, l.size+size, row.Order, int(binary.BigEndian.Uint64(at))
	return l.size < l.bytes
}

// part is the batch that has room for an event.
func (l *keptLoad) part(size int) *keptPart {
	if n := len(l.parts); n > 0 && l.parts[n-1].batch.Fits(size) {
		return &l.parts[n-1]
	}
	var b *sdk.Batch
	select {
	case b = <-l.r.free:
	default:
		b = new(sdk.Batch)
	}
	l.parts = append(l.parts, keptPart{batch: b, fly: keptBatch{oldest: math.MaxInt64}})
	return &l.parts[len(l.parts)-1]
}

// queue hands the batches over, each with the position behind it.
func (l *keptLoad) queue(ctx context.Context) error {
	r := l.r
	for i := range l.parts {
		p := &l.parts[i]
		it := keptItem{batch: p.batch, first: r.f.take(p.fly)}
		switch {
		case !r.durable:
			r.owed = true
		case i == len(l.parts)-1:
			it.position = r.where().encode()
			r.gave()
		default:
			at := r.where()
			at.old, at.new, at.after = l.pair.old, l.pair.new, p.last
			it.position = at.encode()
		}
		if err := r.queue(ctx, it); err != nil {
			return err
		}
	}
	return nil
}

// queue hands something to send. The host may be slow to take it.
func (r *keptReader) queue(ctx context.Context, it keptItem) error {
	t := time.NewTicker(pingInterval)
	defer t.Stop()
	for {
		select {
		case r.out <- it:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
			if err := r.s.ping(ctx); err != nil {
				return err
			}
		}
	}
}

// send is the goroutine that talks to the host, in the order of the queue.
func (r *keptReader) send(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case it, ok := <-r.out:
			if !ok {
				return nil
			}
			if it.batch == nil {
				if err := r.k.st.Progress(it.position); err != nil {
					return err
				}
				continue
			}
			first, err := r.k.st.Send(it.batch, it.position)
			if err != nil {
				return err
			}
			if first != it.first {
				return fmt.Errorf("BUG: batch was to be %d and became %d", it.first, first)
			}
			select {
			case r.free <- it.batch:
			default:
			}
		}
	}
}

// rest waits for d, or for an ack where the window is full and no position is owed.
func (r *keptReader) rest(ctx, soft context.Context, d time.Duration, blocked bool) error {
	t := time.NewTimer(d)
	defer t.Stop()
	due := t.C
	if blocked && !r.owed {
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

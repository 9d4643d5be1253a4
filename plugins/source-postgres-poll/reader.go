package main

import (
	"context"
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
	// pollMin is the wait between reads while rows come, and the first one when they stop.
	pollMin = 5 * time.Millisecond
	// idleFactor is how many waits long nothing must have come before the wait doubles: at 200 events a second gaps of
	// tens of milliseconds are ordinary, and must not cost the next event twice that.
	idleFactor = 16
	// pingInterval keeps idle_session_timeout away while there is nothing to read.
	pingInterval = 2 * time.Second
	// hostSilence is how long the host may give no sign of life before the session is closed: three of its health checks
	// missed.
	hostSilence = 6 * time.Second
	// passFactor is how many times the duration of a read that found nothing passes before the next one, where the outbox
	// is shared: it may have passed a million rows that wait for another relay.
	passFactor = 4
	// readBytes caps one read, so that the first rows of a full window are on their way while the next are read.
	readBytes = 2 * wire.MaxBatch
	// firstStep is how many rows are fetched before anything is known of their size.
	firstStep = 16
	// rejectedSize is what a rejected row counts in the window beside its key; its texts are short.
	rejectedSize = 512
)

// reader reads on the session that holds the lock, and hands batches to send. One goroutine.
type reader struct {
	e   *engine
	s   *session
	q   *queries
	c   config
	st  stream
	log *slog.Logger

	share *share // nil: this relay has the outbox to itself

	out  chan item       // to send; capacity 1: the next read runs while a batch is sent
	free chan *sdk.Batch // batches that were sent

	row     outbox.Row
	average float64 // size of a row, smoothed; 0: not known
	pace    pace
	byKey   bool      // it is the turn of a read by key
	sweepAt time.Time // when the next read is to be one without a bound
	round   round

	inFlight orders
}

// item is a batch, or an answer to Hold behind the batches before it.
type item struct {
	batch *sdk.Batch
	first uint64
	held  heldAnswer
}

func newReader(e *engine, s *session, q *queries, c config, st stream, log *slog.Logger) *reader {
	return &reader{
		e: e, s: s, q: q, c: c, st: st, log: log,
		out:  make(chan item, 1),
		free: make(chan *sdk.Batch, 4),
		pace: pace{longest: time.Duration(c.PollInterval), wait: pollMin, last: time.Now()},
	}
}

// outcome of one look for rows.
type outcome struct {
	blocked bool // the window is full
	more    bool // read again at once
	rows    int
}

// run reads until the host says stop.
func (r *reader) run(ctx context.Context) error {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, time.Second
	for {
		select {
		case <-r.e.stopping:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		if err := r.keepShare(ctx); err != nil {
			return err
		}
		if err := r.answer(ctx); err != nil {
			return err
		}
		start := time.Now()
		o, err := r.read(ctx)
		switch {
		case err != nil && again(err):
			r.log.Warn("read did not get through, trying again", "err", err)
			r.e.trouble("reading the outbox: " + err.Error())
			r.sweepAt = time.Time{}
			if err := r.rest(ctx, retry.NextBackOff(), false); err != nil {
				return err
			}
			continue
		case err != nil:
			return lost(fmt.Errorf("read the outbox: %w", err), "lock_lost")
		}
		r.e.trouble("")
		retry.Reset()
		if o.more {
			continue
		}
		wait := r.pace.next(time.Now(), o.rows > 0)
		if r.share != nil && o.rows == 0 {
			wait = max(wait, passFactor*time.Since(start))
		}
		if err := r.rest(ctx, wait, o.blocked); err != nil {
			return err
		}
	}
}

func (r *reader) read(ctx context.Context) (outcome, error) {
	if r.e.readable() == 0 {
		return outcome{}, nil
	}
	if r.q.l.Order == nil {
		return r.readRound(ctx)
	}
	return r.readOrdered(ctx)
}

// where is what every read asks for. e.mu is held.
func (r *reader) where() *where {
	w := r.q.where()
	r.q.in(w, r.e.division.reads())
	return w
}

// answer tells the host that keys are held. What was read of them before is in the queue, or sent; the next query
// leaves them out.
func (r *reader) answer(ctx context.Context) error {
	for _, a := range r.e.takeUnheld() {
		if err := r.queue(ctx, item{held: a}); err != nil {
			return err
		}
	}
	return nil
}

// queue hands something to send. The host may be slow to take it.
func (r *reader) queue(ctx context.Context, it item) error {
	select {
	case r.out <- it:
		return nil
	default:
	}
	t := time.NewTicker(r.signInterval())
	defer t.Stop()
	for {
		select {
		case r.out <- it:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
			if err := r.sign(ctx); err != nil {
				return err
			}
		}
	}
}

// send is the goroutine that talks to the host, in the order of the queue.
func (r *reader) send(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case it, ok := <-r.out:
			if !ok {
				return nil
			}
			if it.batch == nil {
				if err := r.st.Held(it.held.keys, it.held.ids); err != nil {
					return err
				}
				continue
			}
			first, err := r.st.Send(it.batch, nil)
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

// rest waits for d, or for as long as the window is full; less if the host wants something.
func (r *reader) rest(ctx context.Context, d time.Duration, blocked bool) error {
	t := time.NewTimer(d)
	defer t.Stop()
	due := t.C
	if blocked {
		due = nil
	}
	p := time.NewTicker(r.signInterval())
	defer p.Stop()
	for {
		if r.e.wanted(blocked) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.e.stopping:
			return nil
		case <-due:
			return nil
		case <-r.e.wakeRead:
		case <-p.C:
			if err := r.sign(ctx); err != nil {
				return err
			}
		}
	}
}

// wanted reports whether there is something to do before the wait is over.
func (e *engine) wanted(blocked bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.unheld) > 0 || e.drained() != 0 {
		return true
	}
	events, _ := e.flight.room()
	if events == 0 {
		return false
	}
	if blocked {
		return true
	}
	return e.keyedWork()
}

// keyedWork reports whether a read of released keys can be done.
func (e *engine) keyedWork() bool {
	return e.held.waiting() && e.keyedRoom() > 0 && e.division.reads() != 0
}

// keyedRoom is how many rows of released keys may still be read: a key with a long backlog is not to fill the window.
func (e *engine) keyedRoom() int { return max(1, e.flight.window.Events/4) - e.flight.keyed }

// sign shows the server, while nothing is read, that we live, so that it keeps the session and what it holds. A look at the
// share is a sign, too.
func (r *reader) sign(ctx context.Context) error {
	if r.share != nil {
		return r.keepShare(ctx)
	}
	if err := r.hostLives(); err != nil {
		return err
	}
	if err := r.s.ping(ctx); err != nil {
		return lost(fmt.Errorf("keep the session: %w", err), "lock_lost")
	}
	return nil
}

func (r *reader) signInterval() time.Duration {
	if r.share != nil {
		return shareInterval
	}
	return pingInterval
}

// keepShare does what is due for the share.
func (r *reader) keepShare(ctx context.Context) error {
	if err := r.hostLives(); err != nil || r.share == nil {
		return err
	}
	err := r.share.keep(ctx)
	if err != nil && again(err) {
		r.log.Warn("share of the outbox not settled, trying again", "err", err)
		return nil
	}
	if err != nil {
		return lost(err, "lock_lost")
	}
	return nil
}

// hostLives closes the session when the host gives no sign of life: one that is frozen must lose what it holds. The end of
// its process or connection is the end of ctx; what is left is the time of its last health check, where the SDK tells it.
// The session is closed here and now, since what waits for that host may wait for ever.
func (r *reader) hostLives() error {
	h, ok := r.st.(interface{ HostSeen() time.Time })
	if !ok || time.Since(h.HostSeen()) <= hostSilence {
		return nil
	}
	r.s.close()
	return classify(errHostSilent)
}

// pace is how long to wait between reads.
type pace struct {
	longest time.Duration
	wait    time.Duration
	last    time.Time // when a row came
}

func (p *pace) next(now time.Time, rows bool) time.Duration {
	switch {
	case rows:
		p.last, p.wait = now, pollMin
	case now.Sub(p.last) >= idleFactor*p.wait:
		p.wait = min(2*p.wait, p.longest)
	}
	return p.wait
}

// load is what one read takes.
type load struct {
	r             *reader
	events, bytes int // what may be taken
	keyed         bool

	items []item
	sent  []*sent
	rows  int // taken
	size  int
	seen  int // taken or skipped
	last  int64
	above int64 // numbers up to it count as found
	found int
}

// step is how many rows to fetch next: as many as will fit, by what rows have been like.
func (l *load) step() int {
	n := l.events - l.rows
	if l.r.average == 0 {
		return min(n, firstStep)
	}
	return min(n, max(1, int(float64(l.bytes-l.size)/l.r.average)))
}

// take decodes a row into a batch; false: it does not fit any more.
func (l *load) take(values [][]byte) bool {
	r := &l.r.row
	l.r.q.l.Decode(values, r)
	size := r.Event.Size()
	if r.Rejected == nil && size > wire.MaxEvent {
		r.Reject(r.Event.Check())
	}
	if r.Rejected != nil {
		size = rejectedSize + min(len(r.Rejected.Key), wire.MaxKey)
	}
	l.r.average += (float64(size) - l.r.average) / 64
	if l.rows > 0 && l.size+size > l.bytes {
		l.r.average = max(l.r.average, float64(size)/2) // rows have become large: short steps at once
		return false
	}
	b := l.batch(size)
	if r.Rejected != nil {
		b.Reject(*r.Rejected)
	} else if err := b.Add(&r.Event); err != nil {
		r.Reject(err)
		b.Reject(*r.Rejected)
	}
	l.sent[len(l.sent)-1].add(r, size, l.keyed, l.r.q.bucketOf(values))
	l.rows, l.size, l.last = l.rows+1, l.size+size, max(l.last, r.Order)
	if r.Order <= l.above {
		l.found++
	}
	return l.rows < l.events && l.size < l.bytes
}

// batch is the one that has room for an event.
func (l *load) batch(size int) *sdk.Batch {
	if n := len(l.items); n > 0 && l.items[n-1].batch.Fits(size) {
		return l.items[n-1].batch
	}
	var b *sdk.Batch
	select {
	case b = <-l.r.free:
	default:
		b = new(sdk.Batch)
	}
	rows := min(l.events-l.rows, l.r.c.Batch)
	l.items = append(l.items, item{batch: b})
	l.sent = append(l.sent, &sent{oldest: math.MaxInt64, rows: make([]row, 0, rows)})
	return b
}

// fly brings what was taken into flight; engine.mu is held.
func (l *load) fly(e *engine) {
	for i, s := range l.sent {
		e.flight.take(s)
		l.items[i].first = s.first
	}
}

// queue hands the batches over.
func (l *load) queue(ctx context.Context) error {
	if l.rows > 0 {
		failpoint.Hit(failpoint.SourceRead)
	}
	for _, it := range l.items {
		if err := l.r.queue(ctx, it); err != nil {
			return err
		}
	}
	return nil
}

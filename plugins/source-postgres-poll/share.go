package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
)

// shareInterval is how often a relay looks at how the outbox is shared. Three looks find a relay that has gone, take its
// buckets and settle; a look costs the server a tenth of a millisecond.
const shareInterval = time.Second

// share is this relay's part of an outbox that several share: it takes buckets, and gives those that others lack. All its
// locks are of the reader's session, and so are all its statements: a session that is lost reads no more, and no read runs
// while the share changes. One goroutine, the reader's.
//
// A bucket is given in three steps: it is not read any more; what is in flight of it settles and is removed; the lock is
// given back. Whoever takes it locks first and reads in a later statement, whose snapshot sees all of that.
type share struct {
	e   *engine
	s   *session
	k   shareKeys
	log *slog.Logger

	due    time.Time // of the next look
	relays int
}

// keep does what is due.
func (h *share) keep(ctx context.Context) error {
	do := h.giveBack
	if !time.Now().Before(h.due) {
		do = h.look
	}
	err := do(ctx)
	if err != nil {
		h.due = time.Time{} // it may have been done in part: look again before anything else
	}
	return err
}

// look asks the server for the state of all locks, and brings ours in line with it.
func (h *share) look(ctx context.Context) error {
	h.due = time.Now().Add(shareInterval)
	o, err := h.s.outlook(ctx, h.k)
	if err != nil {
		return err
	}
	owned := o.of(o.me)
	before, ok := h.e.owns(owned)
	if !ok {
		return errUnlockedElsewhere
	}
	if n := o.surplus(); n > 0 {
		h.e.give(n)
	} else {
		h.e.give(0)
		if free := o.take(); free != 0 {
			got, err := h.s.tryBuckets(ctx, h.k, free)
			if err != nil {
				return err // what was locked all the same is found by the next look
			}
			owned |= got
			h.e.owns(owned)
		}
	}
	if owned != before || len(o.relays) != h.relays {
		h.relays = len(o.relays)
		h.e.sharedBy(h.relays)
		wake(h.e.wakeStatus)
		h.log.Info("share of the outbox", "buckets", owned.count(), "of", outbox.Buckets, "relays", h.relays)
	}
	return h.giveBack(ctx)
}

// giveBack unlocks what is to be given and has nothing in flight any more.
func (h *share) giveBack(ctx context.Context) error {
	h.e.mu.Lock()
	s := h.e.drained()
	h.e.mu.Unlock()
	if s == 0 {
		return nil
	}
	if err := h.s.unlockBuckets(ctx, h.k, s); err != nil {
		return err
	}
	h.e.gave(s)
	return nil
}

// leave gives everything back, at the end.
func (h *share) leave(ctx context.Context) error {
	if err := h.s.unlockBuckets(ctx, h.k, h.e.ownedBuckets()); err != nil {
		return err
	}
	return h.s.unlockShared(ctx, h.k.presence, h.k.variant)
}

// text is how it stands, for the status.
func (d division) text() string {
	relays := "relays"
	if d.relays == 1 {
		relays = "relay"
	}
	return fmt.Sprintf("%d of %d buckets, %d %s", d.owned.count(), outbox.Buckets, d.relays, relays)
}

// division is the engine's side of a share. engine.mu guards it.
type division struct {
	on     bool
	owned  buckets // locked by us
	giving buckets // of those: not read any more
	relays int
}

// reads are the buckets whose rows are read.
func (d *division) reads() buckets {
	if !d.on {
		return allBuckets
	}
	return d.owned &^ d.giving
}

// owns tells which buckets are ours according to the server, and returns what it was before. Not ok: one that we read is
// not among them, which only somebody else in our session can have done.
func (e *engine) owns(now buckets) (before buckets, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := &e.division
	before = d.owned
	if d.reads()&^now != 0 {
		return before, false
	}
	was := d.reads()
	d.owned, d.giving = now, d.giving&now
	e.grown(d.reads() &^ was)
	return before, true
}

// give gives n buckets: those that are being given count. Any more than n are kept after all.
func (e *engine) give(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := &e.division
	was := d.reads()
	// A bucket whose key is held does not drain, and the next reader would only fail at the same event.
	d.giving = choose(n, d.owned, d.giving, e.held.buckets())
	e.grown(d.reads() &^ was)
}

// grown: buckets are read from now on that were not before, and may have rows anywhere below the bound.
func (e *engine) grown(s buckets) {
	if s == 0 {
		return
	}
	e.bound.reset()
	e.held.forgetFloors(s)
}

// drained are the buckets that are to be given and have nothing in flight. e.mu is held.
func (e *engine) drained() (s buckets) {
	if e.division.giving == 0 {
		return 0
	}
	for b := range (e.division.giving &^ e.held.buckets()).each {
		if e.flight.inBucket[b] == 0 {
			s |= 1 << b
		}
	}
	return s
}

// gave tells that buckets were unlocked.
func (e *engine) gave(s buckets) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.division.owned &^= s
	e.division.giving &^= s
}

func (e *engine) ownedBuckets() buckets {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.division.owned
}

func (e *engine) sharedBy(relays int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.division.relays = relays
}

// readable are the buckets that the next read is to take rows of.
func (e *engine) readable() buckets {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.division.reads()
}

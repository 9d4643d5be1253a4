package main

// bound is the order number below which nothing is left to read, so that reads need not pass what was deleted before.
//
// Where it may stand is delicate. A row with a lower number can commit later, and a service that locks correctly is
// reordered by a bound that merely follows the reading: T1 locks key 7, inserts its row and stays open; rows of others
// move the bound past it; T1 commits, T2 locks key 7, inserts and commits; the bounded read finds T2's row first.
//
// So it moves in two steps. Let F be the highest number that was read so far, and N the transaction id of a delete (or
// update) of our own that was begun after that read. Whoever has a number up to F took it before N was given out, and had its
// transaction id by then. A later read whose snapshot's xmin is N or above therefore sees the end of each of them: what
// it did not find up to F will never come. It may be full, then only what lies below its last row is known. What it
// took is in flight, what it left out on purpose is held, and both have numbers of their own (entry.floor).
//
// (pg_snapshot_xmax is not enough: it is the last id that has *ended*, and open transactions lie above it.)
type bound struct {
	set   bool
	floor int64 // reads look above it; with set

	high    int64  // F: the highest number that any read took
	lowered uint64 // counts lower and reset

	proven   int64 // the highest F of which a snapshot has seen the end of all up to it; with isProven
	isProven bool

	// removals are those whose ids wait for a snapshot, oldest first: f and xid ascend.
	removals []boundRemoval
}

type boundRemoval struct {
	f   int64
	xid uint64
}

// maxBoundRemovals caps removals while a long transaction keeps every snapshot old. To forget one only costs distance.
const maxBoundRemovals = 64

// read tells of a read that has ended: not one of single keys. lowered is the counter at its beginning, xmin belongs to
// its snapshot or an earlier one, last is the highest number that it took (0, false: none), and full says that there
// may have been more.
func (b *bound) read(lowered uint64, xmin uint64, last int64, took, full bool) {
	n := 0
	for n < len(b.removals) && b.removals[n].xid <= xmin {
		b.proven, b.isProven = b.removals[n].f, true
		n++
	}
	b.removals = append(b.removals[:0], b.removals[n:]...)
	// A floor that was lowered while the read ran is not raised by it: it did not look there.
	if b.isProven && lowered == b.lowered && (took || !full) {
		to := b.proven
		if full {
			to = min(to, last)
		}
		if !b.set || to > b.floor {
			b.floor, b.set = to, true
		}
	}
	if took {
		b.took(last)
	}
}

// took tells of a number that was read.
func (b *bound) took(order int64) { b.high = max(b.high, order) }

// removed tells of a delete or update of ours: f was b.high when it began, xid is its transaction's.
func (b *bound) removed(f int64, xid uint64) {
	if n := len(b.removals); n > 0 && (b.removals[n-1].f >= f || b.removals[n-1].xid >= xid) {
		return // it would say nothing new
	}
	if len(b.removals) == maxBoundRemovals {
		b.removals = append(b.removals[:1], b.removals[2:]...)
	}
	b.removals = append(b.removals, boundRemoval{f, xid})
}

// lower makes reads look above order-1 again.
func (b *bound) lower(order int64) {
	b.lowered++
	if b.set && b.floor >= order {
		b.floor = order - 1
	}
}

// reset makes reads look at everything again. What was proven stays: it is of all numbers, whoever reads their rows. So one
// read without a bound is enough.
func (b *bound) reset() {
	b.lowered++
	b.set = false
}

package main

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// flight is what was read and has not left the window: numbers that the host has not ended, and numbers that it acked
// whose rows are not deleted yet. Not safe for concurrent use: engine.mu guards it.
type flight struct {
	window  sdk.Window
	unique  int  // columns that identify a row
	byOrder bool // rows are removed by their order numbers, so each can be

	next   uint64  // number of the next row
	sent   []*sent // ascending, those with open rows
	events int     // open
	bytes  int
	keyed  int // open rows that came by a read of released keys

	inBucket bucketCounts // open rows of each
	acked    []ref

	// leftOut are the numbers of rows that are settled and cannot be deleted, because nothing identifies them.
	leftOut map[int64]struct{}

	// hashes of the open rows' identities, where there is no order column to leave them out by; else nil.
	hashes map[uint64]struct{}
	seed   maphash.Seed
	// gone are hashes that left since the last beginRead. A read that began before a delete committed still sees the row,
	// and it arrives when the row is no longer in flight.
	gone map[uint64]struct{}
}

// sent is one batch. Its rows cost no allocation of their own.
type sent struct {
	first  uint64
	rows   []row
	data   []byte   // for each row: what identifies it, then its key
	ends   []uint32 // where each value ends in data; unique+1 for each row
	open   int
	oldest int64 // earliest time of its events, µs since 1970; MaxInt64: none
}

type row struct {
	order int64
	size  int32
	state rowState
	noID  bool // nothing identifies it
	noKey bool
	keyed bool

	bucket uint8 // 0 where nobody shares the outbox
}

type rowState uint8

const (
	rowOpen rowState = iota
	rowAcked
	rowEnded
)

// ref is one row of a batch.
type ref struct {
	s *sent
	i int
}

func newFlight(w sdk.Window, unique int, rounds bool) *flight {
	f := &flight{window: w, unique: unique, next: 1, leftOut: map[int64]struct{}{}}
	if rounds {
		f.hashes, f.gone, f.seed = map[uint64]struct{}{}, map[uint64]struct{}{}, maphash.MakeSeed()
	}
	return f
}

// room is how much may be read. A byte window always admits one event.
func (f *flight) room() (events, bytes int) {
	events, bytes = f.window.Events-f.events, f.window.Bytes-f.bytes
	if f.events == 0 {
		bytes = max(bytes, 1)
	}
	if events <= 0 || bytes <= 0 {
		return 0, 0
	}
	return events, bytes
}

// add appends a row to a batch that is not in flight yet. size is what it counts in the window.
func (s *sent) add(r *outbox.Row, size int, keyed bool, bucket uint8) {
	n := row{order: r.Order, size: int32(min(size, math.MaxInt32)), noKey: len(r.Event.Key) == 0, keyed: keyed, bucket: bucket}
	for _, v := range r.Unique {
		n.noID = n.noID || v == nil
		s.data = append(s.data, v...)
		s.ends = append(s.ends, uint32(len(s.data)))
	}
	s.data = append(s.data, r.Event.Key...)
	s.ends = append(s.ends, uint32(len(s.data)))
	s.rows = append(s.rows, n)
	if r.Event.HasTime {
		s.oldest = min(s.oldest, r.Event.TimeMicro)
	}
}

// take brings a batch into flight and gives it its numbers, before it is sent: the answer may come before Send returns.
func (f *flight) take(s *sent) {
	s.first, s.open = f.next, len(s.rows)
	f.next += uint64(len(s.rows))
	f.sent = append(f.sent, s)
	f.events += len(s.rows)
	for i := range s.rows {
		f.bytes += int(s.rows[i].size)
		f.inBucket[s.rows[i].bucket]++
		if s.rows[i].keyed {
			f.keyed++
		}
		if f.hashes != nil {
			f.hashes[f.hash(f.values(s, i))] = struct{}{}
		}
	}
}

// value k of row i: what identifies it (k < unique), or its key.
func (f *flight) value(s *sent, i, k int) []byte {
	n := i*(f.unique+1) + k
	start := uint32(0)
	if n > 0 {
		start = s.ends[n-1]
	}
	return s.data[start:s.ends[n]:s.ends[n]]
}

func (f *flight) key(s *sent, i int) []byte { return f.value(s, i, f.unique) }

func (f *flight) values(s *sent, i int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for k := range f.unique {
			if !yield(f.value(s, i, k)) {
				return
			}
		}
	}
}

// hash of what identifies a row. That two open rows have the same one is next to impossible, and would only delay one
// of them to the next round.
func (f *flight) hash(values func(yield func([]byte) bool)) uint64 {
	var h maphash.Hash
	h.SetSeed(f.seed)
	for v := range values {
		_, _ = h.Write(v)
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// beginRead is called before a read whose rows are asked for with has.
func (f *flight) beginRead() { clear(f.gone) }

// has reports whether the row is open or was when the read began, by its hash.
func (f *flight) has(unique [][]byte) bool {
	h := f.hash(slices.Values(unique))
	_, open := f.hashes[h]
	_, gone := f.gone[h]
	return open || gone
}

// ack marks numbers as settled: their rows are to be deleted.
func (f *flight) ack(ranges []sdk.SeqRange) error {
	return f.each("acked", ranges, func(s *sent, i int) {
		s.rows[i].state = rowAcked
		f.acked = append(f.acked, ref{s, i})
	})
}

// giveBack ends numbers whose rows stay, and calls was for each of them.
func (f *flight) giveBack(ranges []sdk.SeqRange, was func(s *sent, i int)) error {
	return f.each("returned", ranges, func(s *sent, i int) {
		was(s, i)
		f.end(s, i)
	})
}

// each visits open numbers. I6: anything else ends the attempt.
func (f *flight) each(what string, ranges []sdk.SeqRange, visit func(s *sent, i int)) error {
	for _, r := range ranges {
		for n := r.First; n <= r.Last; {
			at, ok := slices.BinarySearchFunc(f.sent, n, func(s *sent, n uint64) int {
				switch {
				case s.first > n:
					return 1
				case s.first+uint64(len(s.rows)) <= n:
					return -1
				}
				return 0
			})
			if !ok {
				return fmt.Errorf("protocol: number %d was %s, which is not open", n, what)
			}
			s := f.sent[at]
			for ; n <= r.Last && n < s.first+uint64(len(s.rows)); n++ {
				i := int(n - s.first)
				if s.rows[i].state != rowOpen {
					return fmt.Errorf("protocol: number %d was %s, which is not open", n, what)
				}
				visit(s, i)
			}
			if s.open == 0 {
				f.sweep()
			}
		}
	}
	return nil
}

// takeAcked hands over what is to be deleted; it stays in the window until ended is called. buf is used for the answer.
func (f *flight) takeAcked(buf []ref) []ref {
	buf = append(buf[:0], f.acked...)
	f.acked = f.acked[:0]
	return buf
}

// ended takes rows out of the window: their delete is committed.
func (f *flight) ended(refs []ref) {
	for _, r := range refs {
		if r.s.rows[r.i].noID && !f.byOrder {
			f.leftOut[r.s.rows[r.i].order] = struct{}{}
		}
		f.end(r.s, r.i)
	}
	f.sweep()
}

func (f *flight) end(s *sent, i int) {
	r := &s.rows[i]
	r.state = rowEnded
	s.open--
	f.events--
	f.bytes -= int(r.size)
	f.inBucket[r.bucket]--
	if r.keyed {
		f.keyed--
	}
	if f.hashes != nil {
		h := f.hash(f.values(s, i))
		delete(f.hashes, h)
		f.gone[h] = struct{}{}
	}
}

// unended yields every row that has not left the window.
func (f *flight) unended(yield func(s *sent, i int) bool) {
	for _, s := range f.sent {
		for i := range s.rows {
			if s.rows[i].state != rowEnded && !yield(s, i) {
				return
			}
		}
	}
}

// sweep forgets batches without open rows.
func (f *flight) sweep() {
	f.sent = slices.DeleteFunc(f.sent, func(s *sent) bool { return s.open == 0 })
}

// oldest is the earliest time of what is in flight; MaxInt64: none.
func (f *flight) oldest() int64 {
	t := int64(math.MaxInt64)
	for _, s := range f.sent {
		t = min(t, s.oldest)
	}
	return t
}

package main

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBoundWaitsForOwnDelete(t *testing.T) {
	t.Parallel()
	var b bound
	b.read(0, 100, 10, true, false)
	require.False(t, b.set, "no delete yet")
	b.removed(b.high, 105)
	b.read(0, 104, 20, true, false)
	require.False(t, b.set, "a transaction from before the delete may be open")
	b.read(0, 105, 30, true, false)
	require.True(t, b.set)
	require.EqualValues(t, 10, b.floor)
}

func TestBoundStopsAtTheEndOfAFullRead(t *testing.T) {
	t.Parallel()
	var b bound
	b.read(0, 1, 100, true, true)
	b.removed(100, 5)
	b.read(0, 9, 40, true, true)
	require.EqualValues(t, 40, b.floor)
}

func TestBoundIsNotRaisedByAReadFromBeforeItWasLowered(t *testing.T) {
	t.Parallel()
	var b bound
	b.read(0, 1, 100, true, false)
	b.removed(100, 5)
	b.read(b.lowered, 9, 110, true, false)
	require.EqualValues(t, 100, b.floor)
	b.removed(110, 12)
	before := b.lowered
	b.lower(50)
	require.EqualValues(t, 49, b.floor)
	b.read(before, 20, 120, true, false)
	require.EqualValues(t, 49, b.floor)
	b.read(b.lowered, 20, 120, true, false)
	require.EqualValues(t, 110, b.floor)
}

func TestBoundForgetsDeletesInTheMiddle(t *testing.T) {
	t.Parallel()
	var b bound
	for i := range int64(10 * maxBoundRemovals) {
		b.removed(i+1, uint64(100+i))
	}
	require.Len(t, b.removals, maxBoundRemovals)
	require.True(t, slices.IsSortedFunc(b.removals, func(x, y boundRemoval) int { return cmp.Compare(x.xid, y.xid) }))
	require.EqualValues(t, 1, b.removals[0].f, "the oldest stays: it is the first to come true")
}

// A world of transactions that lock a key, take a number and commit in any order, and a reader that obeys the bound:
// no row is ever left below it, and no key is reordered.
func TestBoundModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type tx struct {
			xid, key int
			rows     []int64
		}
		type committed struct {
			seq int64
			key int
		}
		var (
			b       bound
			xid     = 100
			seq     int64
			open    []*tx
			table   []committed
			flight  = map[int64]bool{}
			last    = map[int]int64{}
			waiting []struct { // a delete that has begun
				f    int64
				xid  int
				rows []int64
			}
			locked = map[int]bool{}
		)
		xmin := func() uint64 {
			m := xid + 1
			for _, o := range open {
				m = min(m, o.xid)
			}
			for _, w := range waiting {
				m = min(m, w.xid)
			}
			return uint64(m)
		}
		commit := func(i int) {
			o := open[i]
			open = slices.Delete(open, i, i+1)
			delete(locked, o.key)
			for _, s := range o.rows {
				table = append(table, committed{s, o.key})
			}
		}
		actions := []func(){
			func() { // begin: lock the key, which takes the xid
				key := rapid.IntRange(1, 3).Draw(t, "key")
				if locked[key] {
					return
				}
				locked[key] = true
				xid++
				open = append(open, &tx{xid: xid, key: key})
			},
			func() { // insert
				if len(open) == 0 {
					return
				}
				o := open[rapid.IntRange(0, len(open)-1).Draw(t, "tx")]
				seq++
				o.rows = append(o.rows, seq)
			},
			func() { // commit
				if len(open) == 0 {
					return
				}
				commit(rapid.IntRange(0, len(open)-1).Draw(t, "tx"))
			},
			func() { // read
				limit := rapid.IntRange(1, 4).Draw(t, "limit")
				slices.SortFunc(table, func(a, b committed) int { return cmp.Compare(a.seq, b.seq) })
				n, high := 0, int64(math.MinInt64)
				for _, c := range table {
					if n == limit {
						break
					}
					if flight[c.seq] || b.set && c.seq <= b.floor {
						continue
					}
					n, high = n+1, c.seq
					flight[c.seq] = true
					if last[c.key] > c.seq {
						t.Fatalf("key %d: %d read after %d", c.key, c.seq, last[c.key])
					}
					last[c.key] = c.seq
				}
				b.read(b.lowered, xmin(), high, n > 0, n == limit)
				for _, c := range table {
					if b.set && c.seq <= b.floor && !flight[c.seq] {
						t.Fatalf("%d is below the bound %d and was not read", c.seq, b.floor)
					}
				}
				for _, o := range open {
					for _, s := range o.rows {
						if b.set && s <= b.floor {
							t.Fatalf("%d is below the bound %d and not committed", s, b.floor)
						}
					}
				}
			},
			func() { // delete begins
				if len(waiting) > 0 {
					return // one at a time
				}
				var rows []int64
				for s := range flight {
					rows = append(rows, s)
				}
				if len(rows) == 0 {
					return
				}
				slices.Sort(rows)
				rows = rows[:rapid.IntRange(1, len(rows)).Draw(t, "rows")]
				xid++
				waiting = append(waiting, struct {
					f    int64
					xid  int
					rows []int64
				}{b.high, xid, rows})
			},
			func() { // delete commits
				if len(waiting) == 0 {
					return
				}
				w := waiting[0]
				waiting = nil
				for _, s := range w.rows {
					delete(flight, s)
					table = slices.DeleteFunc(table, func(c committed) bool { return c.seq == s })
				}
				b.removed(w.f, uint64(w.xid))
			},
		}
		for range 200 {
			rapid.SampledFrom(actions).Draw(t, "action")()
		}
	})
}

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

func newSent(_ require.TestingT, orders ...int64) *sent {
	s := &sent{oldest: math.MaxInt64}
	for _, o := range orders {
		r := outbox.Row{Order: o, Unique: [][]byte{fmt.Append(nil, "id-", o), []byte("p")}}
		r.Event.Key = fmt.Append(nil, "k", o%3)
		s.add(&r, 10, false, uint8(o%64))
	}
	return s
}

func all(int64) bool { return true }

func leftOut(f *flight, above func(int64) bool) string {
	var o orders
	f.orders(&o, above)
	return string(o.ranges) + " " + string(o.singles)
}

func numbersFrom(from, to int64) (ns []int64) {
	for n := from; n < to; n++ {
		ns = append(ns, n)
	}
	return append(ns, to)
}

func TestFlightNumbersAndValues(t *testing.T) {
	t.Parallel()
	f := newFlight(sdk.Window{Events: 5, Bytes: 35}, 2, false)
	a, b := newSent(t, 10, 11, 12), newSent(t, 20)
	f.take(a)
	events, bytes := f.room()
	require.Equal(t, []int{2, 5}, []int{events, bytes})
	f.take(b)
	events, _ = f.room()
	require.Zero(t, events, "bytes are used up")
	require.EqualValues(t, 4, b.first)
	require.Equal(t, "id-11", string(f.value(a, 1, 0)))
	require.Equal(t, "p", string(f.value(a, 1, 1)))
	require.Equal(t, "k2", string(f.key(a, 1)))
	require.Equal(t, " {10,11,12,20}", leftOut(f, all))
	require.Equal(t, " {12,20}", leftOut(f, func(o int64) bool { return o > 11 }))

	require.NoError(t, f.ack([]sdk.SeqRange{{First: 2, Last: 4}}))
	require.Equal(t, 4, f.events, "acked rows stay until they are deleted")
	require.Error(t, f.ack([]sdk.SeqRange{{First: 2, Last: 2}}))
	refs := f.takeAcked(nil)
	require.Len(t, refs, 3)
	f.ended(refs)
	require.Equal(t, " {10}", leftOut(f, all))
	require.Error(t, f.ack([]sdk.SeqRange{{First: 5, Last: 5}}), "never sent")
	require.NoError(t, f.giveBack([]sdk.SeqRange{{First: 1, Last: 1}}, func(s *sent, i int) { require.EqualValues(t, 10, s.rows[i].order) }))
	require.Zero(t, f.events)
	require.Zero(t, f.bytes)
	require.Empty(t, f.sent)
	require.Equal(t, " ", leftOut(f, all))
}

// Long runs are ranges; what is shorter is cheaper as a list.
func TestFlightRunsOfNumbers(t *testing.T) {
	t.Parallel()
	f := newFlight(sdk.Window{Events: 500, Bytes: 10000}, 2, false)
	f.take(newSent(t, 1, 3))
	f.take(newSent(t, numbersFrom(10, 10+minRun-2)...))
	f.take(newSent(t, numbersFrom(100, 100+minRun-1)...))
	f.take(newSent(t, 500))
	f.take(newSent(t, numbersFrom(math.MaxInt64-minRun, math.MaxInt64)...))
	list := "{1,3"
	for n := 10; n <= 10+minRun-2; n++ {
		list += fmt.Sprint(",", n)
	}
	require.Equal(t, fmt.Sprintf("{[100,%d),[%d,)} %s,500}", 100+minRun, math.MaxInt64-minRun, list), leftOut(f, all))
}

// Whatever the host ends in whatever order, the counts agree with what is open.
func TestFlightModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := newFlight(sdk.Window{Events: 1 << 20, Bytes: 1 << 30}, 2, true)
		open, acked := map[uint64]int64{}, map[uint64]int64{}
		order := int64(0)
		for range 60 {
			switch rapid.IntRange(0, 3).Draw(t, "action") {
			case 0:
				var orders []int64
				for range rapid.IntRange(1, 5).Draw(t, "rows") {
					order += int64(rapid.IntRange(1, 2).Draw(t, "gap"))
					orders = append(orders, order)
				}
				s := newSent(t, orders...)
				f.take(s)
				for i, o := range orders {
					open[s.first+uint64(i)] = o
				}
			case 1, 2:
				back := rapid.Bool().Draw(t, "back")
				var rs []sdk.SeqRange
				for n := uint64(1); n < f.next; n++ {
					if _, ok := open[n]; !ok || !rapid.Bool().Draw(t, "end") {
						continue
					}
					if k := len(rs); k > 0 && rs[k-1].Last == n-1 {
						rs[k-1].Last = n
					} else {
						rs = append(rs, sdk.SeqRange{First: n, Last: n})
					}
					if !back {
						acked[n] = open[n]
					}
					delete(open, n)
				}
				if back {
					require.NoError(t, f.giveBack(rs, func(*sent, int) {}))
				} else {
					require.NoError(t, f.ack(rs))
				}
			case 3:
				refs := f.takeAcked(nil)
				require.Len(t, refs, len(acked))
				f.ended(refs)
				clear(acked)
			}
			n := len(open) + len(acked)
			require.Equal(t, n, f.events)
			require.Equal(t, 10*n, f.bytes)
			require.Len(t, f.hashes, n)
			in := map[int64]bool{}
			for _, m := range []map[uint64]int64{open, acked} {
				for _, o := range m {
					in[o] = true
				}
			}
			var out orders
			f.orders(&out, all)
			require.Empty(t, out.ranges)
			listed := strings.Split(strings.Trim(string(out.singles), "{}"), ",")
			total := int32(0)
			for _, k := range f.inBucket {
				total += k
			}
			require.EqualValues(t, n, total)
			for o := int64(1); o <= order; o++ {
				require.Equal(t, in[o], slices.Contains(listed, fmt.Sprint(o)), "number %d", o)
			}
		}
	})
}

func TestPace(t *testing.T) {
	t.Parallel()
	p := pace{longest: 250e6, wait: pollMin}
	now := p.last
	require.Equal(t, pollMin, p.next(now, true))
	waited := pollMin
	for waited < 250e6 {
		now = now.Add(waited)
		next := p.next(now, false)
		require.LessOrEqual(t, next, max(pollMin, now.Sub(p.last)/4), "the next event does not pay for the wait so far")
		waited = next
	}
	require.Less(t, now.Sub(p.last).Seconds(), 8.0)
	require.Equal(t, pollMin, p.next(now, true))
}

package sdk

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// TestEndsAgainstModel ends numbers at random and takes news at random, and holds what a host makes of the news against
// a map.
func TestEndsAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var e ends
		open := map[uint64]bool{}
		want := map[uint64]string{} // ended
		heard := map[uint64]string{}
		last := uint64(0)
		hear := func(seq uint64, what string) {
			require.Empty(t, heard[seq], "number %d ends twice", seq)
			require.Equal(t, want[seq], what, "number %d", seq)
			heard[seq] = what
		}
		take := func() {
			n := e.take()
			if n.ack != nil {
				require.True(t, n.ack.GetThroughSeq() > 0 || len(n.ack.GetRanges()) > 0, "an empty ack")
				for seq := uint64(1); seq <= n.ack.GetThroughSeq(); seq++ {
					if heard[seq] == "" {
						hear(seq, "acked")
					}
				}
				for _, r := range n.ack.GetRanges() {
					require.Greater(t, r.GetFirst(), n.ack.GetThroughSeq())
					for seq := r.GetFirst(); seq <= r.GetLast(); seq++ {
						hear(seq, "acked")
					}
				}
			}
			for _, f := range n.failures {
				hear(f.GetSeq(), "failed")
			}
			for _, r := range n.returned {
				for seq := r.GetFirst(); seq <= r.GetLast(); seq++ {
					hear(seq, "returned")
				}
			}
			require.Equal(t, want, heard, "everything is told")
		}
		pick := rapid.Custom(func(t *rapid.T) uint64 {
			near := rapid.Uint64Range(0, 20).Draw(t, "from the end")
			if rapid.Bool().Draw(t, "low") {
				return e.told + near
			}
			return last + 2 - min(near, last+2)
		})
		end := func(t *rapid.T, what string, f func(uint64) bool) {
			seq := pick.Draw(t, "seq")
			require.Equal(t, open[seq], f(seq), "number %d", seq)
			if open[seq] {
				delete(open, seq)
				want[seq] = what
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(1, 300)).Draw(t, "n")
				e.arrive(n)
				for range n {
					last++
					open[last] = true
				}
			},
			"ack":    func(t *rapid.T) { end(t, "acked", e.ack) },
			"return": func(t *rapid.T) { end(t, "returned", e.giveBack) },
			"fail": func(t *rapid.T) {
				end(t, "failed", func(seq uint64) bool { return e.fail(&pluginv1.Failure{Seq: seq}) })
			},
			"ack all": func(*rapid.T) {
				for seq := range open {
					require.True(t, e.ack(seq))
					want[seq] = "acked"
				}
				clear(open)
			},
			"take": func(*rapid.T) { take() },
		})
		take()
		if len(open) == 0 {
			require.Equal(t, last, e.told)
		}
	})
}

// TestEndsThroughSeqStopsBeforeFailures is the case that a prefix must not swallow: 1 and 3 are acked, 2 fails, and the
// host hears of the acks first.
func TestEndsThroughSeqStopsBeforeFailures(t *testing.T) {
	t.Parallel()
	var e ends
	e.arrive(4)
	require.True(t, e.ack(1))
	require.True(t, e.fail(&pluginv1.Failure{Seq: 2}))
	require.True(t, e.ack(3))
	n := e.take()
	require.Equal(t, uint64(1), n.ack.GetThroughSeq())
	require.Len(t, n.ack.GetRanges(), 1)
	require.Equal(t, uint64(3), n.ack.GetRanges()[0].GetFirst())
	require.True(t, e.ack(4))
	require.Equal(t, uint64(4), e.take().ack.GetThroughSeq(), "with the failure told, the prefix is whole")
}

// TestEndsStaysSmall runs a long stream through a small window.
func TestEndsStaysSmall(t *testing.T) {
	t.Parallel()
	var e ends
	for seq := uint64(1); seq < 1<<20; seq += 100 {
		e.arrive(100)
		for i := range uint64(100) {
			require.True(t, e.ack(seq+i))
		}
		e.take()
	}
	require.LessOrEqual(t, len(e.open.words), 16)
}

func TestEndsAcknowledgesWithoutAllocating(t *testing.T) {
	var e ends
	e.arrive(1000)
	e.take()
	require.Zero(t, testing.AllocsPerRun(10, func() {
		e.arrive(1000)
		for seq := e.last - 999; seq <= e.last; seq++ {
			e.ack(seq)
		}
		e.acked.clear(e.told+1, e.last)
		e.told = e.last
	}))
}

package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestFeedKeepsOrder holds, gives back and releases keys at random, as a host may, and looks at what each key's events
// come to: each number once for each time that it was given back, in order within the key.
func TestFeedKeepsOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.Uint64Range(0, 4).Draw(t, "keys")
		const end = 40
		f := &feed{keys: keys, end: end, cursor: 1, held: map[string]*stash{}}
		out := map[string][]uint64{} // by unit: delivered and not given back, in order
		take := func() bool {
			n, ok := f.next()
			if ok {
				u := f.unit(n)
				require.Nil(t, f.held[u], "event %d of a held key", n)
				out[u] = append(out[u], n)
			}
			return ok
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(*rapid.T) { take() },
			"hold": func(t *rapid.T) {
				n := rapid.Uint64Range(1, end).Draw(t, "of")
				u := f.unit(n)
				if f.held[u] != nil || len(out[u]) == 0 {
					t.Skip("nothing to hold")
				}
				f.hold(u)
				// All behind a head goes back, in any order of messages.
				head := rapid.IntRange(0, len(out[u])).Draw(t, "head")
				tail := slices.Clone(out[u][head:])
				out[u] = out[u][:head]
				for _, e := range rapid.Permutation(tail).Draw(t, "returned") {
					f.giveBack(e)
				}
			},
			"release": func(t *rapid.T) {
				n := rapid.Uint64Range(1, end).Draw(t, "of")
				f.release(f.unit(n))
			},
		})
		for n := uint64(1); n <= end; n++ {
			f.release(f.unit(n))
		}
		for take() {
		}
		total := 0
		for u, events := range out {
			require.True(t, slices.IsSorted(events), "%s: %v", u, events)
			require.Equal(t, len(events), len(slices.Compact(slices.Clone(events))), "%s: %v", u, events)
			total += len(events)
		}
		require.Equal(t, end, total)
	})
}

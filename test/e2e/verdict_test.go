package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Everything here rests on compare: it must see each kind of wrong, and nothing else.
func TestCompare(t *testing.T) {
	t.Parallel()
	a1, a2, a3 := delivery{id: "a1", key: 1, n: 1}, delivery{id: "a2", key: 1, n: 2}, delivery{id: "a3", key: 1, n: 3}
	b1, none := delivery{id: "b1", key: 2, n: 1}, delivery{id: "x"}
	committed := map[string]delivery{"a1": a1, "a2": a2, "a3": a3, "b1": b1, "x": none}
	for name, c := range map[string]struct {
		got                      []delivery
		discarded                []string
		lost, invented, disorder int
	}{
		"all well":                 {got: []delivery{a1, none, b1, a2, a3}},
		"a whole suffix again":     {got: []delivery{a1, a2, a1, a2, a3, b1, none}},
		"lost":                     {got: []delivery{a1, a2, b1, none}, lost: 1},
		"discarded":                {got: []delivery{a1, a3, b1, none}, discarded: []string{"a2"}},
		"never committed":          {got: []delivery{a1, a2, {id: "ghost", key: 1, n: 3}, a3, b1, none}, invented: 1},
		"another key":              {got: []delivery{{id: "a1", key: 2, n: 1}, a2, a3, b1, none}, invented: 1},
		"a later one first":        {got: []delivery{a2, a1, a3, b1, none}, disorder: 1},
		"a later one first, again": {got: []delivery{a1, a3, a2, a3, b1, none}, disorder: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := compare(committed, c.got, c.discarded...)
			require.Len(t, w.lost, c.lost)
			require.Len(t, w.invented, c.invented)
			require.Len(t, w.disorder, c.disorder)
		})
	}
}

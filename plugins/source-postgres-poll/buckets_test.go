package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relevo-io/relevo/internal/outbox"
)

// locks is a model of the server's locks, and of relays that look at them at any time and act on what they saw later.
type locks struct {
	t      *rapid.T
	owner  [outbox.Buckets]int32
	relays map[int32]*modelRelay
	moved  int // buckets that were unlocked
}

type modelRelay struct {
	owned, giving buckets
	saw           *outlook // not acted on yet
}

func (m *locks) pids() []int32 {
	var pids []int32
	for pid := range m.relays {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids
}

func (m *locks) join(pid int32) { m.relays[pid] = &modelRelay{} }

// end is what the server does with a session that ends, and what unlocking everything does.
func (m *locks) end(pid int32) {
	for b, p := range m.owner {
		if p == pid {
			m.owner[b] = 0
		}
	}
	delete(m.relays, pid)
}

func (m *locks) look(pid int32) {
	m.relays[pid].saw = &outlook{me: pid, relays: m.pids(), owner: m.owner}
}

// act does what share.look does with what was seen.
func (m *locks) act(pid int32, pinned buckets) {
	r := m.relays[pid]
	if r.saw == nil {
		return
	}
	o := r.saw
	r.saw = nil
	o.owner = m.own(pid, o.owner) // nobody else locks or unlocks ours
	r.giving = choose(o.surplus(), r.owned, r.giving, pinned)
	if o.surplus() > 0 {
		return
	}
	for b := range o.take().each {
		if m.owner[b] == 0 { // else another one was faster
			m.owner[b] = pid
			r.owned |= 1 << b
		}
	}
}

// own is what was seen, with what is true of our own buckets: between the look and the act nothing of ours is done.
func (m *locks) own(pid int32, saw [outbox.Buckets]int32) [outbox.Buckets]int32 {
	for b, p := range saw {
		if (p == pid) != m.relays[pid].owned.has(b) {
			saw[b] = m.owner[b]
		}
	}
	return saw
}

// drain unlocks what is being given.
func (m *locks) drain(pid int32, s buckets) {
	r := m.relays[pid]
	for b := range (s & r.giving).each {
		require.Equal(m.t, pid, m.owner[b], "unlocks what is not its own")
		m.owner[b] = 0
		m.moved++
	}
	r.owned, r.giving = r.owned&^(s&r.giving), r.giving&^s
}

// settle lets everybody look and act in turn until nothing changes.
func (m *locks) settle() {
	for round := range 8 {
		before := m.owner
		for _, pid := range m.pids() {
			m.look(pid)
			m.act(pid, 0)
			m.drain(pid, allBuckets)
		}
		if m.owner == before && round > 0 {
			break
		}
	}
	m.check()
	if len(m.relays) == 0 {
		return
	}
	o := outlook{relays: m.pids(), owner: m.owner}
	require.Zero(m.t, o.of(0), "buckets that nobody has")
	low, high, remainder := o.share()
	atHigh := 0
	for _, n := range o.counts() {
		require.True(m.t, n == low || n == high, "%d buckets of %d to %d", n, low, high)
		if n > low {
			atHigh++
		}
	}
	require.Equal(m.t, remainder, atHigh)
}

// check: each bucket that a relay believes to have is its own.
func (m *locks) check() {
	for pid, r := range m.relays {
		if (&outlook{owner: m.owner}).of(pid) != r.owned || r.giving&^r.owned != 0 {
			m.t.Fatalf("relay %d believes to have %064b and gives %064b: %v", pid, r.owned, r.giving, m.owner)
		}
	}
}

// Whatever the order in which relays come, go and look, no bucket has two owners, and once all is quiet each relay has its
// share and no bucket is left.
func TestSharesSettle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &locks{t: t, relays: map[int32]*modelRelay{}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			action := rapid.IntRange(0, 9).Draw(t, "action")
			if action < 2 || len(m.relays) == 0 {
				m.join(int32(rapid.IntRange(1, 1000).Filter(func(n int) bool { return m.relays[int32(n)] == nil }).Draw(t, "pid")))
				continue
			}
			pid := rapid.SampledFrom(m.pids()).Draw(t, "who")
			switch {
			case action == 2:
				m.end(pid)
			case action < 6:
				m.look(pid)
			case action < 8:
				m.act(pid, buckets(rapid.Uint64().Draw(t, "pinned"))&buckets(rapid.Uint64().Draw(t, "pinned too")))
			default:
				m.drain(pid, buckets(rapid.Uint64().Draw(t, "drained")))
			}
			m.check()
		}
		m.settle()
	})
}

// From one rest to the next no more moves than must: a newcomer gets its share and nothing else moves, and what a relay
// leaves goes to the others, who keep what they have.
func TestSharesMoveLittle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &locks{t: t, relays: map[int32]*modelRelay{}}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			before := m.owner
			m.moved = 0
			if len(m.relays) < 2 || rapid.Bool().Draw(t, "join") {
				pid := int32(rapid.IntRange(1, 1000).Filter(func(n int) bool { return m.relays[int32(n)] == nil }).Draw(t, "pid"))
				m.join(pid)
				m.settle()
				if len(m.relays) > 1 {
					require.Equal(t, m.relays[pid].owned.count(), m.moved)
				}
				continue
			}
			pid := rapid.SampledFrom(m.pids()).Draw(t, "who")
			m.end(pid)
			m.settle()
			for b, p := range before {
				if p != pid && p != m.owner[b] {
					t.Fatalf("bucket %d went from %d to %d when %d left", b, p, m.owner[b], pid)
				}
			}
		}
	})
}

func TestChoose(t *testing.T) {
	t.Parallel()
	const owned = buckets(0b11111)
	for range 100 {
		require.Equal(t, 2, choose(2, owned, 0, 0).count())
		require.Zero(t, choose(2, owned, 0, 0)&^owned)
		require.True(t, choose(2, owned, 0b00100, 0).has(2), "one that is being given already")
		require.False(t, choose(4, owned, 0b10000, 0b10000).has(4), "not a pinned one")
	}
	require.Equal(t, buckets(0b00100), choose(1, owned, 0b00100, 0))
	require.Equal(t, buckets(0b00001), choose(9, owned, 0, 0b11110), "no more than there are")
	require.Zero(t, choose(0, owned, owned, 0))
}

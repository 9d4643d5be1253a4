package pipeline

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// ledgerRig is a ledger whose plugins are open, and what it has said since it was last asked.
type ledgerRig struct {
	*Ledger
	t *testing.T
}

func newLedgerRig(t *testing.T, holdsKeys, positions bool, keepsOrder ...bool) *ledgerRig {
	l := NewLedger(Rules{WindowEvents: 1000, WindowBytes: 64 << 20, DownAfter: 4, Sinks: make([]SinkRules, len(keepsOrder))}, nil, nil)
	for i, k := range keepsOrder {
		l.OnSinkOpened(i, k)
	}
	l.OnSourceOpened(holdsKeys, positions)
	l.Take()
	return &ledgerRig{l, t}
}

// read takes a batch in: an event for each key; its id is key and number.
func (r *ledgerRig) read(position string, keys ...string) {
	r.t.Helper()
	require.NoError(r.t, r.OnBatch(r.batch(position, 0, keys...)))
}

func (r *ledgerRig) batch(position string, size int, keys ...string) *wire.Batch {
	var b wire.Builder
	for i, k := range keys {
		b.Add(&wire.Event{ID: fmt.Sprintf("%s%d", k, r.nextSeq+uint64(i)), Key: []byte(k), Payload: make([]byte, size)})
	}
	return parse(b.Response(r.nextSeq, []byte(position)))
}

// said is what the ledger wants done, a line each.
func (r *ledgerRig) said() string {
	var lines []string
	for _, o := range r.Take() {
		who := "source"
		if o.To >= 0 {
			who = fmt.Sprintf("sink%d", o.To)
		}
		switch m := o.Msg.(type) {
		case Deliver:
			b := parse(m.Batch.Request())
			var ids []string
			for k := range b.Len() {
				id, _, err := wire.IDAndKey(b.Raw(k))
				require.NoError(r.t, err)
				ids = append(ids, string(id))
			}
			lines = append(lines, fmt.Sprintf("%s gets %d: %s", who, b.FirstSeq, strings.Join(ids, " ")))
		case SourceAck:
			lines = append(lines, fmt.Sprintf("%s ack %d %v %s", who, m.ThroughSeq, fromRanges(m.Ranges), m.Position))
		case Hold:
			lines = append(lines, fmt.Sprintf("%s hold %s returned %v", who, m.Keys, fromRanges(m.Returned)))
		case Release:
			lines = append(lines, fmt.Sprintf("%s release %s", who, m.Keys))
		case StorePosition:
			lines = append(lines, fmt.Sprintf("store %s through %d", m.Position, m.Through))
		case RetryLater:
			lines = append(lines, fmt.Sprintf("retry %s at sink%d, attempt %d", m.EventID, m.Sink, m.Attempts))
		default:
			lines = append(lines, fmt.Sprintf("%T", m))
		}
	}
	return strings.Join(lines, "\n")
}

func (r *ledgerRig) ack(i int, ns ...int) {
	r.t.Helper()
	require.NoError(r.t, r.OnAck(i, 0, toRanges(ns)))
}

func (r *ledgerRig) fail(i, n int) {
	r.t.Helper()
	require.NoError(r.t, r.OnFailure(i, &pluginv1.Failure{Seq: uint64(n), Class: pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, Code: "no"}))
}

// Acks in any order, and several in one, move the position only over the settled prefix.
func TestPositionFollowsTheSettledPrefix(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t, false, true, true)
	r.read("p1", "a")
	r.read("p2", "b")
	r.read("p3", "c", "d")
	require.Equal(t, "sink0 gets 1: a1\nsink0 gets 2: b2\nsink0 gets 3: c3 d4", r.said())
	r.ack(0, 3)
	require.Empty(t, r.said(), "the first is open")
	r.ack(0, 1)
	require.Equal(t, "store p1 through 1", r.said(), "never half a batch, never beyond a gap")
	r.ack(0, 2, 4)
	require.Empty(t, r.said(), "one write at a time")
	r.OnStored(StorePosition{[]byte("p1"), 1})
	require.Equal(t, "source ack 1 [] p1\nstore p3 through 4", r.said(), "I2: durable first; the next takes all there is")
	r.OnStored(StorePosition{[]byte("p3"), 4})
	require.Equal(t, "source ack 4 [] p3", r.said())
	require.Zero(t, r.events)
	require.Zero(t, r.bytes)
}

// The first of three is refused: the others are not at the broker while it is, and all follow in order once it is not.
func TestNothingPassesARefusedEvent(t *testing.T) {
	t.Parallel()
	for _, keepsOrder := range []bool{true, false} {
		t.Run(fmt.Sprint("keeps_order=", keepsOrder), func(t *testing.T) {
			t.Parallel()
			r := newLedgerRig(t, true, false, keepsOrder)
			r.read("", "k", "k", "k", "other")
			if keepsOrder {
				require.Equal(t, "sink0 gets 1: k1 k2 k3 other4", r.said())
				r.fail(0, 1)
				require.NoError(t, r.OnReturned(0, toRanges([]int{2, 3})))
				r.ack(0, 4)
				require.Equal(t, "retry k1 at sink0, attempt 1\nsource ack 0 [4] ", r.said())
				r.read("", "k")
				require.Empty(t, r.said())
				r.OnRetryDue(0, r.LaneOf([]byte("k"), ""), 1)
				require.Equal(t, "sink0 release [k]\nsink0 gets 5: k1 k2 k3 k5", r.said())
				return
			}
			require.Equal(t, "sink0 gets 1: k1 other4", r.said())
			r.fail(0, 1)
			r.ack(0, 2)
			require.Equal(t, "retry k1 at sink0, attempt 1\nsource ack 0 [4] ", r.said())
			lane := r.LaneOf([]byte("k"), "")
			r.OnRetryDue(0, lane, 7)
			require.Empty(t, r.said(), "the timer of another attempt")
			for i, want := range []string{"sink0 gets 3: k1", "source ack 0 [1] \nsink0 gets 4: k2", "source ack 0 [2] \nsink0 gets 5: k3"} {
				if i == 0 {
					r.OnRetryDue(0, lane, 1)
				} else {
					r.ack(0, 2+i)
				}
				require.Equal(t, want, r.said())
			}
		})
	}
}

// A held key: its head stays and is tried again, what is behind it goes back, and it is read again after the head.
func TestHoldAndRelease(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t, true, false, true)
	r.read("", "k", "k", "k")
	r.fail(0, 1)
	require.NoError(t, r.OnReturned(0, toRanges([]int{2, 3})))
	r.said()
	lane := r.LaneOf([]byte("k"), "")
	r.OnFailingLong(0, lane, 1)
	require.Equal(t, "source hold [k] returned []\nsource hold [] returned [2 3]", r.said())
	require.Equal(t, 1, r.events, "the head alone fills the window")
	r.read("", "k", "x")
	require.Equal(t, "source hold [] returned [4]\nsink0 gets 4: x5", r.said(), "on its way when the Hold was sent")
	r.OnRetryDue(0, lane, 1)
	require.Equal(t, "sink0 release [k]\nsink0 gets 5: k1", r.said())
	r.ack(0, 5)
	require.Equal(t, "source ack 0 [1] ", r.said(), "no release before the source has answered Held")
	r.OnHeld([][]byte{[]byte("k")}, nil)
	require.Equal(t, "source release [k]", r.said())
}

// What a correct plugin cannot say is an error, and changes nothing that was promised (I3, I6, I7).
func TestProtocolErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keepsOrder bool
		say        func(r *ledgerRig) error
		want       string
	}{
		"ack of what was never sent": {true, func(r *ledgerRig) error { return r.OnAck(0, 9, nil) }, "ack through 9, the last number sent is 3"},
		"ack twice": {true, func(r *ledgerRig) error {
			r.ack(0, 1)
			return r.OnAck(0, 0, toRanges([]int{1}))
		}, "ack of number 1, which has ended already"},
		"ack before an earlier one of the key": {
			true, func(r *ledgerRig) error { return r.OnAck(0, 0, toRanges([]int{2})) },
			"ack of number 2 before number 1 of the same key",
		},
		"ack behind a failure of the key": {true, func(r *ledgerRig) error {
			r.fail(0, 1)
			return r.OnAck(0, 0, toRanges([]int{2}))
		}, "ack of number 2, while an earlier event of its key has failed"},
		"ranges that go back": {true, func(r *ledgerRig) error {
			return r.OnAck(0, 0, []*pluginv1.SeqRange{{First: 3, Last: 3}, {First: 1, Last: 1}})
		}, "ack of 1 to 1 after 3"},
		"failure twice": {true, func(r *ledgerRig) error {
			r.fail(0, 1)
			return r.OnFailure(0, &pluginv1.Failure{Seq: 1})
		}, "failure of number 1, which it does not have"},
		"return without a failure": {
			true, func(r *ledgerRig) error { return r.OnReturned(0, toRanges([]int{1})) },
			"return of number 1, whose key has not failed",
		},
		"a gap between batches": {true, func(r *ledgerRig) error {
			var b wire.Builder
			b.Add(&wire.Event{ID: "x"})
			return r.OnBatch(parse(b.Response(7, nil)))
		}, "a batch starts at number 7, after 3"},
		"more than the window": {
			true, func(r *ledgerRig) error { return r.OnBatch(r.batch("", 0, make([]string, 998)...)) },
			"1001 events are open, the window is 1000",
		},
		"an event without an id": {true, func(r *ledgerRig) error {
			var b wire.Builder
			b.Add(&wire.Event{Key: []byte("k")})
			return r.OnBatch(parse(b.Response(r.nextSeq, nil)))
		}, "event 0 of the batch at 4 cannot be read, or has no id of UTF-8"},
		"progress without positions": {true, func(r *ledgerRig) error { return r.OnProgress([]byte("p")) }, "Progress from a source without positions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newLedgerRig(t, true, false, c.keepsOrder)
			r.read("", "k", "k", "x")
			r.said()
			err := c.say(r)
			require.ErrorContains(t, err, c.want)
			require.ErrorAs(t, err, new(*ProtocolError))
		})
	}
}

// I7: a batch of which little is unsettled does not keep all its memory alive, and what is left is still whole.
func TestFewSurvivorsAreCopiedOut(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t, true, false, true)
	keys := make([]string, 500)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i, "-")
	}
	require.NoError(t, r.OnBatch(r.batch("", 500, keys...)))
	whole := r.bytes
	require.Greater(t, whole, 500*500)
	r.fail(0, 250)
	for n := 1; n <= 500; n++ {
		if n != 250 {
			r.ack(0, n)
		}
	}
	require.Less(t, r.bytes, whole/4)
	require.Equal(t, 1, r.events)
	r.said()
	r.OnRetryDue(0, r.LaneOf([]byte("k249-"), ""), 1)
	require.Equal(t, "sink0 release [k249-]\nsink0 gets 501: k249-250", r.said())
	r.ack(0, 501)
	require.Zero(t, r.bytes)
}

// A number that stays out for long does not keep the numbers of everything behind it in memory (I7).
func TestOneLateNumber(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t, true, false, true)
	r.read("", "late")
	for n := 2; n < 20000; n++ {
		r.read("", "x")
		r.ack(0, n)
	}
	s := r.sinks[0]
	require.LessOrEqual(t, cap(s.ring), 20000)
	require.LessOrEqual(t, len(s.ring), 4*1000+64)
	require.Equal(t, uint64(1), s.oldest())
	r.said()
	r.ack(0, 1)
	require.Equal(t, "source ack 0 [1] ", r.said())
	require.Zero(t, s.outstanding)
}

// Transient failures that last longer than give_up_after meet the permanent policy.
func TestGiveUpAfter(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t, true, false, false)
	r.rules.GiveUpAfter = time.Minute
	r.sinks[0].DiscardPermanent = true
	start := time.Now()
	r.Clock(start)
	r.read("", "k")
	r.fail(0, 1)
	require.Contains(t, r.said(), "retry k1 at sink0, attempt 1")
	r.Clock(start.Add(61 * time.Second))
	r.OnRetryDue(0, r.LaneOf([]byte("k"), ""), 1)
	r.fail(0, 2)
	require.Contains(t, r.said(), "pipeline.StoreDiscard")
	r.OnDiscardStored(Discard{0, "k1"})
	require.Equal(t, "source ack 0 [1] ", r.said())
}

// probes are the pauses that the ledger asks for before it gives a sink that is down another event.
func (r *ledgerRig) probes() (pauses []int) {
	for _, o := range r.Take() {
		if m, ok := o.Msg.(ProbeLater); ok {
			pauses = append(pauses, m.Probes)
		}
	}
	return pauses
}

// A sink goes down with many keys at it, and each of them fails. The pause grows with the events it was given since, not
// with those.
func TestProbesOfASinkThatIsDown(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t, true, false, false)
	const keys = 50
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("key-%d-", i)
	}
	r.read("", append(names, "fresh-a-", "fresh-b-")...)
	r.Take()
	for n := range keys {
		r.fail(0, n+1)
	}
	require.Empty(t, r.probes(), "two are still at it")
	r.fail(0, keys+1)
	r.fail(0, keys+2)
	require.Equal(t, []int{0}, r.probes())
	r.read("", "new-1-", "new-2-", "new-3-")
	require.Empty(t, r.probes())
	for i := range 2 {
		r.OnProbeDue(0)
		require.Empty(t, r.probes())
		r.fail(0, keys+3+i)
		require.Equal(t, []int{i + 1}, r.probes())
	}
	r.OnProbeDue(0)
	r.Take()
	r.ack(0, keys+5)
	r.Take()
	for n := range 4 {
		require.NoError(t, r.OnBatch(r.batch("", 0, fmt.Sprintf("later-%d-", n))))
	}
	r.Take()
	for n := range 4 {
		r.fail(0, keys+6+n)
	}
	require.Equal(t, []int{0}, r.probes(), "it was up in between")
}

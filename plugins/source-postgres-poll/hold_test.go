package main

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// poison is a host whose sinks refuse the events of some keys for good: it keeps the head of each, and returns what is
// behind it.
type poison struct {
	mu   sync.Mutex
	bad  map[string]bool
	head map[string]got
}

func newPoison(keys ...string) *poison {
	p := &poison{bad: map[string]bool{}, head: map[string]got{}}
	for _, k := range keys {
		p.bad[k] = true
	}
	return p
}

func (p *poison) onBatch(r *relay, b []got) {
	var ack, back []got
	var hold []string
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range b {
		k := g.key()
		switch _, failing := p.head[k]; {
		case !p.bad[k]:
			ack = append(ack, g)
		case failing:
			back = append(back, g)
		default:
			p.head[k] = g
			hold = append(hold, k)
		}
	}
	if len(hold) > 0 || len(back) > 0 {
		r.hold(hold, nil, back...)
	}
	r.ack(ack...)
}

func (r *relay) awaitHeld(keys int) {
	r.t.Helper()
	r.await(fmt.Sprintf("%d keys held", keys), func() bool {
		n := 0
		for _, h := range r.held {
			n += len(h.GetKeys()) + len(h.GetIds())
		}
		return n >= keys
	})
}

// One key whose first event is refused for good and 100,000 contiguous rows behind it; other keys under load go on; when
// the cause is mended its rows follow in order.
func TestHeldKeyWithABacklog(t *testing.T) {
	t.Parallel()
	for name, ddl := range map[string]string{"ordered": seqDDL, "rounds": plainDDL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const behind, others = 100_000, 20_000
			d := newDB(t, ddl)
			d.exec(`INSERT INTO outbox (aggregate_id, type, payload, created_at)
				SELECT 7, 't', jsonb_build_object('n', i), now() + i * interval '1 us' FROM generate_series(1, $1::int) i`, behind)
			d.exec(`INSERT INTO outbox (aggregate_id, type, payload, created_at)
				SELECT 1000 + i % 1000, 't', jsonb_build_object('n', i), now() + interval '1 s' + i * interval '1 us' FROM generate_series(1, $1::int) i`, others)
			p := newPoison("7")
			window := &pluginv1.Window{Events: 2000, Bytes: 64 << 20}
			r := startRelay(t, d.dsn, relayOptions{onBatch: p.onBatch, window: window})
			r.awaitHeld(1)
			start := time.Now()
			r.await("the others", func() bool { return countKeys(r.got, "7", false) == others })
			t.Logf("%d events of other keys in %s", others, time.Since(start))
			eventually(t, "only the held key is left", func() bool {
				return d.int(`SELECT count(*) FROM outbox WHERE aggregate_id <> 7`) == 0
			})
			require.Equal(t, behind, d.int(`SELECT count(*) FROM outbox WHERE aggregate_id = 7`))
			require.LessOrEqual(t, countKeys(r.all(), "7", true), 2*2000, "the backlog was not read")

			// A row of the key that is written while it is held comes after the others, and not before.
			d.exec(insertN, 7, behind+1)
			d.exec(insertN, 1, 1)
			r.await("the next of another key", func() bool { return countKeys(r.got, "1", true) == 1 })

			from := len(r.all())
			p.mend(r, "7")
			r.await("the backlog", func() bool { return countKeys(r.got[from:], "7", true) == behind })
			gs := slices.DeleteFunc(r.all()[from:], func(g got) bool { return g.key() != "7" })
			inOrder(t, gs)
			require.Equal(t, 2, gs[0].n(), "the head itself was acked")
			eventually(t, "all deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
			r.drain()
		})
	}
}

// mend settles the head and releases the key.
func (p *poison) mend(r *relay, keys ...string) {
	for _, k := range keys {
		p.mu.Lock()
		p.bad[k] = false
		head := p.head[k]
		delete(p.head, k)
		p.mu.Unlock()
		r.ack(head)
	}
	r.release(keys, nil)
}

func countKeys(gs []got, key string, same bool) int {
	n := 0
	for _, g := range gs {
		if (g.key() == key) == same {
			n++
		}
	}
	return n
}

// 900 of 1,000 keys are held; the others flow; then all are released.
func TestMostKeysHeld(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	insert := func(from, to int) {
		d.exec(`INSERT INTO outbox (aggregate_id, type, payload)
			SELECT k, 't', jsonb_build_object('n', i) FROM generate_series($1::int, $2::int) i, generate_series(1, 1000) k`, from, to)
	}
	insert(1, 20)
	var bad []string
	for k := 1; k <= 900; k++ {
		bad = append(bad, fmt.Sprint(k))
	}
	p := newPoison(bad...)
	r := startRelay(t, d.dsn, relayOptions{onBatch: p.onBatch})
	r.awaitHeld(900)
	free := func(gs []got) int {
		n := 0
		for _, g := range gs {
			if len(g.key()) >= 3 && g.key() > "900" || g.key() == "1000" {
				n++
			}
		}
		return n
	}
	r.await("the free keys", func() bool { return free(r.got) == 100*20 })
	insert(21, 40)
	start := time.Now()
	r.await("the free keys again", func() bool { return free(r.got) == 100*40 })
	t.Logf("2,000 of 20,000 rows in %s", time.Since(start))
	require.Equal(t, 900*40, d.int(`SELECT count(*) FROM outbox WHERE aggregate_id <= 900`))
	from := len(r.all())
	p.mend(r, bad...)
	r.await("everything", func() bool { return len(r.got)-from == 900*39 })
	inOrder(t, r.all()[from:])
	eventually(t, "all deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
	r.drain()
}

// Held before the stream was opened: nothing of it is read, and a release reads it from its beginning.
func TestHeldFromTheStart(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	id := d.text(`INSERT INTO outbox (type, payload) VALUES ('t', '{"n": 1}') RETURNING id`)
	d.exec(`INSERT INTO outbox (aggregate_id, type, payload) SELECT i % 3, 't', jsonb_build_object('n', i) FROM generate_series(1, 30) i`)
	r := startRelay(t, d.dsn, relayOptions{heldKeys: [][]byte{[]byte("1"), []byte("no number")}, heldIDs: []string{id, "no uuid"}})
	r.awaitGot(20)
	eventually(t, "the others deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 11 })
	require.Empty(t, r.held, "named in Open: needs no answer")
	require.Equal(t, 0, countKeys(r.all(), "1", true))
	r.release([]string{"1", "no number"}, []string{id, "no uuid"})
	gs := r.awaitGot(31)[20:]
	require.Equal(t, 10, countKeys(gs, "1", true))
	inOrder(t, gs)
	r.drain()
	require.Zero(t, d.int(`SELECT count(*) FROM outbox`))
}

// Events without a key are held by id; the others without a key go on.
func TestHeldID(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	d.exec(`INSERT INTO outbox (type, payload) SELECT 't', jsonb_build_object('n', i) FROM generate_series(1, 10) i`)
	r := startRelay(t, d.dsn, relayOptions{onBatch: noAck})
	gs := r.awaitGot(10)
	require.Nil(t, gs[0].event.Key)
	r.hold(nil, []string{gs[3].id()}, gs[3])
	r.awaitHeld(1)
	r.ack(slices.Delete(slices.Clone(gs), 3, 4)...)
	d.exec(`INSERT INTO outbox (type, payload) SELECT 't', jsonb_build_object('n', i) FROM generate_series(11, 20) i`)
	more := r.awaitGot(20)[10:]
	require.NotContains(t, numbers(more), 4)
	r.ack(more...)
	r.release(nil, []string{gs[3].id()})
	last := r.awaitGot(21)[20]
	require.Equal(t, 4, last.n())
	r.ack(last)
	r.drain()
	require.Zero(t, d.int(`SELECT count(*) FROM outbox`))
}

// A Hold that comes while everything is in flight is answered though the window is full, and a key that is held again
// while its release is being read is left out again.
func TestHoldWhileTheWindowIsFull(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	d.exec(`INSERT INTO outbox (aggregate_id, type, payload) SELECT 1, 't', jsonb_build_object('n', i) FROM generate_series(1, 100) i`)
	r := startRelay(t, d.dsn, relayOptions{onBatch: noAck, window: &pluginv1.Window{Events: 8, Bytes: 1 << 20}})
	gs := r.awaitGot(8)
	r.hold([]string{"1"}, nil, gs[1:]...)
	r.awaitHeld(1)
	r.ack(gs[0])
	r.release([]string{"1"}, nil)
	gs = r.awaitGot(10)[8:] // a quarter of the window
	require.Equal(t, []int{2, 3}, numbers(gs))
	r.hold([]string{"1"}, nil, gs...)
	r.awaitHeld(2)
	d.exec(insertN, 2, 1)
	require.Equal(t, "2", r.awaitGot(11)[10].key())
	r.ack(r.all()[10])
	r.release([]string{"1"}, nil)
	require.Equal(t, []int{2, 3}, numbers(r.awaitGot(13)[11:]))
	r.drain()
	require.Equal(t, 99, d.int(`SELECT count(*) FROM outbox`))
}

// Numbers that end twice, or were never sent, end the attempt loudly (I6).
func TestWrongNumbers(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	d.exec(insertN, 1, 1)
	r := startRelay(t, d.dsn, relayOptions{onBatch: noAck})
	r.awaitGot(1)
	r.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{Ack: &pluginv1.SourceAck{
		Ranges: []*pluginv1.SeqRange{{First: 1, Last: 2}},
	}}})
	require.Contains(t, r.awaitFault().GetMessage(), "number 2 was acked, which is not open")
}

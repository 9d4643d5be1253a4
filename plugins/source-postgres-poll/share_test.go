package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
	"github.com/relevo-io/relevo/sdk"
)

// tape is what several relays delivered, in the order in which they did.
type tape struct {
	mu      sync.Mutex // also held while a batch is recorded and acked
	gs      []got
	stopped map[*relay]bool
}

func (p *tape) all() []got {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.gs)
}

// first are the first deliveries of each id.
func (p *tape) first() []got {
	seen := map[string]bool{}
	return slices.DeleteFunc(p.all(), func(g got) bool {
		was := seen[g.id()]
		seen[g.id()] = true
		return was
	})
}

func (p *tape) repeats() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := map[string]bool{}
	for _, g := range p.gs {
		ids[g.id()] = true
	}
	return len(p.gs) - len(ids)
}

// shared starts a relay that shares. Its host acks everything at once, unless onBatch does something else.
func (p *tape) shared(d *db, onBatch func(*relay, []got), o relayOptions) *relay {
	d.t.Helper()
	if o.config == nil {
		o.config = map[string]any{}
	}
	o.config["sharing"] = "buckets"
	o.onBatch = func(r *relay, b []got) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.stopped[r] {
			return // a host hands nothing on that comes after its Stop
		}
		p.gs = append(p.gs, b...)
		if onBatch != nil {
			onBatch(r, b)
		} else {
			r.ack(b...)
		}
	}
	return startRelay(d.t, d.dsn, o)
}

// drain stops relays in good order.
func (p *tape) drain(relays ...*relay) {
	for _, r := range relays {
		p.mu.Lock()
		if p.stopped == nil {
			p.stopped = map[*relay]bool{}
		}
		p.stopped[r] = true
		r.stop()
		p.mu.Unlock()
	}
	for _, r := range relays {
		r.await("Stopped", func() bool { return r.stopped })
	}
}

// owners are the buckets of each session that has any.
func (d *db) owners() map[int32]buckets {
	d.t.Helper()
	k := newShareKeys(uint32(d.int(`SELECT 'outbox'::regclass::oid::int8`)), "")
	rows, err := d.conn.Query(context.Background(), advisoryLocks, k.of(allBuckets))
	require.NoError(d.t, err)
	m := map[int32]buckets{}
	var pid int32
	var key int64
	_, err = pgx.ForEachRow(rows, []any{&pid, &key}, func() error {
		m[pid] |= 1 << k.numbers[key]
		return nil
	})
	require.NoError(d.t, err)
	return m
}

// awaitShares waits until there are so many relays and each has so many buckets; ascending.
func (d *db) awaitShares(want ...int) {
	d.t.Helper()
	start := time.Now()
	var last []int
	defer func() {
		if d.t.Failed() {
			d.t.Logf("shares: %v", last)
		}
	}()
	eventually(d.t, fmt.Sprintf("shares of %v", want), func() bool {
		last = last[:0]
		for _, s := range d.owners() {
			last = append(last, s.count())
		}
		slices.Sort(last)
		return slices.Equal(last, want)
	})
	d.t.Logf("shares of %v after %s", want, time.Since(start).Round(time.Millisecond))
}

func (d *db) awaitEmpty() {
	d.t.Helper()
	eventually(d.t, "everything published", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
}

// Relays come and go under load: each has its share, every event comes, first deliveries are in order over all of them;
// only the one that is gone without a word makes repeats, no more than its window.
func TestRelaysShare(t *testing.T) {
	t.Parallel()
	for name, ddl := range map[string]string{"ordered": seqDDL, "rounds": plainDDL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const window = 300
			d, p := newDB(t, ddl), &tape{}
			o := func() relayOptions {
				return relayOptions{window: &pluginv1.Window{Events: window, Bytes: 16 << 20}, config: map[string]any{"batch": 50}}
			}
			stop := writeKeys(t, d, 100, 10*time.Millisecond)
			a := p.shared(d, nil, o())
			d.awaitShares(64)
			b := p.shared(d, nil, o())
			d.awaitShares(32, 32)
			c := p.shared(d, nil, o())
			d.awaitShares(21, 21, 22)
			c.awaitGot(200)
			p.drain(a)
			d.awaitShares(32, 32)
			require.Zero(t, p.repeats(), "moves in good order repeat nothing")
			c.cancel()
			d.awaitShares(64)
			b.awaitGot(len(b.all()) + 200)
			n := stop()
			d.awaitEmpty()
			b.await("its state", func() bool {
				return b.status.GetText() == "64 of 64 buckets, 1 relay" && b.status.GetState() == streaming
			})
			p.drain(b)
			gs := p.first()
			require.Equal(t, n, len(gs))
			require.LessOrEqual(t, p.repeats(), window)
			if name == "ordered" {
				inOrder(t, gs)
				require.Zero(t, metric(b, "rows_found_by_sweep_total"), "what came with a bucket is not found by chance")
			}
			require.Empty(t, d.owners(), "all is given back")
		})
	}
}

// Somebody who leads and those who share exclude each other.
func TestLeaderExcludesSharers(t *testing.T) {
	t.Parallel()
	d, p := newDB(t, seqDDL), &tape{}
	leader := startRelay(t, d.dsn, relayOptions{})
	leader.awaitOpened()
	a, b := p.shared(d, nil, relayOptions{}), p.shared(d, nil, relayOptions{})
	a.awaitState(standby)
	b.awaitState(standby)
	d.exec(insertN, 1, 1)
	leader.awaitGot(1)
	leader.drain()
	d.awaitShares(32, 32)
	leader = startRelay(t, d.dsn, relayOptions{})
	leader.awaitState(standby)
	d.exec(insertN, 1, 2)
	d.awaitEmpty()
	require.Len(t, p.all(), 1)
	a.drain()
	require.Empty(t, leader.all())
	b.drain()
	leader.awaitOpened()
	leader.drain()
}

// Two that decide otherwise whose a row is must not share: the one that comes later says so, and names the first.
func TestSharersMustAgree(t *testing.T) {
	t.Parallel()
	d, p := newDB(t, seqDDL), &tape{}
	a := p.shared(d, nil, relayOptions{})
	d.awaitShares(64)
	b := p.shared(d, nil, relayOptions{config: map[string]any{"pending": "type <> 'x'", "after_publish": "delete"}})
	f := b.awaitFault()
	require.Equal(t, "sharing_mismatch", f.GetCode())
	require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_CONFIG, f.GetClass())
	require.Contains(t, f.GetMessage(), "relevo/p/source from ")
	d.exec(insertN, 1, 1)
	a.awaitGot(1)
	a.drain()
	b = p.shared(d, nil, relayOptions{config: map[string]any{"pending": "type <> 'x'", "after_publish": "delete"}})
	b.awaitOpened()
	b.drain()
}

// Whatever a key is, or if there is none, each event is for exactly one of those who share.
func TestKindsOfKeysAreShared(t *testing.T) {
	t.Parallel()
	for kind, value := range map[string]string{
		"bigint": "i", "smallint": "i", "text": "'k' || i", "varchar(20)": "i", "char(9)": "i", "uuid": "md5(i::text)::uuid", "bytea": "decode(md5(i::text), 'hex')",
		"numeric": "i", "jsonb": "to_jsonb(i)", "timestamptz": "now() + i * interval '1 s'", "int": "NULL", "name": "''",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const rows = 600
			d, p := newDB(t, fmt.Sprintf(`CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_id %s, type text NOT NULL,
				payload jsonb, seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) UNIQUE)`, kind)), &tape{}
			a, b := p.shared(d, nil, relayOptions{}), p.shared(d, nil, relayOptions{})
			d.awaitShares(32, 32)
			d.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_id, type, payload)
				SELECT %s, 't', jsonb_build_object('n', n) FROM generate_series(1, 2) n, generate_series(1, %d) i`, value, rows/2))
			d.awaitEmpty()
			p.drain(a, b)
			require.Equal(t, rows, len(p.first()))
			require.Zero(t, p.repeats())
			switch kind {
			case "name": // empty keys ask for no order, and are one all the same
			default:
				require.Greater(t, min(len(a.all()), len(b.all())), rows/10, "both have their share")
			}
			if kind == "int" || kind == "name" {
				return
			}
			owner := map[string]*relay{}
			for _, r := range []*relay{a, b} {
				for _, g := range r.all() {
					if owner[g.key()] == nil {
						owner[g.key()] = r
					}
					require.Same(t, owner[g.key()], r, "a key is in one bucket")
				}
			}
			inOrder(t, p.all())
		})
	}
}

// A bucket whose key is held is not given away; when its relay is gone, the next one starts with what failed.
func TestHeldKeyIsNotGivenAway(t *testing.T) {
	t.Parallel()
	d, p := newDB(t, seqDDL), &tape{}
	insert := func(key string, from, to int) {
		d.exec(`INSERT INTO outbox (aggregate_id, type, payload)
			SELECT $1::text::bigint, 't', jsonb_build_object('n', i) FROM generate_series($2::int, $3::int) i`, key, from, to)
	}
	bad := newPoison("7", "8", "9")
	insert("7", 1, 10)
	insert("8", 1, 10)
	insert("9", 1, 10)
	a := p.shared(d, bad.onBatch, relayOptions{})
	a.awaitHeld(3)
	b := p.shared(d, nil, relayOptions{})
	d.awaitShares(32, 32)
	insert("7", 11, 20)
	for k := range 200 {
		insert(fmt.Sprint(1000+k), 1, 2)
	}
	eventually(t, "only held keys are left", func() bool { return d.int(`SELECT count(*) FROM outbox WHERE aggregate_id > 9`) == 0 })
	require.Empty(t, slices.DeleteFunc(b.all(), func(g got) bool { return len(g.key()) > 1 }))
	bad.mend(a, "7")
	eventually(t, "the mended key", func() bool { return d.int(`SELECT count(*) FROM outbox WHERE aggregate_id = 7`) == 0 })
	d.awaitShares(32, 32)

	// The other one is told, by its host, that it holds 8, whose bucket is not its own: that changes nothing.
	b.hold([]string{"8"}, nil)
	b.awaitHeld(1)
	b.release([]string{"8"}, nil)
	insert("1001", 3, 3)
	eventually(t, "another key", func() bool { return d.int(`SELECT count(*) FROM outbox WHERE aggregate_id = 1001`) == 0 })

	a.cancel()
	d.awaitShares(64)
	eventually(t, "everything", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
	b.drain()
	gs := p.first()
	require.Equal(t, 20+10+10+2*200+1, len(gs))
	inOrder(t, gs)
	inOrder(t, b.all())
}

// A key is held while its bucket is being given away. So the bucket stays and another goes; and what was not read meanwhile
// is read in order, though the bound has passed it.
func TestHoldWhileABucketIsGiven(t *testing.T) {
	t.Parallel()
	const keys = 300
	d, p := newDB(t, seqDDL), &tape{}
	insert := func(n int) {
		d.exec(`INSERT INTO outbox (aggregate_id, type, payload) SELECT k, 't', jsonb_build_object('n', $1::int) FROM generate_series(1, $2::int) k`, n, keys)
	}
	heads := map[string]got{}
	var mu sync.Mutex
	insert(1)
	a := p.shared(d, func(r *relay, gs []got) { // keeps the first event of each key open
		var rest []got
		mu.Lock()
		for _, g := range gs {
			if _, ok := heads[g.key()]; ok {
				rest = append(rest, g)
			} else {
				heads[g.key()] = g
			}
		}
		mu.Unlock()
		r.ack(rest...)
	}, relayOptions{})
	a.awaitGot(keys)
	d.awaitShares(64)
	b := p.shared(d, nil, relayOptions{})
	b.awaitState(standby)
	a.await("two relays", func() bool { return a.status.GetText() == "64 of 64 buckets, 2 relays" })
	// Rows of some buckets are read no more. One read takes a whole insert, or nothing of a bucket.
	unread := map[string]bool{}
	for n := 2; len(unread) < keys/4; n++ {
		insert(n)
		from := len(a.all())
		eventually(t, "the rest is read", func() bool { return len(a.all()) > from })
		clear(unread)
		for k := range keys {
			unread[fmt.Sprint(k+1)] = true
		}
		for _, g := range a.all() {
			if g.n() == n {
				delete(unread, g.key())
			}
		}
	}
	last := d.int(`SELECT max((payload->>'n')::int) FROM outbox`)
	// The bound moves past them, by several reads and deletes of the others.
	insert(last + 1)
	insert(last + 2)
	a.await("bounded reads", func() bool { return metricOf(a.status, "reads_bounded_total") > 0 })
	given := slices.Sorted(maps.Keys(unread))
	key := given[0]
	mu.Lock()
	head := heads[key]
	mu.Unlock()
	a.hold([]string{key}, nil)
	a.awaitHeld(1)
	bucket := fmt.Sprintf("hashint8extended(%s, 0) & 63", key)
	inBucket := d.int(`SELECT count(*) FROM generate_series(1, $1::int) k WHERE hashint8extended(k, 0) & 63 = `+bucket, keys)
	a.await("the bucket is read again", func() bool {
		n := 0
		for _, g := range a.got {
			if unread[g.key()] && g.n() == last+2 && g.key() != key {
				n++
			}
		}
		return n >= inBucket-1
	})
	a.ack(head)
	a.release([]string{key}, nil)
	a.await("the key itself", func() bool {
		return slices.ContainsFunc(a.got, func(g got) bool { return g.key() == key && g.n() == last+2 })
	})
	mu.Lock()
	delete(heads, key)
	open := slices.Collect(maps.Values(heads))
	mu.Unlock()
	a.ack(open...)
	d.awaitShares(32, 32)
	d.awaitEmpty()
	p.drain(a, b)
	require.Equal(t, keys*(last+2), len(p.all()))
	inOrder(t, p.all())
	require.Zero(t, metric(a, "rows_found_by_sweep_total"))
	require.Zero(t, metric(b, "rows_found_by_sweep_total"))
}

func metricOf(s *pluginv1.SourceStatus, name string) float64 {
	for _, m := range s.GetMetrics() {
		if m.GetName() == name {
			return m.GetValue()
		}
	}
	return -1
}

// A session of one that shares is killed: its buckets go to the other, and the host is told that it may open again.
func TestSharersSessionIsKilled(t *testing.T) {
	t.Parallel()
	d, p := newDB(t, seqDDL), &tape{}
	stop := writeKeys(t, d, 100, 10*time.Millisecond)
	a, b := p.shared(d, nil, relayOptions{}), p.shared(d, nil, relayOptions{})
	d.awaitShares(32, 32)
	a.awaitGot(100)
	b.awaitGot(100)
	var victim int32
	for pid := range d.owners() {
		victim = pid
	}
	d.exec(`SELECT pg_terminate_backend($1)`, victim)
	d.awaitShares(64)
	n := stop()
	d.awaitEmpty()
	gs := p.first()
	require.Equal(t, n, len(gs))
	inOrder(t, gs)
	faults := 0
	for _, r := range []*relay{a, b} {
		r.mu.Lock()
		f := r.fault
		r.mu.Unlock()
		if f == nil {
			r.drain()
			continue
		}
		faults++
		require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, f.GetClass())
	}
	require.Equal(t, 1, faults)
}

// silent is a stream whose host made its last sign of life at some time.
type silent struct {
	stream
	seen time.Time
}

func (s silent) HostSeen() time.Time { return s.seen }

// The host is frozen: what the session holds is free at once, whatever else still waits for that host.
func TestSilentHostLosesTheLock(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	s, err := connect(t.Context(), config{DSN: sdk.Secret(d.dsn)}, "p", "source", readerSettings)
	require.NoError(t, err)
	defer s.close()
	const key = 4711
	ok, err := s.tryLock(t.Context(), key)
	require.NoError(t, err)
	require.True(t, ok)
	r := reader{s: s, st: silent{seen: time.Now().Add(-hostSilence + time.Second)}}
	require.NoError(t, r.hostLives())
	r.st = silent{seen: time.Now().Add(-hostSilence - time.Second)}
	require.Equal(t, "host_silent", classify(r.hostLives()).Code)
	require.True(t, s.conn.IsClosed())
	eventually(t, "the lock is free", func() bool { return d.int(`SELECT pg_try_advisory_lock($1)::int`, key) == 1 })
}

package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// load is a service: writers that lock the aggregate's row before they write its event, as the docs ask them to. What
// they do is drawn from a seed, which a failing test prints.
type load struct {
	s        *system
	c        loadConfig
	stopping chan struct{}
	once     sync.Once
	wg       sync.WaitGroup

	committed  atomic.Int64 // events whose commit was answered
	rolledBack atomic.Int64 // events of transactions and savepoints that were rolled back
	failed     atomic.Int64 // transactions that the server ended
}

type loadConfig struct {
	writers int           // defaults to 4
	first   int64         // key; defaults to 1
	keys    int64         // defaults to 50; the first three are hot
	pace    time.Duration // of each writer, between transactions; defaults to 10 ms
	small   bool          // no large payloads, no big transactions
}

// load starts the writers. They go on until stop, through whatever happens to the server.
func (s *system) load(c loadConfig) *load {
	s.t.Helper()
	if c.writers == 0 {
		c.writers = 4
	}
	if c.keys == 0 {
		c.keys = 50
	}
	if c.first == 0 {
		c.first = 1
	}
	if c.pace == 0 {
		c.pace = 10 * time.Millisecond
	}
	s.query(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "insert into account select generate_series($1::bigint, $2::bigint) on conflict do nothing",
			c.first, c.first+c.keys-1)
		return err
	})
	l := &load{s: s, c: c, stopping: make(chan struct{})}
	seed := rand.Uint64()
	s.t.Logf("seed of the load: %d", seed)
	for i := range c.writers {
		l.wg.Go(func() { l.writer(rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	s.t.Cleanup(func() { l.end() })
	return l
}

func (l *load) end() {
	l.once.Do(func() { close(l.stopping) })
	l.wg.Wait()
}

// stop ends the writing and makes sure that there was some of every kind.
func (l *load) stop() {
	l.s.t.Helper()
	l.end()
	require.NotZero(l.s.t, l.committed.Load())
	require.NotZero(l.s.t, l.rolledBack.Load(), "the load was too short to roll back")
}

// awaitCommitted waits until n more events have been committed.
func (l *load) awaitCommitted(n int64) {
	l.s.t.Helper()
	target := l.committed.Load() + n
	eventually(l.s.t, "the service commits", patience, func() bool { return l.committed.Load() >= target })
}

func (l *load) writer(r *rand.Rand) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tick := time.NewTicker(l.c.pace)
	defer tick.Stop()
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(ctx)
		}
	}()
	for {
		select {
		case <-l.stopping:
			return
		case <-tick.C:
		}
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.Connect(ctx, l.s.db); err != nil {
				conn = nil
				continue // the server is away
			}
		}
		if err := l.transaction(ctx, conn, r); err != nil {
			l.failed.Add(1)
		}
	}
}

var errRollback = errors.New("the service changed its mind")

// transaction does one of what services do.
func (l *load) transaction(ctx context.Context, conn *pgx.Conn, r *rand.Rand) error {
	t := &tx{l: l, r: r}
	err := pgx.BeginFunc(ctx, conn, func(x pgx.Tx) error {
		t.x = x
		switch p := r.IntN(100); {
		case p < 8: // changes its mind
			if err := t.some(ctx, 1+r.IntN(5)); err != nil {
				return err
			}
			return errRollback
		case p < 18:
			return t.savepoints(ctx)
		case p < 23:
			return t.late(ctx)
		case p < 25 && !l.c.small:
			return t.some(ctx, 200)
		default:
			return t.some(ctx, 1+r.IntN(8))
		}
	})
	if err != nil {
		l.rolledBack.Add(int64(t.events))
		if errors.Is(err, errRollback) {
			return nil
		}
		return err
	}
	l.committed.Add(int64(t.events))
	return nil
}

type tx struct {
	l      *load
	r      *rand.Rand
	x      pgx.Tx
	events int
}

// some emits n events. Keys ascend, or two writers would wait for each other.
func (t *tx) some(ctx context.Context, n int) error {
	keys := make([]int64, n)
	for i := range keys {
		switch p := t.r.IntN(20); {
		case p == 0: // 0: no key
		case p < 7:
			keys[i] = t.l.c.first + t.r.Int64N(3)
		default:
			keys[i] = t.key()
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if err := t.emit(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) key() int64 { return t.l.c.first + t.r.Int64N(t.l.c.keys) }

func (t *tx) emit(ctx context.Context, key int64) error {
	padding := t.r.IntN(400)
	if !t.l.c.small && t.r.IntN(50) == 0 {
		padding = t.r.IntN(20_000)
	}
	var k *int64
	if key != 0 {
		k = &key
	}
	_, err := t.x.Exec(ctx, "select emit($1, $2)", k, padding)
	if err == nil {
		t.events++
	}
	return err
}

// savepoints rolls a part back: what it wrote there was never written.
func (t *tx) savepoints(ctx context.Context) error {
	key := t.key()
	if err := t.emit(ctx, key); err != nil {
		return err
	}
	before := t.events
	err := pgx.BeginFunc(ctx, t.x, func(inner pgx.Tx) error {
		outer := t.x
		t.x = inner
		defer func() { t.x = outer }()
		for range 1 + t.r.IntN(3) {
			if err := t.emit(ctx, key); err != nil {
				return err
			}
		}
		if t.r.IntN(2) == 0 {
			return errRollback
		}
		return nil
	})
	if errors.Is(err, errRollback) {
		t.l.rolledBack.Add(int64(t.events - before))
		t.events, err = before, nil
	}
	if err != nil {
		return err
	}
	return t.emit(ctx, key)
}

// late has its transaction id and the lock of a key long before it writes the last event of that key: others' rows with
// higher numbers are committed, read and deleted meanwhile.
func (t *tx) late(ctx context.Context) error {
	key := t.key()
	if err := t.emit(ctx, key); err != nil {
		return err
	}
	if _, err := t.x.Exec(ctx, "select pg_sleep($1)", 0.02+0.2*t.r.Float64()); err != nil {
		return err
	}
	return t.emit(ctx, key)
}

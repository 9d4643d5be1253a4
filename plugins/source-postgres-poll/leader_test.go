package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/netproxy"
	"github.com/relevo-io/relevo/internal/pgtest"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

const (
	standby   = pluginv1.SourceState_SOURCE_STATE_STANDBY
	streaming = pluginv1.SourceState_SOURCE_STATE_STREAMING
)

// The key names the lock for every version there will ever be.
func TestLockKeyNeverChanges(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, int64(5672102151410248313), lockKey(16384, 0))
	require.NotEqual(t, lockKey(1, 1), lockKey(11, 0))
}

// writeRows feeds rows of 20 keys in the background until the returned function is called; that tells how many.
func writeRows(t *testing.T, d *db) (stop func() int) {
	t.Helper()
	return writeKeys(t, d, 20, time.Millisecond)
}

// writeKeys feeds a row of each key at a pace.
func writeKeys(t *testing.T, d *db, keys int, pace time.Duration) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := d.session()
	done := make(chan int)
	go func() {
		n := 0
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			n++
			if _, err := c.Exec(context.Background(), `INSERT INTO outbox (aggregate_id, type, payload)
				SELECT k, 't', jsonb_build_object('n', $1::int) FROM generate_series(1, $2::int) k`, n, keys); err != nil {
				t.Error(err)
				break
			}
		}
		done <- keys * n
	}()
	return func() int {
		cancel()
		return <-done
	}
}

// first are the first deliveries of each id, in the order in which any relay delivered them.
func first(relays ...*relay) []got {
	seen := map[string]bool{}
	var gs []got
	for _, r := range relays {
		for _, g := range r.all() {
			if !seen[g.id()] {
				seen[g.id()] = true
				gs = append(gs, g)
			}
		}
	}
	return gs
}

// P7, P10, P15: one relay reads, the others stand by, however slow the first is; when it goes, another takes over at
// once, and nothing is lost or reordered. The window is the most that comes twice.
func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*relay){
		"host gone": func(r *relay) { r.cancel() },
		"stopped":   func(r *relay) { r.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const window = 300
			d := newDB(t, seqDDL)
			o := func() relayOptions {
				return relayOptions{window: &pluginv1.Window{Events: window, Bytes: 16 << 20}, config: map[string]any{"batch": 50}}
			}
			a := startRelay(t, d.dsn, o())
			a.awaitOpened()
			b, c := startRelay(t, d.dsn, o()), startRelay(t, d.dsn, o())
			b.awaitState(standby)
			c.awaitState(standby)
			stop := writeRows(t, d)
			a.awaitGot(1000)
			require.Empty(t, b.all())
			require.Empty(t, c.all())
			end(a)
			gone := time.Now()
			next := eitherOpens(t, b, c)
			t.Logf("taken over after %s", time.Since(gone))
			require.Less(t, time.Since(gone), 5*time.Second)
			next.awaitGot(500)
			n := stop()
			eventually(t, "everything published", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
			gs := first(a, next)
			inOrder(t, gs)
			require.Len(t, gs, n)
			repeated := len(a.all()) + len(next.all()) - n
			require.LessOrEqual(t, repeated, window)
			if name == "stopped" {
				a.await("Stopped", func() bool { return a.stopped })
			}
			next.drain()
			require.Equal(t, len(b.all())+len(c.all()), len(next.all()), "only one took over")
		})
	}
}

func eitherOpens(t *testing.T, b, c *relay) *relay {
	t.Helper()
	var next *relay
	eventually(t, "a standby opens", func() bool {
		for _, r := range []*relay{b, c} {
			r.mu.Lock()
			if r.opened != nil {
				next = r
			}
			r.mu.Unlock()
		}
		return next != nil
	})
	return next
}

// The connection of the leader goes silent: nobody is told, keep-alives are answered. The server ends the idle session,
// and the standby takes over; the old leader can neither read nor delete.
func TestSilentLeaderLosesTheLock(t *testing.T) {
	t.Parallel()
	d, pg := privateDB(t, nil, seqDDL)
	proxy := netproxy.Start(t, pg.Addr())
	dsn := fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", proxy.Addr())
	a := startRelay(t, dsn, relayOptions{})
	a.awaitOpened()
	b := startRelay(t, d.dsn, relayOptions{})
	b.awaitState(standby)
	d.exec(insertN, 1, 1)
	a.awaitGot(1)
	eventually(t, "deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
	proxy.Stall(netproxy.Both)
	d.exec(insertN, 1, 2)
	start := time.Now()
	b.awaitOpened()
	t.Logf("taken over after %s", time.Since(start))
	require.Equal(t, 2, b.awaitGot(1)[0].n())
	a.cancel()
	b.drain()
}

// A leader whose window is full reads nothing, and keeps its lock all the same.
func TestFullWindowKeepsTheLock(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	d.exec(`INSERT INTO outbox (aggregate_id, type, payload) SELECT i, 't', jsonb_build_object('n', 1) FROM generate_series(1, 100) i`)
	a := startRelay(t, d.dsn, relayOptions{onBatch: noAck, window: &pluginv1.Window{Events: 10, Bytes: 1 << 20}})
	gs := a.awaitGot(10)
	b := startRelay(t, d.dsn, relayOptions{})
	b.awaitState(standby)
	pings := func() int {
		return d.int(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'relevo/p/source'
			AND query = 'SELECT 1' AND state = 'idle' AND now() - backend_start > interval '12 s'`)
	}
	eventually(t, "a ping after more than idle_session_timeout", func() bool { return pings() == 1 })
	require.Len(t, a.all(), 10)
	require.Empty(t, b.all())
	a.ack(gs...)
	a.awaitGot(20)
	a.drain()
}

// Losing either session ends the attempt with a transient fault: the host opens again.
func TestLostSessions(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{"reader": "%pg_snapshot_xmin%", "deleter": "%pg_current_xact_id%"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, seqDDL)
			r := startRelay(t, d.dsn, relayOptions{})
			r.awaitOpened()
			d.exec(insertN, 1, 1)
			eventually(t, "deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
			kill := `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'relevo/p/source'
				AND (query LIKE $1) = true`
			if name == "reader" {
				kill = `SELECT count(pg_terminate_backend(a.pid)) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
					WHERE l.locktype = 'advisory' AND a.datname = current_database() AND $1 <> ''`
			}
			require.Equal(t, 1, d.int(kill, query))
			d.exec(insertN, 1, 2)
			f := r.awaitFault()
			require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, f.GetClass())
			require.Contains(t, []string{"server_shutdown", "lock_lost", "connection_lost"}, f.GetCode())
			again := startRelay(t, d.dsn, relayOptions{})
			require.Equal(t, 2, again.awaitGot(1)[0].n())
			again.drain()
		})
	}
}

// The server is not there yet: connecting goes on inside the attempt. Wrong passwords do not get better by waiting.
func TestConnecting(t *testing.T) {
	t.Parallel()
	d, pg := privateDB(t, nil, seqDDL)
	d.exec(insertN, 1, 1)
	pg.Stop(pgtest.Fast)
	r := startRelay(t, d.dsn, relayOptions{})
	r.await("a reason", func() bool {
		return r.status.GetState() == pluginv1.SourceState_SOURCE_STATE_CONNECTING && r.status.GetText() != ""
	})
	pg.Restart()
	r.awaitGot(1)
	r.drain()
	stopped := startRelay(t, "postgres://postgres@127.0.0.1:1/x?sslmode=disable", relayOptions{})
	stopped.await("connecting", func() bool { return stopped.status != nil })
	stopped.drain()
}

// A server that crashes with acked rows whose delete did not become durable: they come again, nothing is lost.
func TestServerCrash(t *testing.T) {
	t.Parallel()
	d, pg := privateDB(t, nil, seqDDL)
	d.exec(`INSERT INTO outbox (aggregate_id, type, payload) SELECT i % 20, 't', jsonb_build_object('n', i) FROM generate_series(1, 20000) i`)
	r := startRelay(t, d.dsn, relayOptions{window: &pluginv1.Window{Events: 1000, Bytes: 16 << 20}, config: map[string]any{"batch": 100}})
	r.awaitGot(3000)
	pg.Crash()
	require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, r.awaitFault().GetClass())
	pg.Restart()
	b := startRelay(t, d.dsn, relayOptions{})
	c, err := pgx.Connect(context.Background(), d.dsn)
	require.NoError(t, err)
	defer c.Close(context.Background())
	d.conn = c
	eventually(t, "everything published", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
	b.drain()
	gs := first(r, b)
	require.Len(t, gs, 20000)
	inOrder(t, gs)
	require.LessOrEqual(t, len(r.all())+len(b.all())-20000, 1000)
}

// While the table is locked by DDL, deletes and reads wait and try again; nothing is lost, and the status says why.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	d.exec(insertN, 1, 1)
	r := startRelay(t, d.dsn, relayOptions{onBatch: noAck})
	gs := r.awaitGot(1)
	s := d.session()
	do(t, s, "BEGIN")
	do(t, s, "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
	r.ack(gs...)
	r.await("the reason", func() bool { return len(r.status.GetText()) > 0 && r.status.GetState() == streaming })
	do(t, s, "COMMIT")
	eventually(t, "deleted", func() bool { return d.int(`SELECT count(*) FROM outbox`) == 0 })
	d.exec(insertN, 1, 2)
	r.awaitGot(2)
	r.drain()
}

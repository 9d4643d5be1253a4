package e2e

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
)

// owned is how soon after a change every bucket has an owner that reads it.
const owned = 10 * time.Second

// crew are hosts that share one outbox.
type crew struct {
	*system
	c     *consumer
	l     *load
	hosts map[string]*host
	most  time.Duration
}

func newCrew(t *testing.T) *crew {
	t.Helper()
	s := newSystem(t, parts{})
	s.source()["config"].(conf)["sharing"] = "buckets"
	w := &crew{system: s, c: s.consume(), l: s.load(loadConfig{writers: 3}), hosts: map[string]*host{}}
	for i, name := range []string{"a", "b", "c"} {
		w.join(name)
		w.settles(i + 1)
	}
	for _, h := range w.hosts {
		h.until("it reads its share", func(s pipeline.Status) bool {
			return s.State == pipeline.Running && s.Source.Metrics["relays"] == 3 && s.Source.Metrics["buckets_owned"] >= 21
		})
	}
	w.c.awaitMore(200)
	return w
}

func (w *crew) join(name string) {
	w.hosts[name] = w.start(launch{name: name})
}

// settles waits until each of n relays has its share of the 64 buckets, as the server's locks tell.
func (w *crew) settles(n int) {
	w.t.Helper()
	start := time.Now()
	low, high := 64/n, (64+n-1)/n
	var shares []int
	defer func() {
		if w.t.Failed() {
			w.t.Logf("shares: %v", shares)
		}
	}()
	eventually(w.t, fmt.Sprintf("%d relays have all buckets", n), owned, func() bool {
		shares = w.shares()
		sum := 0
		for _, k := range shares {
			sum += k
		}
		return sum == 64 && len(shares) == n && shares[0] >= low && shares[n-1] <= high
	})
	took := time.Since(start).Round(time.Millisecond)
	w.most = max(w.most, took)
	w.t.Logf("%v after %s", shares, took)
}

// shares is how many locks beside the two that all have each session has, ascending.
func (w *crew) shares() (n []int) {
	w.t.Helper()
	w.query(func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select count(*) from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock' and granted
			and database = (select oid from pg_database where datname = current_database()) group by pid order by 1`)
		if err != nil {
			return err
		}
		n, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	})
	return n
}

// pids are the processes of a host: its own, its source's and its sink's.
func (w *crew) pids(name string) (host, source, sink int) {
	w.t.Helper()
	s := w.hosts[name].running()
	return w.hosts[name].pid(), s.Source.PID, s.Sinks[0].PID
}

func (w *crew) freeze(pids ...int) {
	w.t.Helper()
	for _, pid := range pids {
		require.NoError(w.t, syscall.Kill(pid, syscall.SIGSTOP))
		w.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	}
}

func (w *crew) thaw(pids ...int) {
	w.t.Helper()
	for _, pid := range pids {
		require.NoError(w.t, syscall.Kill(pid, syscall.SIGCONT))
	}
}

// end drains all, and judges: 0 lost, 0 invented, first deliveries of each key in order over all hosts together. Whoever
// was killed or frozen repeats its window at most.
func (w *crew) end(windows int) {
	w.t.Helper()
	w.c.awaitMore(200)
	w.l.stop()
	w.awaitEmpty()
	for _, h := range w.hosts {
		h.stop()
	}
	require.LessOrEqual(w.t, w.c.verdict().repeats, windows*window)
	w.t.Logf("every bucket was owned within %s", w.most)
}

// Hosts join, leave and are killed under load.
func TestBucketsMove(t *testing.T) {
	t.Parallel()
	takePlace(t)
	w := newCrew(t)

	w.hosts["b"].stop()
	w.settles(2)
	w.c.awaitMore(200)
	w.c.catchUp()
	messages, events := w.c.count()
	require.Equal(t, events, messages, "who joins or leaves in good order repeats nothing")

	w.hosts["a"].kill()
	w.settles(1)
	w.c.awaitMore(200)
	w.join("a")
	w.settles(2)
	w.join("b")
	w.settles(3)
	w.c.awaitMore(200)

	_, source, _ := w.pids("c")
	require.NoError(t, syscall.Kill(source, syscall.SIGKILL))
	w.hosts["c"].until("the source runs again", func(s pipeline.Status) bool {
		return s.Source.Restarts == 1 && s.Source.PID != 0 && s.Source.PID != source
	})
	w.settles(3)
	w.end(2)
}

// A whole host is stopped, as on a machine that hangs, and at the same time the host's process of another: the third has
// everything. They come back, with what they had read before: it comes once more, and never first and late. Then a source
// alone is stopped, until its host replaces it.
func TestBucketsOfTheFrozen(t *testing.T) {
	t.Parallel()
	takePlace(t)
	w := newCrew(t)
	a, aSource, aSink := w.pids("a")
	b, _, _ := w.pids("b")
	w.freeze(a, aSource, aSink, b)
	w.settles(1)
	w.c.awaitMore(200)
	w.thaw(a, aSource, aSink, b)
	w.settles(3)
	w.c.awaitMore(200)

	_, source, _ := w.pids("c")
	w.freeze(source)
	w.settles(2)
	w.c.awaitMore(200)
	w.hosts["c"].until("the source is replaced", func(s pipeline.Status) bool {
		return s.Source.PID != 0 && s.Source.PID != source
	})
	w.settles(3)
	w.end(3)
}

// A key that no broker takes stays with its host when others come; when that host is killed the next one starts with what
// failed, and it follows in order once it is taken.
func TestBucketsWithAHeldKey(t *testing.T) {
	t.Parallel()
	takePlace(t)
	s := newSystem(t, parts{})
	s.source()["config"].(conf)["sharing"] = "buckets"
	s.limit(2000)
	w := &crew{system: s, c: s.consume(), l: s.load(loadConfig{writers: 2, small: true}), hosts: map[string]*host{}}
	w.join("a")
	w.settles(1)
	ids := s.emitSizes(1000, 10, 5000, 10, 10)
	held := func(name string) {
		w.hosts[name].until("the key is held", func(s pipeline.Status) bool {
			return s.HeldKeys == 1 && slices.ContainsFunc(s.Held, func(h pipeline.HeldKey) bool { return h.EventID == ids[1] && h.Held })
		})
	}
	held("a")
	w.join("b")
	w.settles(2)
	w.c.awaitMore(200)
	st, err := w.hosts["b"].pipeline("orders")
	require.NoError(t, err)
	require.Zero(t, st.HeldKeys, "its bucket stays")
	w.hosts["a"].kill()
	delete(w.hosts, "a")
	w.settles(1)
	held("b")
	s.limit(-1)
	w.join("c") // the bucket stays with b, which tries the key again in a minute, or stops before
	w.hosts["b"].stop()
	delete(w.hosts, "b")
	w.settles(1)
	w.end(1)
}

package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/internal/netproxy"
	"github.com/relevo-io/relevo/internal/pgtest"
)

// The broker is killed and started again under load; the service does not notice.
func TestBrokerKilled(t *testing.T) {
	t.Parallel()
	for _, publish := range []string{"batch", "key_serial"} {
		t.Run(publish, func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			broker := natstest.StartChild(t)
			s := newSystem(t, parts{nats: broker.URL()})
			s.sink()["config"].(conf)["publish"] = publish
			c, l := s.consume(), s.load(loadConfig{})
			h := s.start(launch{})
			wait := moments(t)
			const kills = 3
			for range kills {
				c.awaitMore(200)
				wait()
				broker.Kill()
				l.awaitCommitted(50) // rows wait in the outbox, the service goes on
				broker.Start()
			}
			c.awaitMore(200)
			require.Zero(t, l.failed.Load(), "transactions of the service that failed")
			l.stop()
			s.awaitEmpty()
			pids := h.running()
			require.Zero(t, pids.Source.Restarts+pids.Sinks[0].Restarts, "an outage ends no process")
			h.stop()
			require.LessOrEqual(t, c.verdict().repeats, kills*window)
		})
	}
}

// The broker is away for a while: the pipeline says so, keeps no more than its window, and catches up.
func TestBrokerAway(t *testing.T) {
	t.Parallel()
	takePlace(t)
	broker := natstest.StartChild(t)
	s := newSystem(t, parts{nats: broker.URL()})
	c, l := s.consume(), s.load(loadConfig{small: true})
	h := s.start(launch{})
	c.awaitMore(200)
	broker.Stop()
	h.until("the state is RETRYING", func(s pipeline.Status) bool { return s.State == pipeline.Retrying && s.Reason != "" })
	l.awaitCommitted(2 * window)
	st := h.until("the window is full", func(s pipeline.Status) bool { return s.InFlightEvents == window })
	require.Equal(t, "down", st.Sinks[0].State)
	eventually(t, "the age of the oldest row is seen", patience, func() bool {
		st, err := h.pipeline("orders")
		return err == nil && st.Source.OldestUnpublishedSecond != nil && *st.Source.OldestUnpublishedSecond > 1
	})
	code, _, err := h.get("/readyz")
	require.NoError(t, err)
	require.Equal(t, 200, code, "an outage of the broker is not the host's")
	broker.Start()
	h.running()
	l.stop()
	s.awaitEmpty()
	h.stop()
	require.LessOrEqual(t, c.verdict().repeats, window)
}

// The connection to the broker breaks in every way that a proxy knows.
func TestBrokerConnection(t *testing.T) {
	t.Parallel()
	for name, fault := range connectionFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			broker := natstest.Start(t)
			proxy := netproxy.Start(t, broker.Addr())
			s := newSystem(t, parts{nats: broker.URL(), relay: "nats://" + proxy.Addr()})
			c, l := s.consume(), s.load(loadConfig{})
			h := s.start(launch{})
			wait := moments(t)
			const faults = 3
			for range faults {
				c.awaitMore(200)
				wait()
				fault(proxy, l)
			}
			c.awaitMore(200)
			l.stop()
			s.awaitEmpty()
			h.stop()
			require.LessOrEqual(t, c.verdict().repeats, faults*window)
		})
	}
}

// connectionFaults each break a connection and mend it, while the service writes.
var connectionFaults = map[string]func(p *netproxy.Proxy, l *load){
	"cut": func(p *netproxy.Proxy, _ *load) { p.Cut() },
	"cut in a message": func(p *netproxy.Proxy, l *load) {
		p.CutAfter(netproxy.Up, 10_000)
		l.awaitCommitted(50)
	},
	"answers cut": func(p *netproxy.Proxy, l *load) {
		p.CutAfter(netproxy.Down, 1000)
		l.awaitCommitted(50)
	},
	"half-closed": func(p *netproxy.Proxy, l *load) {
		p.HalfClose(netproxy.Down)
		l.awaitCommitted(50)
		p.Cut()
	},
	"answers stalled": func(p *netproxy.Proxy, l *load) {
		p.Stall(netproxy.Down)
		l.awaitCommitted(200)
		p.Resume()
	},
	"stalled, then cut": func(p *netproxy.Proxy, l *load) {
		p.Stall(netproxy.Both)
		l.awaitCommitted(100)
		p.Cut()
		p.Resume()
	},
	"refused": func(p *netproxy.Proxy, l *load) {
		p.Refuse()
		p.Cut()
		l.awaitCommitted(100)
		if err := p.Accept(); err != nil {
			panic(err) // another process has the port: nothing of this test can be said
		}
	},
}

// PostgreSQL is shut down, and crashes, under load: the service fails for that long, and what it committed is there.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*pgtest.Postgres){
		"fast":      func(p *pgtest.Postgres) { p.Stop(pgtest.Fast) },
		"immediate": func(p *pgtest.Postgres) { p.Stop(pgtest.Immediate) },
		"crash":     func(p *pgtest.Postgres) { p.Crash() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			db := pgtest.Start(t, pgtest.Options{})
			s := newSystem(t, parts{db: db.DSN()})
			c, l := s.consume(), s.load(loadConfig{})
			h := s.start(launch{})
			wait := moments(t)
			const restarts = 3
			for range restarts {
				c.awaitMore(200)
				wait()
				stop(db)
				h.until("the state is RETRYING", func(s pipeline.Status) bool { return s.State == pipeline.Retrying })
				db.Restart()
			}
			c.awaitMore(200)
			l.stop()
			s.awaitEmpty()
			st := h.running()
			require.Zero(t, st.Source.Restarts+st.Sinks[0].Restarts, "an outage ends no process")
			h.stop()
			require.LessOrEqual(t, c.verdict().repeats, restarts*window)
		})
	}
}

// The connections to PostgreSQL break, of reader and deleter both.
func TestDatabaseConnection(t *testing.T) {
	t.Parallel()
	for name, fault := range connectionFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			db := pgtest.DB(t)
			proxy := netproxy.Start(t, addressOf(t, db))
			s := newSystem(t, parts{db: db, relayDB: through(t, db, proxy.Addr())})
			c, l := s.consume(), s.load(loadConfig{})
			h := s.start(launch{})
			wait := moments(t)
			const faults = 3
			for range faults {
				c.awaitMore(200)
				wait()
				fault(proxy, l)
			}
			c.awaitMore(200)
			l.stop()
			s.awaitEmpty()
			h.stop()
			require.LessOrEqual(t, c.verdict().repeats, faults*window)
		})
	}
}

// A server of which every process is stopped answers nothing, and breaks no connection.
func TestDatabaseFrozen(t *testing.T) {
	t.Parallel()
	takePlace(t)
	db := pgtest.Start(t, pgtest.Options{})
	s := newSystem(t, parts{db: db.DSN()})
	c, l := s.consume(), s.load(loadConfig{})
	h := s.start(launch{})
	c.awaitMore(200)
	db.Freeze()
	time.Sleep(2 * time.Second) // nothing happens, which is what there is to see
	db.Thaw()
	c.awaitMore(200)
	l.stop()
	s.awaitEmpty()
	h.stop()
	require.LessOrEqual(t, c.verdict().repeats, window)
}

// The broker's process is stopped and goes on: what was published meanwhile has no answer in time.
func TestBrokerFrozen(t *testing.T) {
	t.Parallel()
	takePlace(t)
	broker := natstest.StartChild(t)
	s := newSystem(t, parts{nats: broker.URL()})
	c, l := s.consume(), s.load(loadConfig{})
	h := s.start(launch{})
	c.awaitMore(200)
	broker.Signal(syscall.SIGSTOP)
	defer broker.Signal(syscall.SIGCONT)
	h.until("the sink sees that nothing answers", func(s pipeline.Status) bool { return s.State == pipeline.Retrying })
	broker.Signal(syscall.SIGCONT)
	h.running()
	c.awaitMore(200)
	l.stop()
	s.awaitEmpty()
	h.stop()
	require.LessOrEqual(t, c.verdict().repeats, window)
}

package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
	"github.com/relevo-io/relevo/internal/netproxy"
	"github.com/relevo-io/relevo/internal/pgtest"
)

const (
	// takeover is how soon a standby leads when the leader's session ends at once, takeoverSilent when somebody has to find
	// out: idle_session_timeout is 7 s, and a source lets go of a host that has been silent for 6 s. A machine that runs
	// three tests at a time is late.
	takeover       = 5 * time.Second
	takeoverSilent = 12 * time.Second
)

// pair is a leader and a standby on one outbox, under load.
type pair struct {
	*system
	c               *consumer
	l               *load
	leader, standby *host
	pids            pipeline.Status // the leader's
}

func newPair(t *testing.T, p parts, relayOfLeader string) *pair {
	t.Helper()
	s := newSystem(t, p)
	both := &pair{system: s, c: s.consume(), l: s.load(loadConfig{writers: 2})}
	config := s.source()["config"].(conf)
	direct := config["dsn"]
	if relayOfLeader != "" {
		config["dsn"] = relayOfLeader
	}
	both.leader = s.start(launch{name: "leader", files: []string{s.write("leader.yaml", s.pipe)}})
	both.pids = both.leader.running()
	config["dsn"] = direct
	both.standby = s.start(launch{name: "standby", files: []string{s.write("standby.yaml", s.pipe)}})
	both.standby.until("the other host stands by", func(s pipeline.Status) bool { return s.State == pipeline.Standby })
	code, _, err := both.standby.get("/readyz")
	require.NoError(t, err)
	require.Equal(t, 200, code, "a standby is ready")
	both.c.awaitMore(200)
	return both
}

// takesOver waits until the standby leads.
func (p *pair) takesOver(within time.Duration) {
	p.t.Helper()
	start := time.Now()
	eventually(p.t, "the standby leads", within, func() bool {
		s, err := p.standby.pipeline("orders")
		return err == nil && s.State == pipeline.Running
	})
	p.t.Logf("taken over after %s", time.Since(start).Round(time.Millisecond))
	p.c.awaitMore(200)
}

// end drains whoever runs, and judges. Each change of leaders may repeat a window.
func (p *pair) end(changes int, hosts ...*host) {
	p.t.Helper()
	p.l.stop()
	p.awaitEmpty()
	for _, h := range hosts {
		h.stop()
	}
	require.LessOrEqual(p.t, p.c.verdict().repeats, changes*window)
}

func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	takePlace(t)
	p := newPair(t, parts{}, "")
	p.leader.kill()
	p.takesOver(takeover)
	p.end(1, p.standby)
}

// A leader that stops in good order hands over without a repeat. The standby has not opened its outbox for longer than
// stall_after by then, and that is no stall.
func TestLeaderStops(t *testing.T) {
	t.Parallel()
	takePlace(t)
	p := newPair(t, parts{}, "")
	p.standby.stop()
	p.pipe["delivery"].(conf)["stall_after"] = "500ms"
	p.standby = p.start(launch{name: "standby"})
	standing := time.Now()
	p.standby.until("the other host stands by for longer than stall_after", func(s pipeline.Status) bool {
		require.NotEqual(t, pipeline.Stalled, s.State, s.Reason)
		return s.State == pipeline.Standby && time.Since(standing) > 2*time.Second
	})
	p.leader.stop()
	p.takesOver(takeover)
	p.end(0, p.standby)
}

// Every process of the leader is stopped, as on a machine that hangs. What it has read and published it publishes again
// when it goes on, after the standby has: repeats, and never something new before something old.
func TestLeaderFrozen(t *testing.T) {
	t.Parallel()
	takePlace(t)
	p := newPair(t, parts{}, "")
	frozen := []int{p.leader.pid(), p.pids.Source.PID, p.pids.Sinks[0].PID}
	for _, pid := range frozen {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	}
	p.takesOver(takeoverSilent)
	for _, pid := range frozen {
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	p.leader.until("the old leader stands by", func(s pipeline.Status) bool { return s.State == pipeline.Standby })
	p.c.awaitMore(200)
	p.end(2, p.standby, p.leader)
}

// The leader's source alone is stopped: the host is well, and must not keep the lock for it.
func TestLeadersSourceFrozen(t *testing.T) {
	t.Parallel()
	takePlace(t)
	p := newPair(t, parts{}, "")
	pid := p.pids.Source.PID
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	p.takesOver(takeoverSilent)
	p.leader.until("the source is replaced, and stands by", func(s pipeline.Status) bool {
		return s.State == pipeline.Standby && s.Source.PID != pid
	})
	p.end(2, p.standby, p.leader)
}

// The leader's host alone is stopped: its source must not keep the lock for it.
func TestLeadersHostFrozen(t *testing.T) {
	t.Parallel()
	takePlace(t)
	p := newPair(t, parts{}, "")
	require.NoError(t, p.leader.cmd.Process.Signal(syscall.SIGSTOP))
	p.takesOver(takeoverSilent)
	p.leader.signal(syscall.SIGCONT)
	p.leader.until("the old leader stands by", func(s pipeline.Status) bool { return s.State == pipeline.Standby })
	p.end(2, p.standby, p.leader)
}

// The network between the leader and the database goes silent: nobody is told anything.
func TestLeaderVanishes(t *testing.T) {
	t.Parallel()
	takePlace(t)
	db := pgtest.DB(t)
	proxy := netproxy.Start(t, addressOf(t, db))
	p := newPair(t, parts{db: db}, through(t, db, proxy.Addr()))
	proxy.Stall(netproxy.Both)
	p.takesOver(takeoverSilent)
	proxy.Resume() // what was under way arrives, late
	p.leader.until("the old leader stands by", func(s pipeline.Status) bool { return s.State == pipeline.Standby })
	p.c.awaitMore(200)
	p.end(2, p.standby, p.leader)
}

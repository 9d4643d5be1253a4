package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
	"github.com/relevo-io/relevo/internal/failpoint"
)

// crash is a row of the crash table that the chain from the poller to JetStream reaches.
type crash struct {
	point string
	in    string // host, source or sink
	times int    // how often one event is delivered that passes the crash
	marks bool   // published rows are marked, not deleted
}

var crashes = []crash{
	{failpoint.SourceRead, "source", 1, false},
	{failpoint.SinkConfirmed, "sink", 2, false},
	{failpoint.HostAcked, "host", 2, false},
	{failpoint.BeforeDelete, "source", 2, false},
	{failpoint.AfterDelete, "source", 1, false},
	{failpoint.BeforeDelete, "source", 2, true},
	{failpoint.AfterDelete, "source", 1, true},
}

func (c crash) String() string {
	if c.marks {
		return c.point + ", marking"
	}
	return c.point
}

// armed is a system whose next host dies once at the failpoint, or whose plugin does.
type armed struct {
	*system
	crash
	guard string
}

func arm(s *system, c crash, hits int) *armed {
	a := &armed{system: s, crash: c, guard: filepath.Join(s.dir, "crashed")}
	if c.marks {
		s.marks()
	}
	env := conf{"RELEVO_FAILPOINT": fmt.Sprintf("%s:%d", c.point, hits), "RELEVO_FAILPOINT_ONCE": a.guard}
	switch c.in {
	case "source":
		s.source()["process"] = conf{"env": env}
	case "sink":
		s.sink()["process"] = conf{"env": env}
	}
	return a
}

// start starts a host. If it is the one to die, only in its first life.
func (a *armed) start(hits int) *host {
	l := launch{}
	if a.in == "host" && hits > 0 {
		l.env = []string{fmt.Sprintf("RELEVO_FAILPOINT=%s:%d", a.point, hits)}
	}
	return a.system.start(l)
}

// crashed waits for the crash, and returns the host that goes on: the same one, or the next.
func (a *armed) crashed(h *host, got *consumer) *host {
	if a.in == "host" {
		h.awaitKilled()
		got.forgotten()
		return a.start(0)
	}
	h.until("the plugin has crashed", func(s pipeline.Status) bool { return a.restarts(s) > 0 })
	return h
}

func (a *armed) restarts(s pipeline.Status) int {
	if a.in == "source" {
		return s.Source.Restarts
	}
	return s.Sinks[0].Restarts
}

// One event meets each crash: it is repeated exactly where the table says so, with the same id, and never lost.
func TestCrashTableOneEvent(t *testing.T) {
	t.Parallel()
	for _, c := range crashes {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			s := newSystem(t, parts{})
			a, got := arm(s, c, 1), s.consume()
			h := a.start(1)
			h.running()
			id := s.emit(1)
			h = a.crashed(h, got)
			last := s.emit(1) // what follows comes after it, so nothing of the first is still to come
			s.awaitEmpty()
			h.stop()
			got.verdict()
			require.Equal(t, c.times, got.deliveries(id), "deliveries")
			require.Equal(t, 1, got.deliveries(last))
		})
	}
}

// Each crash three times under load: nothing lost, order kept, at most one window repeated for each crash.
func TestCrashTableUnderLoad(t *testing.T) {
	t.Parallel()
	for _, c := range crashes {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			const rounds, hits = 3, 5
			s := newSystem(t, parts{})
			a, got := arm(s, c, hits), s.consume()
			l := s.load(loadConfig{})
			h := a.start(hits)
			for i := range rounds {
				if c.in == "host" {
					h.awaitKilled()
					got.forgotten()
					h = a.start(map[bool]int{true: hits}[i < rounds-1])
				} else {
					h.until("the plugin has crashed", func(s pipeline.Status) bool { return a.restarts(s) == i+1 })
					if i < rounds-1 {
						require.NoError(t, os.Remove(a.guard)) // once more
					}
				}
			}
			got.awaitMore(300)
			l.stop()
			s.awaitEmpty()
			h.stop()
			f := got.verdict()
			require.LessOrEqual(t, f.repeats, rounds*window)
			if c.times > 1 {
				require.GreaterOrEqual(t, f.repeats, rounds, "what was confirmed and not deleted comes again")
			}
		})
	}
}

// nulls is a pipeline without servers, whose source has positions.
func nulls(t *testing.T, source, sink conf) *system {
	t.Helper()
	require.NoError(t, build())
	s := &system{t: t, dir: t.TempDir()}
	sink["record"] = filepath.Join(s.dir, "record")
	s.pipe = conf{
		"name":     "orders",
		"source":   conf{"plugin": "null", "config": source},
		"sinks":    []conf{{"plugin": "null", "to": "{type}", "config": sink}},
		"delivery": conf{"max_in_flight": conf{"events": window}},
	}
	return s
}

// recorded are the ids that the null sink has taken, in their order.
func (s *system) recorded() (ids []int) {
	b, err := os.ReadFile(filepath.Join(s.dir, "record"))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(s.t, err)
	whole := b[:strings.LastIndexByte(string(b), '\n')+1]
	for line := range strings.Lines(string(whole)) {
		id, err := strconv.Atoi(strings.Fields(line)[1])
		require.NoError(s.t, err)
		ids = append(ids, id)
	}
	return ids
}

// The position is durable before the source hears the ack (I2): after a crash in between it decides, and what it covers
// does not come again.
func TestCrashPositionDurable(t *testing.T) {
	t.Parallel()
	takePlace(t)
	const batch, lives = 10, 5
	// One batch in flight at a time: then the position that was stored last covers all that the sink has taken.
	s := nulls(t, conf{"positions": true, "batch": batch, "keys": 3}, conf{"keeps_order": true})
	s.pipe["delivery"] = conf{"max_in_flight": conf{"events": batch}}
	for range lives {
		h := s.start(launch{env: []string{"RELEVO_FAILPOINT=" + failpoint.PositionDurable + ":4"}})
		h.awaitKilled()
	}
	ids := s.recorded()
	require.Len(t, ids, lives*4*batch)
	for i, id := range ids {
		require.Equal(t, i+1, id, "nothing missing, nothing repeated")
	}
}

// A crash after the sink's ack and before the position is durable repeats what was acked: one window at most.
func TestCrashBeforePosition(t *testing.T) {
	t.Parallel()
	takePlace(t)
	s := nulls(t, conf{"positions": true, "batch": 10, "keys": 3, "rate": 5000}, conf{"keeps_order": true})
	const lives = 5
	for range lives {
		h := s.start(launch{env: []string{"RELEVO_FAILPOINT=" + failpoint.HostAcked + ":4"}})
		h.awaitKilled()
	}
	h := s.start(launch{})
	before := len(s.recorded())
	eventually(t, "the last host goes on", patience, func() bool { return len(s.recorded()) > before+2*window })
	h.stop()
	highest, repeats := 0, 0
	for _, id := range s.recorded() {
		if id <= highest {
			repeats++
			continue
		}
		require.Equal(t, highest+1, id, "nothing missing, first deliveries in order")
		highest = id
	}
	require.NotZero(t, repeats)
	require.LessOrEqual(t, repeats, lives*window)
}

// A discard is durable before the next event of its key is offered. After a crash in between it still holds, also when the
// broker would take the event by then: the consumer must never see 3, 2.
func TestCrashDiscardDurable(t *testing.T) {
	t.Parallel()
	takePlace(t)
	const limit = 4096
	s := newSystem(t, parts{})
	s.pipe["errors"] = conf{"permanent": "discard"}
	s.limit(limit)
	got := s.consume()
	h := s.start(launch{env: []string{"RELEVO_FAILPOINT=" + failpoint.DiscardDurable}})
	h.running()
	ids := s.emitSizes(1, 10, 2*limit, 10)
	h.awaitKilled()
	require.Zero(t, got.deliveries(ids[2]), "the next event waits for the note")

	s.limit(-1) // the broker would take it now
	h = s.start(launch{})
	s.awaitEmpty()
	h.stop()
	got.judge(ids[1])
	require.Zero(t, got.deliveries(ids[1]), "discarded once, discarded for good")
	require.Equal(t, 1, got.deliveries(ids[2]))
}

// A transaction that has not committed, or never does, has no event; one that commits while no relay runs has.
func TestCrashBeforeAndAfterCommit(t *testing.T) {
	t.Parallel()
	takePlace(t)
	s := newSystem(t, parts{})
	got := s.consume()
	h := s.start(launch{})
	h.running()
	var open string
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "insert into account values (1)"); err != nil {
			return err
		}
		tx, err := c.Begin(ctx)
		if err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "select emit(1, 10)::text").Scan(&open); err != nil {
			return err
		}
		// A later number that is published meanwhile shows that the relay has looked.
		other := s.emit(2)
		eventually(t, "the other event is delivered", patience, func() bool { return got.deliveries(other) == 1 })
		return nil // the connection closes: the service has crashed before its commit
	})
	h.kill()
	committed := s.emit(1)
	h = s.start(launch{})
	s.awaitEmpty()
	h.stop()
	got.verdict()
	require.Zero(t, got.deliveries(open))
	require.Equal(t, 1, got.deliveries(committed))
}

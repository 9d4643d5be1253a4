package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
	"github.com/relevo-io/relevo/internal/failpoint"
)

// keeps makes it a system whose rows stay where they are: what tells that one was published is the position alone.
func (s *system) keeps() {
	s.t.Helper()
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `alter table outbox add column tx xid8 not null default pg_current_xact_id(); create index on outbox(tx)`)
		return err
	})
	config := s.source()["config"].(conf)
	config["after_publish"], config["columns"] = "keep", conf{"tx": "tx"}
}

// awaitDelivered waits until everything that was committed has come.
func (c *consumer) awaitDelivered() {
	c.s.t.Helper()
	eventually(c.s.t, "everything is delivered", patience, func() bool {
		var n int
		c.s.query(func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, "select count(*) from journal").Scan(&n)
		})
		_, events := c.count()
		return events == n
	})
}

// A graceful restart under load repeats nothing: the position is all that the next host knows.
func TestKeepGracefulRestart(t *testing.T) {
	t.Parallel()
	takePlace(t)
	s := newSystem(t, parts{})
	s.keeps()
	c, l := s.consume(), s.load(loadConfig{})
	for i := range 4 {
		h := s.start(launch{})
		c.awaitMore(300)
		if i == 3 {
			l.stop()
			c.awaitDelivered()
		}
		h.signal(syscall.SIGTERM)
		require.Zero(t, h.wait(patience), "exit code")
		c.forgotten() // or the stream would drop what is repeated
	}
	require.Zero(t, c.judge().repeats)
}

// Host, source and sink are killed at each step of the way, three times under load: nothing is lost, order is kept, and at
// most a window repeated. A crash after the position was durable repeats only what came behind it.
func TestKeepCrashes(t *testing.T) {
	t.Parallel()
	for _, c := range []crash{
		{point: failpoint.SourceRead, in: "source"},
		{point: failpoint.SinkConfirmed, in: "sink"},
		{point: failpoint.HostAcked, in: "host"},
		{point: failpoint.PositionDurable, in: "host"},
	} {
		t.Run(c.point, func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			const rounds, hits = 3, 5
			s := newSystem(t, parts{})
			s.keeps()
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
			got.awaitDelivered()
			h.stop()
			f := got.judge()
			require.LessOrEqual(t, f.repeats, rounds*window)
			require.Equal(t, f.committed, s.rows("true"), "every row is still there")
		})
	}
}

// A table that was made anew stops the pipeline, which goes on by the word that its error says.
func TestKeepGap(t *testing.T) {
	t.Parallel()
	takePlace(t)
	s := newSystem(t, parts{})
	s.keeps()
	got := s.consume()
	h := s.start(launch{})
	s.emit(1)
	got.awaitDelivered()
	h.stop()
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `create table again (like outbox including all); drop table outbox; alter table again rename to outbox`)
		return err
	})
	last := s.emit(1)

	h = s.start(launch{})
	var hint string
	h.until("it stops at the gap", func(s pipeline.Status) bool {
		hint = fmt.Sprintf("%+v", s)
		return s.State == pipeline.Misconfigured
	})
	log, err := os.ReadFile(h.log)
	require.NoError(t, err)
	_, word, ok := strings.Cut(string(log), `accept_gap: \"`)
	require.True(t, ok, "%s\n%s", log, hint)
	h.stop()
	require.Zero(t, got.deliveries(last))

	s.source()["config"].(conf)["accept_gap"] = word[:8]
	h = s.start(launch{})
	got.awaitDelivered()
	h.stop()
	require.Equal(t, 1, got.deliveries(last))
}

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/internal/pgtest"
)

// I9: a secret never reaches a log, an error, a metric, a status page or another process's environment: not while all is
// well, and not when a server refuses it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	takePlace(t)
	const inDSN, inFile = "hunter2-of-postgres", "hunter2-of-nats"
	db := pgtest.Start(t, pgtest.Options{HBA: []string{"host all relay 127.0.0.1/32 scram-sha-256"}})
	broker := natstest.Start(t, natstest.Users(&server.User{Username: "relay", Password: inFile}))
	s := newSystem(t, parts{db: db.DSN(), nats: broker.URL(), options: []nats.Option{nats.UserInfo("relay", inFile)}})
	s.exec("create role relay login password '" + inDSN + "'; grant all on all tables in schema public to relay")
	passwordFile := filepath.Join(s.dir, "password")
	require.NoError(t, os.WriteFile(passwordFile, []byte(inFile+"\n"), 0o600))
	s.source()["config"] = conf{"dsn": fmt.Sprintf("postgres://relay:${DB_PASSWORD}@%s/postgres?sslmode=disable", db.Addr())}
	s.sink()["config"].(conf)["auth"] = conf{"user": "relay", "password": "${file:" + passwordFile + "}"}

	c := s.consume()
	h := s.start(launch{level: "debug", env: []string{"DB_PASSWORD=" + inDSN}})
	st := h.running()
	s.emit(1)
	c.awaitMore(1)
	look := func(when string) {
		t.Helper()
		seen := map[string]string{"log": h.logs()}
		for _, path := range []string{"/", "/metrics", "/api/v1/pipelines", "/api/v1/pipelines/orders", "/readyz"} {
			_, body, err := h.get(path)
			require.NoError(t, err)
			seen[path] = body
		}
		st, err := h.pipeline("orders")
		require.NoError(t, err)
		for name, pid := range map[string]int{"host": h.pid(), "source": st.Source.PID, "sink": st.Sinks[0].PID} {
			if runtime.GOOS != "linux" || pid == 0 {
				continue
			}
			seen["command line of the "+name] = proc(t, pid, "cmdline")
			if name != "host" { // it was given its own by us
				seen["environment of the "+name] = proc(t, pid, "environ")
			}
		}
		for where, text := range seen {
			for _, secret := range []string{inDSN, inFile} {
				require.False(t, strings.Contains(text, secret), "%s: %s is in the %s", when, secret, where)
			}
		}
	}
	require.NotZero(t, st.Source.PID)
	look("while all is well")

	// The passwords are wrong from now on, and every session is ended.
	s.exec("alter role relay password 'another'; select pg_terminate_backend(pid) from pg_stat_activity where usename = 'relay'")
	h.until("the database refuses the password", func(s pipeline.Status) bool {
		return s.State == pipeline.Misconfigured || s.State == pipeline.Retrying && strings.Contains(s.Reason, "password")
	})
	look("with a wrong password for the database")
	s.exec("alter role relay password '" + inDSN + "'")
	h.kill()

	require.NoError(t, os.WriteFile(passwordFile, []byte(inFile+"-once"), 0o600))
	h = s.start(launch{level: "debug", env: []string{"DB_PASSWORD=" + inDSN}})
	h.until("the broker refuses the password", func(s pipeline.Status) bool {
		return s.State == pipeline.Misconfigured || s.State == pipeline.Retrying && s.Reason != ""
	})
	look("with a wrong password for the broker")
	h.kill()
}

func (s *system) exec(sql string) {
	s.t.Helper()
	s.query(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql)
		return err
	})
}

// proc is a file of /proc about a process.
func proc(t *testing.T, pid int, name string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if !os.IsNotExist(err) { // it may have ended
		require.NoError(t, err)
	}
	return string(b)
}

package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const envOwner = "RELEVO_PGSERVER_TEST_OWNER" // makes the test binary a process that owns a server

func TestMain(m *testing.M) {
	if how := os.Getenv(envOwner); how != "" {
		own(how)
	}
	goleak.VerifyTestMain(m)
}

// own starts a server, says where, and then waits or panics, as told.
func own(how string) {
	s, err := Start(context.Background(), Options{})
	if err != nil {
		panic(err)
	}
	r, err := theReaper()
	if err != nil {
		panic(err)
	}
	if how == "freeze" {
		if err := s.Freeze(); err != nil {
			panic(err)
		}
	}
	fmt.Println(s.PID(), r.dir)
	if how == "panic" {
		panic("on purpose")
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until killed
	os.Exit(0)
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs PostgreSQL: not run with -short")
	}
	s, err := Start(t.Context(), o)
	if errors.Is(err, ErrNotFound) && os.Getenv("RELEVO_REQUIRE_SERVICES") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.DSN())
	require.NoError(t, err)
	defer c.Close(t.Context())
	var value string
	require.NoError(t, c.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

func TestSettingsAndHBA(t *testing.T) {
	t.Parallel()
	s := start(t, Options{
		Settings: map[string]string{"max_connections": "17"},
		HBA:      []string{"host all guarded 127.0.0.1/32 scram-sha-256"},
	})
	require.Equal(t, "17", query(t, s, "show max_connections"))
	require.Equal(t, "logical", query(t, s, "show wal_level"))
	require.Equal(t, strconv.Itoa(s.Version()), query(t, s, "select current_setting('server_version_num')::int/10000||''"))

	query(t, s, "with x as (select 1) select 'a' from x")
	c, err := pgx.Connect(t.Context(), s.DSN())
	require.NoError(t, err)
	defer c.Close(t.Context())
	_, err = c.Exec(t.Context(), "create role guarded login password 'right'")
	require.NoError(t, err)
	_, err = pgx.Connect(t.Context(), strings.Replace(s.DSN(), "postgres@", "guarded:wrong@", 1))
	require.ErrorContains(t, err, "28P01")
	ok, err := pgx.Connect(t.Context(), strings.Replace(s.DSN(), "postgres@", "guarded:right@", 1))
	require.NoError(t, err)
	require.NoError(t, ok.Close(t.Context()))
}

func TestCrashKeepsWhatWasCommitted(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	addr, pid := s.Addr(), s.PID()
	c, err := pgx.Connect(t.Context(), s.DSN())
	require.NoError(t, err)
	defer c.Close(context.Background())
	_, err = c.Exec(t.Context(), "create table t(n int)")
	require.NoError(t, err)
	for n := range 10 {
		_, err = c.Exec(t.Context(), "insert into t values($1)", n)
		require.NoError(t, err)
	}
	_, err = c.Exec(t.Context(), "begin; insert into t values(99)")
	require.NoError(t, err)

	require.NoError(t, s.Crash())
	require.ErrorIs(t, s.Crash(), ErrNotRunning)
	require.ErrorIs(t, s.Stop(Fast), ErrNotRunning)
	require.Zero(t, s.PID())
	_, err = c.Exec(t.Context(), "select 1")
	require.Error(t, err, "a session outlived the crash")
	_, err = pgx.Connect(t.Context(), s.DSN())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	require.NoError(t, s.Restart(t.Context()))
	require.Equal(t, addr, s.Addr())
	require.NotEqual(t, pid, s.PID())
	require.Equal(t, "10", query(t, s, "select count(*)::text from t"))
}

func TestStopModes(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	for _, mode := range []StopMode{Smart, Fast, Immediate} {
		require.NoError(t, s.Stop(mode))
		require.NoError(t, s.Restart(t.Context()))
		require.Equal(t, "1", query(t, s, "select '1'"))
	}
	require.NoError(t, s.Restart(t.Context()), "restart of a running server")
	require.Equal(t, "1", query(t, s, "select '1'"))
}

func TestFreeze(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	c, err := pgx.Connect(t.Context(), s.DSN())
	require.NoError(t, err)
	defer c.Close(context.Background())

	require.NoError(t, s.Freeze())
	answered := make(chan error, 1) // one answer
	go func() {
		_, err := c.Exec(context.Background(), "select 1")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("a frozen server answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, s.Thaw())
	require.NoError(t, <-answered)
}

func TestBadSettingSaysWhy(t *testing.T) {
	t.Parallel()
	start(t, Options{}) // or skip
	_, err := Start(t.Context(), Options{Settings: map[string]string{"shared_buffers": "lots"}})
	require.ErrorContains(t, err, "shared_buffers")
}

func TestNothingOutlivesItsOwner(t *testing.T) {
	t.Parallel()
	start(t, Options{}) // or skip
	for _, how := range []string{"kill", "panic", "freeze"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), envOwner+"="+how)
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			defer in.Close()
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			var pid int
			var dir string
			_, err = fmt.Sscan(line, &pid, &dir)
			require.NoError(t, err)
			require.DirExists(t, dir)
			if how != "panic" {
				require.NoError(t, cmd.Process.Kill())
			}
			_ = cmd.Wait()
			require.Eventually(t, func() bool { return gone(pid) }, 15*time.Second, 10*time.Millisecond, "the postmaster lives on")
			require.Eventually(t, func() bool {
				_, err := os.Stat(dir)
				return errors.Is(err, os.ErrNotExist)
			}, 15*time.Second, 10*time.Millisecond, "its directory is still there")
		})
	}
}

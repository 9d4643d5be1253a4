package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const (
	hostileDir = "../../test/plugins/hostile"
	soon       = 20 * time.Second // a deadline for what takes milliseconds on a quiet machine
)

var hostileExe string

func TestMain(m *testing.M) {
	if mode := os.Getenv("RELEVO_TEST_AS_HOST"); mode != "" {
		asHost(mode)
		return
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "relevo-hostile-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	hostileExe = filepath.Join(dir, "sink-hostile")
	build := exec.Command("go", "build", "-o", hostileExe, ".")
	build.Dir = hostileDir
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the hostile plugin: %v\n%s", err, out)
		return 1
	}
	// A secret of the host's, for the test of the allow-list.
	if err := os.Setenv("RELEVO_TEST_SECRET", "hunter2"); err != nil {
		return 1
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// shortDir is a temporary directory whose name leaves room for a socket.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "r")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// hostile is how the plugin of that behaviour is launched.
func hostile(t testing.TB, mode string) (Settings, *logs) {
	l := &logs{}
	return Settings{
		Kind: KindSink, Name: "hostile", Path: hostileExe, Pipeline: "p", Instance: "s",
		Env:        map[string]string{"HOSTILE": mode, "HOSTILE_EXE": hostileExe},
		RuntimeDir: shortDir(t),
		Log:        slog.New(l),
	}, l
}

func script(t testing.TB, name string) string {
	path, err := filepath.Abs(filepath.Join(hostileDir, name))
	require.NoError(t, err)
	return path
}

func mustLaunch(t testing.TB, s Settings) *Process { return mustLaunchIn(t, s, defaultTiming()) }

func mustLaunchIn(t testing.TB, s Settings, tm timing) *Process {
	p, err := launch(t.Context(), s, tm)
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	return p
}

func wait(t testing.TB, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(soon):
		require.FailNow(t, "not in time: "+what)
	}
}

func eventually(t testing.TB, cond func() bool, what string) {
	t.Helper()
	require.Eventually(t, cond, soon, 5*time.Millisecond, what)
}

// gone reports whether a process has ended; one that nobody has reaped yet has.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	s := state(pid)
	return s == 'Z' || s == 'X' || s == 0
}

// state of a process: R, S, T, Z, …; 0: it is not there.
func state(pid int) byte {
	if _, err := os.Stat("/proc/self/stat"); err != nil { // Darwin
		out, _ := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
		return append(bytes.TrimSpace(out), 0)[0]
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return append([]byte(after), 0)[0]
}

// logs is a slog.Handler that keeps what it is given.
type logs struct {
	mu   sync.Mutex
	recs []logged
}

type logged struct {
	Level slog.Level
	Msg   string
	Attrs map[string]string
}

func (l *logs) Enabled(context.Context, slog.Level) bool { return true }
func (l *logs) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logs) WithGroup(string) slog.Handler            { return l }

func (l *logs) Handle(_ context.Context, r slog.Record) error {
	rec := logged{Level: r.Level, Msg: r.Message, Attrs: map[string]string{}}
	r.Attrs(func(a slog.Attr) bool {
		rec.Attrs[a.Key] = a.Value.String()
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recs = append(l.recs, rec)
	return nil
}

func (l *logs) all() []logged {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]logged(nil), l.recs...)
}

func (l *logs) find(msg string) (logged, bool) {
	for _, r := range l.all() {
		if strings.HasPrefix(r.Msg, msg) {
			return r, true
		}
	}
	return logged{}, false
}

// await waits for a record.
func (l *logs) await(t testing.TB, msg string) logged {
	t.Helper()
	var rec logged
	eventually(t, func() (ok bool) { rec, ok = l.find(msg); return ok }, "log record "+msg)
	return rec
}

// pidIn waits for a line "word PID".
func (l *logs) pidIn(t testing.TB, word string) int {
	t.Helper()
	rec := l.await(t, word+" ")
	pid, err := strconv.Atoi(strings.TrimPrefix(rec.Msg, word+" "))
	require.NoError(t, err)
	return pid
}

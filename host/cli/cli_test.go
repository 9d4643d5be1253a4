package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// pluginDir holds real plugins, built once: source-null and sink-null.
var pluginDir string

func TestMain(m *testing.M) {
	os.Exit(testscript.RunMain(withPlugins{m}, map[string]func() int{
		"relevo": func() int { return Main(os.Args[1:], os.Stdout, os.Stderr) },
	}))
}

// withPlugins builds the plugins before the tests, and not in the processes that tests start.
type withPlugins struct{ *testing.M }

func (m withPlugins) Run() int {
	dir, err := os.MkdirTemp("", "relevo-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	pluginDir = dir
	for exe, pkg := range map[string]string{"source-null": "nullsource", "sink-null": "nullsink"} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, exe), "../../test/plugins/"+pkg)
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", pkg, err, out)
			return 1
		}
	}
	if code := m.M.Run(); code != 0 {
		return code
	}
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("RELEVO_PLUGIN_PATH", pluginDir)
			e.Setenv("PLUGINS", pluginDir)
			e.Setenv("RELEVO_LISTEN", "127.0.0.1:0")
			port, err := freePort()
			e.Setenv("PORT", port)
			return err
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits,
			"lines": lines,
			"get":   get,
			"stop":  stop,
		},
	})
}

// freePort is one that nobody listens on now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// exits runs a command and wants the exit code: exits 2 relevo validate.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		e, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = e.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// lines waits until a file has so many lines: lines 100 record.
func lines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lines N FILE")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(ts.MkAbs(args[1]))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			ts.Check(err)
		}
		if got = bytes.Count(b, []byte("\n")); got >= want {
			return
		}
	}
	ts.Fatalf("%s has %d lines, want %d", args[1], got, want)
}

// get waits until a URL answers with a status: get 200 http://127.0.0.1:1/readyz. The body becomes stdout.
func get(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: get STATUS URL")
	}
	last := ""
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		r, err := http.Get(args[1])
		if err != nil {
			last = err.Error()
			continue
		}
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		ts.Check(err)
		if last = r.Status; strconv.Itoa(r.StatusCode) == args[0] {
			_, err := ts.Stdout().Write(body)
			ts.Check(err)
			return
		}
	}
	ts.Fatalf("%s: %s, want %s", args[1], last, args[0])
}

// stop signals the background command that was started last: stop SIGTERM.
func stop(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]os.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT}
	commands := ts.BackgroundCmds()
	if neg || len(args) != 1 || signals[args[0]] == nil || len(commands) == 0 {
		ts.Fatalf("usage: stop SIGNAL")
	}
	ts.Check(commands[len(commands)-1].Process.Signal(signals[args[0]]))
}

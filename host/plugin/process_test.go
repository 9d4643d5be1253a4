package plugin

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/langtest"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// quick finds a hung plugin within a second or two.
func quick() timing {
	t := defaultTiming()
	t.healthEvery, t.healthDeadline = 50*time.Millisecond, 250*time.Millisecond
	return t
}

func TestLaunchAndClose(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"good", "stock"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, _ := hostile(t, mode)
			p := mustLaunch(t, s)
			require.WithinDuration(t, time.Now(), p.Alive(), soon)
			d, err := p.Describe(t.Context())
			require.NoError(t, err)
			require.Equal(t, "hostile", d.GetName())

			p.Close(t.Context())
			p.Close(t.Context())
			p.Kill()
			require.NoError(t, p.Exit().Err, "it exits by itself at the end of stdin")
			require.True(t, gone(p.PID()))
			left, err := os.ReadDir(s.RuntimeDir)
			require.NoError(t, err)
			require.Empty(t, left, "its socket directory is removed")
		})
	}
}

// go-plugin's Serve takes os.Stdout and os.Stderr away from the plugin; what is written there must not get lost.
func TestStdoutAndStderrOfGoPlugin(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "stock")
	p := mustLaunch(t, s)
	_, err := p.Describe(t.Context())
	require.NoError(t, err)
	require.Equal(t, "stdout", l.await(t, "printed to stdout").Attrs["stream"])
	require.Equal(t, slog.LevelWarn, l.await(t, "printed to stderr").Level)
}

// A broker would start a goroutine in the host for each connection that a plugin announces.
func TestNoBroker(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "tell")
	p := mustLaunch(t, s)
	l.await(t, "not served: /plugin.GRPCStdio/StreamStdio")
	p.Close(t.Context())
	_, ok := l.find("not served: /plugin.GRPCBroker")
	require.False(t, ok)
}

func TestHostileStderr(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "stderr")
	p := mustLaunch(t, s)

	rec := l.await(t, "from hclog")
	require.Equal(t, slog.LevelWarn, rec.Level)
	require.Equal(t, map[string]string{"module": "m", "rows": "12"}, rec.Attrs)
	rec = l.await(t, "from slog")
	require.Equal(t, slog.LevelError, rec.Level)
	require.Equal(t, map[string]string{"stream": "ORDERS", "n": "[a=1.5 b=[1,null]]"}, rec.Attrs)
	require.Equal(t, slog.LevelInfo, l.await(t, "from pino").Level)
	require.Equal(t, slog.LevelInfo, l.await(t, `{"@message":1}`).Level)
	require.Equal(t, "\uFFFD[31mred\uFFFD[0m \uFFFD\uFFFD binary", l.await(t, "\uFFFD[31mred").Msg)
	require.Equal(t, slog.LevelWarn, l.await(t, "with a prefix").Level)
	rec = l.await(t, "yyyy")
	require.Len(t, rec.Msg, maxLine)
	require.Equal(t, strconv.Itoa(1<<20-maxLine), rec.Attrs["cut_bytes"])
	l.await(t, "after the long line")

	_, err := p.Describe(t.Context())
	require.NoError(t, err, "the plugin still works")
	p.Close(t.Context())
	require.NoError(t, p.Exit().Err)
	l.await(t, "no end of line")
	require.Len(t, p.Exit().LastLogs, tailLines)
	require.Equal(t, "no end of line", p.Exit().LastLogs[tailLines-1])
}

func TestFloodOfLogLines(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "flood")
	p := mustLaunch(t, s)
	p.Close(t.Context())

	kept, dropped := 0, 0
	for _, r := range l.all() {
		if strings.HasPrefix(r.Msg, "flood ") {
			kept++
		}
		if n, ok := r.Attrs["dropped"]; ok {
			d, err := strconv.Atoi(n)
			require.NoError(t, err)
			dropped += d
		}
	}
	require.Equal(t, 50_000, kept+dropped, "what was dropped is said")
	require.GreaterOrEqual(t, kept, lineBurst)
	require.Positive(t, dropped)
	require.Equal(t, "flood 49999", p.Exit().LastLogs[tailLines-1], "the last lines are kept also when dropped")
}

func TestJunkBeforeHandshake(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "junk")
	p := mustLaunch(t, s)
	require.Equal(t, "stdout", l.await(t, "Loading modules...").Attrs["stream"])
	l.await(t, "almost|a|hand|shake")
	require.Empty(t, p.log.last(), "stdout is no part of the last lines of stderr")
}

// A 200 KB line stops go-plugin's scanner, and the plugin with the next write.
func TestLongStdoutLine(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "long-line") // one before the handshake, one after it
	p := mustLaunch(t, s)
	_, err := p.Describe(t.Context())
	require.NoError(t, err)
	eventually(t, func() bool {
		n := 0
		for _, r := range l.all() {
			if strings.HasPrefix(r.Msg, "xxx") {
				n++
			}
		}
		return n == 2
	}, "both lines are logged")
}

func TestStoppedPluginIsFoundHung(t *testing.T) {
	t.Parallel()
	s, _ := hostile(t, "good")
	p := mustLaunchIn(t, s, quick())
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGSTOP))
	wait(t, p.Done(), "the hung plugin is killed")
	e := p.Exit()
	require.True(t, e.Hung)
	require.ErrorContains(t, e.Err, "5 missed health checks")
}

func TestHealthThatTurnsBad(t *testing.T) {
	t.Parallel()
	s, _ := hostile(t, "health-turns")
	p := mustLaunchIn(t, s, quick())
	wait(t, p.Done(), "the sick plugin is killed")
	require.True(t, p.Exit().Hung)
	require.ErrorContains(t, p.Exit().Err, "NOT_SERVING")
}

func TestCloseOfStoppedPluginEnds(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "good")
	p := mustLaunch(t, s)
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGSTOP))
	eventually(t, func() bool { return state(p.PID()) == 'T' }, "the plugin is stopped")
	closeWithin(t, p, 200*time.Millisecond)
	require.False(t, p.Exit().Hung)
	require.ErrorContains(t, p.Exit().Err, "killed")
	l.await(t, "plugin does not exit at the end of its stdin")
}

func TestCloseOfPluginThatIgnoresEOF(t *testing.T) {
	t.Parallel()
	s, _ := hostile(t, "deaf")
	p := mustLaunch(t, s)
	closeWithin(t, p, 200*time.Millisecond)
	require.ErrorContains(t, p.Exit().Err, "killed")

	tm := defaultTiming()
	tm.exitGrace = 100 * time.Millisecond
	p = mustLaunchIn(t, s, tm)
	closed := make(chan struct{})
	go func() { defer close(closed); p.Close(context.Background()) }()
	wait(t, closed, "Close has a limit of its own")
}

// closeWithin closes under a deadline and checks that little more than it was needed.
func closeWithin(t *testing.T, p *Process, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	start := time.Now()
	p.Close(ctx)
	require.Less(t, time.Since(start), d+3*time.Second)
	require.True(t, gone(p.PID()))
}

func TestChildOfWrapperDiesWithIt(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"close", "kill", "crash"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			s, l := hostile(t, "good")
			s.Path = script(t, "wrapper.sh")
			p := mustLaunch(t, s)
			bystander := l.pidIn(t, "bystander")
			require.False(t, gone(bystander))
			switch end {
			case "close":
				p.Close(t.Context())
				require.NoError(t, p.Exit().Err)
			case "kill":
				p.Kill()
			case "crash":
				require.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL)) // the shell alone
				wait(t, p.Done(), "the end of the shell is the end of the plugin")
			}
			eventually(t, func() bool { return gone(bystander) }, "what the wrapper left running is killed")
		})
	}
}

func TestWrapperThatDoesNotWait(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "silent")
	s.Path = script(t, "nowait.sh")
	_, err := Launch(t.Context(), s)
	requireCode(t, err, CodeExited)
	require.ErrorContains(t, err, "exit status 4")
	bystander := l.pidIn(t, "bystander")
	eventually(t, func() bool { return gone(bystander) }, "the plugin that was left alone is killed")
}

// A process that left the group keeps stdout and stderr open: nothing waits for it.
func TestEscapedChildHoldsThePipes(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "escape")
	p := mustLaunch(t, s)
	escaped := l.pidIn(t, "escaped")
	t.Cleanup(func() { _ = syscall.Kill(escaped, syscall.SIGKILL) })
	closed := make(chan struct{})
	go func() { defer close(closed); p.Close(context.Background()) }()
	wait(t, closed, "Close")
	require.False(t, gone(escaped), "the test is about one that lives on")
}

func TestCrash(t *testing.T) {
	t.Parallel()
	s, _ := hostile(t, "good")
	p := mustLaunch(t, s)
	_, err := p.Check(t.Context(), &pluginv1.CheckRequest{Config: []byte("exit")})
	require.Error(t, err)
	wait(t, p.Done(), "the end of the process is noticed")
	require.EqualError(t, p.Exit().Err, "exit status 7")
	require.Equal(t, []string{"leaving"}, p.Exit().LastLogs)
	require.False(t, p.Exit().Hung)
	p.Close(t.Context())
}

// The stack of a panic is longer than the ten lines that are kept; its first line is what matters.
func TestCrashByPanic(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "good")
	p := mustLaunch(t, s)
	_, err := p.Check(t.Context(), &pluginv1.CheckRequest{Config: []byte("panic")})
	require.Error(t, err)
	wait(t, p.Done(), "the end of the process is noticed")
	require.Contains(t, p.Exit().LastLogs[0], "panic: out of cheese")
	require.LessOrEqual(t, len(p.Exit().LastLogs), tailLines)
	require.Equal(t, slog.LevelError, l.await(t, "panic: out of cheese").Level)
}

// I9: of the host's environment a plugin sees the allow-list, and what its settings add.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	s, _ := hostile(t, "good")
	s.Env["RELEVO_PLUGIN"] = "overridden"
	p := mustLaunch(t, s)
	r, err := p.Check(t.Context(), &pluginv1.CheckRequest{})
	require.NoError(t, err)
	env := map[string]string{}
	for _, f := range r.GetFindings() {
		env[f.GetCode()] = f.GetMessage()
	}
	require.NotEmpty(t, os.Getenv("RELEVO_TEST_SECRET"), "the host has it")
	require.NotContains(t, env, "RELEVO_TEST_SECRET")
	for k := range env {
		if strings.HasPrefix(k, "LC_") || strings.HasPrefix(k, "PLUGIN_") {
			continue
		}
		require.Contains(t, append([]string{"RELEVO_PLUGIN", "RELEVO_HOST_PID", "RELEVO_LOG_LEVEL", "HOSTILE", "HOSTILE_EXE"},
			allowedEnv...), k)
	}
	require.Equal(t, "d5a3", env["RELEVO_PLUGIN"], "the handshake can't be overridden")
	require.Equal(t, strconv.Itoa(os.Getpid()), env["RELEVO_HOST_PID"])
	require.Equal(t, "debug", env["RELEVO_LOG_LEVEL"])
	require.Equal(t, os.Getenv("PATH"), env["PATH"])
	require.True(t, strings.HasPrefix(env["PLUGIN_UNIX_SOCKET_DIR"], s.RuntimeDir+"/"))
}

func TestPluginInPython(t *testing.T) {
	t.Parallel()
	python := langtest.Python(t)
	s, l := hostile(t, "")
	s.Path = script(t, "plugin.py")
	s.Env["PATH"] = filepath.Dir(python) + ":" + os.Getenv("PATH") // where env looks for python3
	p := mustLaunch(t, s)
	l.await(t, "plugin: serving")
	_, err := p.Describe(t.Context())
	require.ErrorContains(t, err, "Method not found")
	start := time.Now()
	p.Close(t.Context())
	require.NoError(t, p.Exit().Err, "it exits by itself")
	require.Less(t, time.Since(start), 4*time.Second)
}

// The kernel closes the lifeline of a host that is killed.
func TestPluginDiesWithTheHost(t *testing.T) {
	t.Parallel()
	for _, wrapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("wrapped=%v", wrapped), func(t *testing.T) {
			t.Parallel()
			exe := hostileExe
			if wrapped {
				exe = script(t, "wrapper.sh")
			}
			host := exec.Command(os.Args[0])
			host.Env = append(os.Environ(), "RELEVO_TEST_AS_HOST="+exe, "HOSTILE_EXE="+hostileExe, "RELEVO_TEST_DIR="+shortDir(t))
			host.Stderr = os.Stderr
			out, err := host.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, host.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			require.NoError(t, err)
			require.False(t, gone(pid))

			start := time.Now()
			require.NoError(t, host.Process.Kill())
			_ = host.Wait()
			eventually(t, func() bool { return gone(pid) }, "the plugin exits")
			require.Less(t, time.Since(start), time.Second)
			if wrapped { // the group outlives its host; what is left of it is ours to end
				_ = syscall.Kill(-pid, syscall.SIGKILL)
			}
		})
	}
}

// asHost is the test binary as a host: it makes its runtime directory and prints it, or launches a plugin and prints its
// pid; and waits to be killed.
func asHost(exe string) {
	if exe == "runtime-dir" {
		dir, _, err := RuntimeDir()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(dir)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	p, err := Launch(context.Background(), Settings{
		Kind: KindSink, Name: "hostile", Path: exe, RuntimeDir: os.Getenv("RELEVO_TEST_DIR"),
		Env: map[string]string{"HOSTILE": "good", "HOSTILE_EXE": os.Getenv("HOSTILE_EXE")},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(p.PID())
	<-p.Done()
}

// Fifty starts, each ended in another way, leave no goroutine and no file behind.
func TestRestartsLeakNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts fifty processes")
	}
	// Not parallel: it counts.
	before := leakCount(t)
	for i := range 50 {
		mode := []string{"good", "stock", "crash", "nobody", "gone"}[i%5]
		s, _ := hostile(t, mode)
		p, err := Launch(t.Context(), s)
		if i%5 >= 2 {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		switch i % 3 {
		case 0:
			p.Close(t.Context())
		case 1:
			p.Kill()
		case 2: // a crash that nobody tidies up after
			require.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL))
			wait(t, p.Done(), "the end of the process is noticed")
		}
	}
	eventually(t, func() bool {
		now := leakCount(t)
		return now.goroutines <= before.goroutines && now.files <= before.files
	}, "goroutines and files are as before")
}

// go-plugin must not hear of an exit while Client is under way: it would leave a connection and goroutines behind.
func TestEndIsKeptFromGoPluginUntilRelease(t *testing.T) {
	t.Parallel()
	s, _ := hostile(t, "crash")
	s, err := s.withDefaults()
	require.NoError(t, err)
	r := newOSProcess(s, shortDir(t), newLineLog(s.Log), defaultTiming())
	r.env = []string{"HOSTILE=crash"}
	require.NoError(t, r.Start(t.Context()))
	waited := make(chan error, 1)
	go func() { waited <- r.Wait(context.Background()) }()
	wait(t, r.ended, "the exit")
	require.Never(t, func() bool { return len(waited) > 0 }, 50*time.Millisecond, 5*time.Millisecond)
	r.release()
	require.EqualError(t, <-waited, "exit status 3")
}

type leaks struct{ goroutines, files int }

func leakCount(t *testing.T) leaks {
	var l leaks
	for _, g := range bytes.Split(stacks(), []byte("\n\n")) {
		// Only what belongs to plugins, so that test helpers do not count.
		if bytes.Contains(g, []byte("go-plugin")) || bytes.Contains(g, []byte("grpc")) || bytes.Contains(g, []byte("host/plugin.(*")) {
			l.goroutines++
		}
	}
	fds, err := os.ReadDir("/dev/fd")
	require.NoError(t, err)
	l.files = len(fds)
	return l
}

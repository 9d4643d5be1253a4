package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
)

// host is one life of `relevo run`.
type host struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  string // path
	addr string
	done chan struct{} // closed once it has been reaped
}

// launch says how to start a host, where it is not as ever.
type launch struct {
	name  string   // of its state and log; defaults to "relevo"
	env   []string // beside ours
	files []string // pipeline files; defaults to the system's one
	level string   // of the log; defaults to info
}

// lives numbers the logs.
var lives atomic.Int64

// start starts a host and waits until it listens.
func (s *system) start(l launch) *host {
	s.t.Helper()
	if l.name == "" {
		l.name = "relevo"
	}
	if l.level == "" {
		l.level = "info"
	}
	if l.files == nil {
		l.files = []string{s.write("orders.yaml", s.pipe)}
	}
	h := &host{t: s.t, log: filepath.Join(s.dir, fmt.Sprintf("%s-%d.log", l.name, lives.Add(1))), done: make(chan struct{})}
	log, err := os.Create(h.log)
	require.NoError(s.t, err)
	defer log.Close()
	args := append([]string{
		"run", "--listen", "127.0.0.1:0", "--state", filepath.Join(s.dir, l.name+".db"), "--log-format", "json", "--log-level", l.level,
	}, l.files...)
	h.cmd = exec.Command(executable(s.t, "relevo"), args...)
	h.cmd.Env = append(os.Environ(), l.env...)
	h.cmd.Stdout, h.cmd.Stderr = log, log
	h.cmd.SysProcAttr = ownGroup()
	require.NoError(s.t, h.cmd.Start())
	go func() {
		defer close(h.done)
		_ = h.cmd.Wait() // how it ended is asked later
	}()
	s.t.Cleanup(func() {
		h.kill()
		assert.NotContains(s.t, h.logs(), "DATA RACE", "in the host or a plugin")
		if s.t.Failed() {
			s.t.Logf("the end of %s:\n%s", filepath.Base(h.log), tailOf(h.logs(), 120))
		}
	})
	eventually(s.t, "the host listens", patience, func() bool {
		h.addr = h.listening()
		return h.addr != "" || h.over()
	})
	require.NotEmpty(s.t, h.addr, "the host has ended")
	return h
}

// listening is the address that the log names.
func (h *host) listening() string {
	for line := range strings.Lines(h.logs()) {
		var l struct{ Msg, Listen string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "relevo starts" {
			return l.Listen
		}
	}
	return ""
}

func (h *host) logs() string {
	b, err := os.ReadFile(h.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func tailOf(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (h *host) pid() int { return h.cmd.Process.Pid }

func (h *host) over() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// kill ends it with SIGKILL, unless it has ended already, and waits for it.
func (h *host) kill() {
	_ = h.cmd.Process.Kill() // it may have ended
	<-h.done
}

func (h *host) signal(sig syscall.Signal) {
	h.t.Helper()
	require.NoError(h.t, h.cmd.Process.Signal(sig))
}

// wait waits for its end and returns the exit code; −1: killed by a signal.
func (h *host) wait(within time.Duration) int {
	h.t.Helper()
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-h.done:
		return h.cmd.ProcessState.ExitCode()
	case <-t.C:
		h.t.Fatalf("the host does not end within %s", within)
		return 0
	}
}

// stop drains it.
func (h *host) stop() {
	h.t.Helper()
	h.signal(syscall.SIGTERM)
	require.Zero(h.t, h.wait(patience), "exit code")
}

// awaitKilled waits until it has died of its failpoint.
func (h *host) awaitKilled() {
	h.t.Helper()
	h.wait(patience)
	ws, ok := h.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(h.t, ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL, "the host ended otherwise: %s", h.cmd.ProcessState)
}

// get asks the host over HTTP.
func (h *host) get(path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.addr+path, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

var errNoPipeline = errors.New("no such pipeline")

// status asks the API for a pipeline.
func (h *host) pipeline(name string) (pipeline.Status, error) {
	var s pipeline.Status
	code, body, err := h.get("/api/v1/pipelines/" + name)
	if err != nil {
		return s, err
	}
	if code != http.StatusOK {
		return s, errNoPipeline
	}
	return s, json.NewDecoder(bytes.NewBufferString(body)).Decode(&s)
}

// until waits for the pipeline orders to be in a state, and returns it.
func (h *host) until(what string, ok func(pipeline.Status) bool) pipeline.Status {
	h.t.Helper()
	var last pipeline.Status
	defer func() {
		if h.t.Failed() {
			b, _ := json.MarshalIndent(last, "", "  ")
			h.t.Logf("last status:\n%s", b)
		}
	}()
	eventually(h.t, what, patience, func() bool {
		s, err := h.pipeline("orders")
		if err != nil {
			return false
		}
		last = s
		return ok(s)
	})
	return last
}

// running waits until the pipeline runs, and both plugins have a process.
func (h *host) running() pipeline.Status {
	h.t.Helper()
	return h.until("the pipeline runs", func(s pipeline.Status) bool {
		return s.State == pipeline.Running && s.Source.PID != 0 && s.Sinks[0].PID != 0
	})
}

// gone reports whether a process has ended. A zombie has: its parent is late, or it is pid 1's.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}

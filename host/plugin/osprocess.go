package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin/runner"
)

var (
	errExited = errors.New("exited before the handshake")
	errKilled = errors.New("killed by the host")
)

// osProcess is the operating system's side of a plugin: the executable in a process group of its own, the three pipes,
// reaping and killing. It is go-plugin's Runner, which sees nothing of it but a checked handshake line and the end.
type osProcess struct {
	s   Settings
	dir string // of the socket
	log *lineLog
	t   timing
	env []string

	handshake *onceReader
	connected chan struct{} // release was called: Wait may return
	ended     chan struct{} // reaped, and its pipes are read to the end
	readers   sync.WaitGroup

	pid   int              // written by Start
	state *os.ProcessState // written before ended

	mu       sync.Mutex
	cmd      *exec.Cmd // nil: never started
	stdin    *os.File  // the lifeline: the plugin exits when it reads EOF, also when the host was killed
	startErr error
	aborted  error
	failure  error // why there was no handshake
	address  string
	conns    []net.Conn
	killed   bool // by the host, or about to be
	byItself bool // it ended before the host killed it
	reaped   bool
}

var _ runner.Runner = (*osProcess)(nil)

func newOSProcess(s Settings, dir string, log *lineLog, t timing) *osProcess {
	return &osProcess{
		s: s, dir: dir, log: log, t: t,
		handshake: newOnceReader(),
		connected: make(chan struct{}),
		ended:     make(chan struct{}),
	}
}

// Start runs the executable. go-plugin calls it once.
func (r *osProcess) Start(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.aborted != nil {
		return r.aborted
	}
	cmd, pipes, err := r.exec()
	if err != nil {
		r.startErr = err
		return err
	}
	r.cmd, r.pid, r.stdin = cmd, cmd.Process.Pid, pipes.stdin
	stdout, stderr := r.log.splitter("stdout"), r.log.splitter("stderr")
	stdout.offer = r.offer
	r.readers.Go(func() { drain(stdout, pipes.stdout) })
	r.readers.Go(func() { drain(stderr, pipes.stderr) })
	go r.reap(pipes) // whoever waits for ended waits for it
	return nil
}

// pipes are the host's ends.
type pipes struct{ stdin, stdout, stderr *os.File }

func (r *osProcess) exec() (*exec.Cmd, pipes, error) {
	var files []*os.File
	pipe := func() (rd, wr *os.File, err error) {
		if rd, wr, err = os.Pipe(); err == nil {
			files = append(files, rd, wr)
		}
		return rd, wr, err
	}
	stdin, stdinW, err1 := pipe()
	stdoutR, stdout, err2 := pipe()
	stderrR, stderr, err3 := pipe()
	err := errors.Join(err1, err2, err3)
	cmd := &exec.Cmd{
		Path: r.s.Path, Args: []string{r.s.Path}, Env: r.env,
		Stdin: stdin, Stdout: stdout, Stderr: stderr,
		// Its own group: a terminal's SIGINT must not kill it before the drain, and what it starts dies with it. No
		// Pdeathsig: it fires when the thread that forked ends, and Go ends threads as it likes.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, pipes{}, err
	}
	// The plugin has its own copies; with ours open, its end would not be seen.
	_, _, _ = stdin.Close(), stdout.Close(), stderr.Close()
	return cmd, pipes{stdinW, stdoutR, stderrR}, nil
}

// reap waits for the end of the process, and leaves nothing of it behind.
func (r *osProcess) reap(pipes pipes) {
	defer close(r.ended)
	if !awaitExit(r.pid) {
		_ = r.cmd.Wait()
	}
	// The leader is a zombie, which keeps the number of the group ours: after Wait it could be a stranger's. What a
	// wrapper script left running dies here.
	r.mu.Lock()
	r.byItself = !r.killed
	r.killGroup()
	_ = r.cmd.Wait()
	r.state = r.cmd.ProcessState
	r.reaped = true
	r.mu.Unlock()
	r.closeStdin()
	r.cut()

	// A process that left the group may keep the pipes open for ever: what is in them now is read, and no more.
	_ = pipes.stdout.SetReadDeadline(time.Now().Add(r.t.drainPipes))
	_ = pipes.stderr.SetReadDeadline(time.Now().Add(r.t.drainPipes))
	r.readers.Wait()
	_, _ = pipes.stdout.Close(), pipes.stderr.Close()
	r.fail(errExited)
}

// drain reads a pipe for ever, so that the plugin never blocks on it.
func drain(to *splitter, from *os.File) {
	_, _ = io.Copy(to, onlyReader{from}) // ends at EOF, or at the deadline that reap sets
	to.flush()
}

// onlyReader hides os.File.WriteTo, which would splice instead of calling Write.
type onlyReader struct{ io.Reader }

// offer is shown each line of stdout until the handshake is settled. True: it was the handshake line.
func (r *osProcess) offer(line string) bool {
	h, ok := parseHandshake(line)
	if !ok || r.handshake.settled() {
		return false
	}
	if err := h.check(r.dir); err != nil {
		r.fail(err)
		return true
	}
	r.mu.Lock()
	r.address = h.address
	r.mu.Unlock()
	r.handshake.settle(line + "\n")
	return true
}

// fail ends the handshake without a line.
func (r *osProcess) fail(err error) {
	if r.handshake.settled() {
		return
	}
	r.mu.Lock()
	if r.failure == nil {
		r.failure = err
	}
	r.mu.Unlock()
	r.handshake.settle("")
}

// abort ends a start: go-plugin, which knows no context, returns soon after.
func (r *osProcess) abort(cause error) {
	r.mu.Lock()
	r.aborted = cause
	r.mu.Unlock()
	r.fail(cause)
	r.kill()
}

// release lets Wait return. Until then go-plugin takes the process for alive: if it noticed an exit in the middle of
// Client, it would leave a connection and two goroutines behind that nothing can end.
func (r *osProcess) release() { close(r.connected) }

func (r *osProcess) started() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cmd != nil
}

// group is the process group, 0 before the start.
func (r *osProcess) group() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pid
}

// dial connects to the socket named in the handshake. The connections are remembered, to be cut with the process: the
// other end can be in the hands of a process that left the group.
func (r *osProcess) dial(ctx context.Context, _ string) (net.Conn, error) {
	r.mu.Lock()
	address := r.address
	r.mu.Unlock()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", address)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reaped || r.killed {
		_ = conn.Close()
		return nil, errKilled
	}
	r.conns = append(r.conns, conn)
	return conn, nil
}

func (r *osProcess) cut() {
	r.mu.Lock()
	conns := r.conns
	r.conns = nil
	r.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (r *osProcess) closeStdin() {
	r.mu.Lock()
	f := r.stdin
	r.stdin = nil
	r.mu.Unlock()
	if f != nil {
		_ = f.Close()
	}
}

// kill kills the group and cuts the connections. It does not wait.
func (r *osProcess) kill() {
	r.mu.Lock()
	r.killed = true
	r.killGroup()
	r.mu.Unlock()
	r.cut()
}

// killGroup is called with mu held.
func (r *osProcess) killGroup() {
	if r.cmd != nil && !r.reaped {
		_ = syscall.Kill(-r.pid, syscall.SIGKILL) // ESRCH: all gone already
	}
}

// awaitEnd gives a process that may be on its way out a moment to get there.
func (r *osProcess) awaitEnd(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case <-r.ended:
	case <-ctx.Done():
	}
}

// over reports whether it has ended, or is about to because the host killed it.
func (r *osProcess) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.killed || r.reaped
}

// exitedByItself reports whether the host had no hand in its end; after ended.
func (r *osProcess) exitedByItself() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byItself
}

// exitErr says how it ended; after ended.
func (r *osProcess) exitErr() error {
	if r.state == nil || r.state.Success() {
		return nil
	}
	return &exec.ExitError{ProcessState: r.state}
}

// Wait returns when the process is gone, and Client has returned.
func (r *osProcess) Wait(context.Context) error {
	<-r.connected
	<-r.ended
	return r.exitErr()
}

// Kill kills the group.
func (r *osProcess) Kill(context.Context) error {
	r.kill()
	return nil
}

// Stdout holds the handshake line and nothing else: a long line would stop go-plugin's scanner, and then the plugin.
func (r *osProcess) Stdout() io.ReadCloser { return io.NopCloser(r.handshake) }

// Stderr is empty: a line such as {"@message":1} panics go-plugin's parser.
func (r *osProcess) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name of the executable.
func (r *osProcess) Name() string { return r.s.Path }

// ID is the pid; "" before the start, which go-plugin takes for nothing to kill.
func (r *osProcess) ID() string {
	if pid := r.group(); pid != 0 {
		return strconv.Itoa(pid)
	}
	return ""
}

// Diagnose has nothing to add: Launch explains.
func (r *osProcess) Diagnose(context.Context) string { return "" }

// PluginToHost translates nothing.
func (r *osProcess) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

// HostToPlugin is for go-plugin's broker, which we do not use.
func (r *osProcess) HostToPlugin(network, address string) (string, string, error) {
	return "", "", fmt.Errorf("BUG: go-plugin's broker offers %s %s", network, address)
}

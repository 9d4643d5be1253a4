package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

const (
	maxMessage    = 17 << 20 // what a host receives
	maxSocketPath = 103      // on darwin; Linux allows 107
)

// process is one running plugin, in a process group of its own.
type process struct {
	cmd    *exec.Cmd
	stdin  *os.File
	pipes  []*os.File // our ends of stdout and stderr
	first  chan string
	junk   *tail // stdout behind the first line
	stderr *tail
	silent chan struct{} // closed at the end of stderr
	exited chan struct{}
	state  *os.ProcessState // once exited is closed
	killed bool             // by us
	reads  sync.WaitGroup

	address  string
	conn     *grpc.ClientConn
	attempts uint64 // streams opened
}

// handshakeEnv is what every host sets.
func (s *suite) handshakeEnv() []string {
	return []string{
		"RELEVO_PLUGIN=d5a3", "RELEVO_HOST_PID=" + strconv.Itoa(os.Getpid()),
		"PLUGIN_PROTOCOL_VERSIONS=1", "PLUGIN_UNIX_SOCKET_DIR=" + s.dir, "RELEVO_LOG_LEVEL=info",
	}
}

// usualEnv is what a host passes on of its own environment, and what the author asks for.
func (s *suite) usualEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "GODEBUG"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, s.authorEnv()...)
}

func (s *suite) authorEnv() []string {
	var env []string
	for name, v := range s.spec.Env {
		env = append(env, name+"="+v)
	}
	return env
}

// start starts the plugin and reads its handshake line. Nobody is connected yet.
func (r *attempt) start(ctx context.Context, env []string) (*process, error) {
	p, err := launch(r.path, append(r.handshakeEnv(), env...))
	if err != nil {
		return nil, &ruleError{startRule, err}
	}
	r.processes = append(r.processes, p)
	r.routinely("started the plugin")
	ctx, cancel := context.WithTimeoutCause(ctx, r.spec.startTimeout(), fmt.Errorf("no handshake line on stdout within %v", r.spec.startTimeout()))
	defer cancel()
	select {
	case line := <-p.first:
		if p.address, err = parseHandshake(line, r.dir); err != nil {
			return nil, &ruleError{startRule, p.orEnded(err)}
		}
		return p, nil
	case <-p.exited:
		return nil, &ruleError{startRule, p.orEnded(nil)}
	case <-ctx.Done():
		return nil, &ruleError{startRule, context.Cause(ctx)}
	}
}

// orEnded is err, or that the process has ended, which explains it.
func (p *process) orEnded(err error) error {
	p.settle()
	select {
	case <-p.exited:
		return fmt.Errorf("the process ended before its handshake line: %v", p.state)
	default:
		return err
	}
}

// connected starts the plugin and connects to it, as a host does.
func (r *attempt) connected(ctx context.Context) (*process, error) {
	p, err := r.start(ctx, r.usualEnv())
	if err != nil {
		return nil, err
	}
	if err := p.connect(ctx, r.spec.startTimeout()); err != nil {
		return nil, &ruleError{startRule, err}
	}
	return p, nil
}

func launch(path string, env []string) (*process, error) {
	p := &process{first: make(chan string, 1), junk: &tail{}, stderr: &tail{}, silent: make(chan struct{}), exited: make(chan struct{})}
	p.cmd = exec.Command(path) //nolint:gosec // the plugin under test
	p.cmd.Env = env
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var theirs []*os.File
	ours := make([]*os.File, 3)
	fail := func(err error) (*process, error) {
		closeAll(theirs)
		closeAll(ours)
		return nil, fmt.Errorf("start the plugin: %w", err)
	}
	for fd := range ours {
		read, write, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		if fd == 0 {
			theirs, ours[fd] = append(theirs, read), write
		} else {
			theirs, ours[fd] = append(theirs, write), read
		}
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	if err := p.cmd.Start(); err != nil {
		return fail(err)
	}
	closeAll(theirs)
	p.stdin, p.pipes = ours[0], ours[1:]
	p.reads.Go(func() { p.readStdout(ours[1]) })
	p.reads.Go(func() {
		_, _ = io.Copy(p.stderr, ours[2])
		close(p.silent)
	})
	p.reads.Go(func() {
		_ = p.cmd.Wait() // the state says it all
		p.state = p.cmd.ProcessState
		close(p.exited)
	})
	return p, nil
}

func (p *process) readStdout(f *os.File) {
	b := bufio.NewReaderSize(f, 4096) // longer than a handshake line can be
	line, err := b.ReadString('\n')
	p.first <- strings.TrimSuffix(line, "\n")
	if err == nil {
		_, _ = io.Copy(p.junk, b)
	}
}

// parseHandshake reads go-plugin's line: core version, protocol version, network, address, protocol, and more that we
// have no use for.
func parseHandshake(line, dir string) (address string, err error) {
	f := strings.Split(line, "|")
	switch {
	case len(f) < 5:
		return "", fmt.Errorf("the first line on stdout is %q and not a handshake such as 1|1|unix|/path|grpc", line)
	case f[0] != "1":
		return "", fmt.Errorf("handshake %q: the core version is %s and not 1", line, f[0])
	case f[1] != "1":
		return "", fmt.Errorf("handshake %q: the protocol version is %s; the host offers 1", line, f[1])
	case f[2] != "unix":
		return "", fmt.Errorf("handshake %q: the network is %s and not unix", line, f[2])
	case strings.TrimSpace(f[4]) != "grpc":
		return "", fmt.Errorf("handshake %q: the protocol is %s and not grpc", line, f[4])
	case len(f[3]) > maxSocketPath:
		return "", fmt.Errorf("handshake %q: the socket's path has %d bytes; a system allows %d", line, len(f[3]), maxSocketPath)
	case !strings.HasPrefix(filepath.Clean(f[3]), dir+string(filepath.Separator)):
		return "", fmt.Errorf("handshake %q: the socket is not in the directory that PLUGIN_UNIX_SOCKET_DIR names (%s)", line, dir)
	}
	return f[3], nil
}

// connect connects and waits until the plugin is healthy.
func (p *process) connect(ctx context.Context, timeout time.Duration) error {
	conn, err := grpc.NewClient("unix:"+p.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", p.address, err)
	}
	p.conn = conn
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return p.healthy(ctx)
}

func (p *process) healthy(ctx context.Context) error {
	r, err := healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "plugin"}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("ask the health service for \"plugin\": %w", err)
	}
	if r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("the health of \"plugin\" is %v and not SERVING", r.GetStatus())
	}
	return nil
}

func (p *process) plugin() pluginv1.PluginServiceClient {
	return pluginv1.NewPluginServiceClient(p.conn)
}

// signal sends to the whole group.
func (p *process) signal(sig syscall.Signal) error {
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil {
		return fmt.Errorf("signal the plugin: %w", err)
	}
	return nil
}

// exits waits until the process has ended.
func (p *process) exits(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the process is still there after %v", within)
	}
}

// stays demands that the process lives on for a while.
func (p *process) stays(ctx context.Context, during time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	select {
	case <-p.exited:
		return fmt.Errorf("the process ended: %v", p.state)
	case <-ctx.Done():
		return nil
	}
}

// settle waits for a moment until a process that is about to end has ended, and has said why.
func (p *process) settle() {
	const moment = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	for _, c := range []chan struct{}{p.exited, p.silent} {
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
}

// kill ends the process group with SIGKILL and returns when the process has been reaped. It may be called again.
func (p *process) kill() {
	select {
	case <-p.exited:
	default:
		p.killed = true
	}
	// Also when the process has ended: what it started may live on in its group.
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		_ = p.cmd.Process.Kill() // darwin answers EPERM for a group with a zombie in it
	}
	<-p.exited
	if p.conn != nil {
		_ = p.conn.Close()
	}
	_ = p.stdin.Close()
	closeAll(p.pipes) // a child that left the group may hold the other ends
	p.reads.Wait()
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// tail keeps the last lines that were written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
	n    int // bytes written in all
}

func (t *tail) Write(b []byte) (int, error) {
	const most = 64 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += len(b)
	if t.text = append(t.text, b...); len(t.text) > most {
		t.text = append([]byte(nil), t.text[len(t.text)-most:]...)
	}
	return len(b), nil
}

// lines is at most sixteen that are not empty: the last ones, or where a Go program began to tell why it crashed.
func (t *tail) lines() []string {
	const most = 16
	t.mu.Lock()
	defer t.mu.Unlock()
	var lines []string
	crash := -1
	for line := range strings.Lines(string(t.text)) {
		if line = strings.TrimRight(strings.ReplaceAll(line, "\t", "  "), "\r\n "); line == "" {
			continue
		}
		if crash < 0 && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")) {
			crash = len(lines)
		}
		lines = append(lines, line)
	}
	if crash >= 0 {
		return lines[crash:min(crash+most, len(lines))]
	}
	return lines[max(0, len(lines)-most):]
}

func (t *tail) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// executable makes a path that exec takes as it is, from wherever.
func executable(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find the plugin: %w", err)
	}
	return abs, nil
}

// socketDir makes a directory for sockets. Their paths may have 107 bytes.
func socketDir() (string, error) {
	base := os.TempDir()
	if len(base) > 60 {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "rv")
	if err != nil {
		return "", fmt.Errorf("make a directory for sockets: %w", err)
	}
	return dir, nil
}

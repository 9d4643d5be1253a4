package natstest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/relevo-io/relevo/internal/netproxy"
)

// childEnv names the configuration file of a server that this executable is to be instead of running its tests.
const childEnv = "RELEVO_NATSTEST_CHILD"

// RunChild turns this process into a server when a test of the same executable started it as one, and returns otherwise.
// Call it first in TestMain of a package that uses StartChild or StartCluster.
func RunChild() {
	path := os.Getenv(childEnv)
	if path == "" {
		return
	}
	o, err := server.ProcessConfigFile(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	s, err := server.NewServer(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
	os.Exit(0)
}

// Child is a server in a process of its own, which can be killed. Its methods are not for concurrent use.
type Child struct {
	t    TB
	conf string
	addr string
	log  string
	cmd  *exec.Cmd
}

// StartChild runs a server with JetStream as a child process. lines are added to its configuration file.
func StartChild(t TB, lines ...string) *Child {
	t.Helper()
	ports := freePorts(t, 1)
	return newChild(t, ports[0], lines)
}

func newChild(t TB, port int, lines []string) *Child {
	t.Helper()
	if !testing.Testing() {
		t.Fatalf("natstest: a child process is this test executable again")
	}
	dir := Dir(t)
	text := fmt.Sprintf("listen: 127.0.0.1:%d\njetstream { store_dir: %q, max_mem: 256M, max_file: 4G }\n%s\n",
		port, filepath.Join(dir, "js"), strings.Join(lines, "\n"))
	c := &Child{
		t: t, conf: write(t, dir, "server.conf", []byte(text)), log: filepath.Join(dir, "server.log"),
		addr: fmt.Sprintf("127.0.0.1:%d", port),
	}
	c.Start()
	t.Cleanup(c.Kill)
	return c
}

// Start starts a child that was killed or stopped, on the same port and directory, and waits until it listens.
func (c *Child) Start() {
	c.t.Helper()
	c.Launch()
	Eventually(c.t, "start the child server", func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// Launch is Start without the waiting.
func (c *Child) Launch() {
	c.t.Helper()
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatalf("open the child's log: %v", err)
	}
	defer log.Close()
	exe, err := os.Executable()
	if err != nil {
		c.t.Fatalf("find the test executable: %v", err)
	}
	// Not bound to a context: a child lives until it is killed, and is killed when the test ends.
	c.cmd = exec.CommandContext(context.WithoutCancel(c.t.Context()), exe)
	c.cmd.Env = append(os.Environ(), childEnv+"="+c.conf)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = dieWithParent()
	if err := c.cmd.Start(); err != nil {
		c.t.Fatalf("start the child server: %v", err)
	}
}

// Signal sends a signal to the process.
func (c *Child) Signal(s os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatalf("signal the child server: %v", err)
	}
}

// Kill ends the process with SIGKILL and waits for it; killing it twice is fine.
func (c *Child) Kill() { c.end(os.Kill) }

// Stop ends the process with SIGTERM and waits for it; stopping it twice is fine.
func (c *Child) Stop() { c.end(syscall.SIGTERM) }

func (c *Child) end(s os.Signal) {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(s) // it may have ended by itself
	_ = c.cmd.Wait()            // "signal: killed" is what was asked for
	c.cmd = nil
}

// URL is where clients connect. It stays the same over a restart.
func (c *Child) URL() string { return "nats://" + c.addr }

// Addr is the host and port.
func (c *Child) Addr() string { return c.addr }

// Log is what the process has printed so far, over all its starts.
func (c *Child) Log() string {
	b, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// freePorts finds ports that nobody listens on, and that stay free while a server is down (see netproxy.Listen).
func freePorts(t TB, n int) []int {
	t.Helper()
	ports := make([]int, 0, n)
	for range n {
		l, err := netproxy.Listen()
		if err != nil {
			t.Fatalf("find a free port: %v", err)
		}
		defer l.Close() // after the last is found, so that all are different
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

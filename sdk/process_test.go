package sdk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// asPlugin makes the test binary a plugin process: its value says which.
const asPlugin = "RELEVO_TEST_AS_PLUGIN"

// early is a copy of os.Stdout that was made before Main, as a package's variable is.
var early = os.Stdout

func TestMain(m *testing.M) {
	switch kind := os.Getenv(asPlugin); kind {
	case "":
		goleak.VerifyTestMain(m)
	case "source":
		Main(Source(processSpec(), runProcessSource))
	case "sink":
		Main(StreamSink(processSpec(), runProcessSink))
	default:
		panic(kind)
	}
}

type processConfig struct {
	Noise  int    `json:"noise" doc:"Bytes to print to every output there is."`
	Panic  string `json:"panic" doc:"Where to panic: run, goroutine."`
	Secret Secret `json:"secret"`
}

func processSpec() Spec[processConfig] {
	return Spec[processConfig]{
		Name: "process", Version: "1.2.3", Summary: "A plugin, to be tested.",
		Check: func(context.Context, processConfig, CheckRequest) ([]Finding, error) { panic("check panics") },
	}
}

func runProcessSource(ctx context.Context, o SourceOpen[processConfig], s *SourceStream) error {
	if err := s.Opened(SourceOpened{}); err != nil {
		return err
	}
	for range s.Requests() {
	}
	return context.Cause(ctx)
}

func runProcessSink(ctx context.Context, o SinkOpen[processConfig], s *SinkStream) error {
	slog.Debug("not to be seen")
	slog.Info("opened", "pipeline", o.Instance.Pipeline, "secret", o.Config.Secret)
	if n := o.Config.Noise; n > 0 {
		line := strings.Repeat("x", n)
		fmt.Println("os.Stdout " + line)
		_, _ = fmt.Fprintln(os.Stderr, "os.Stderr "+line)
		_, _ = fmt.Fprintln(early, "early "+line)
		log.Print("log " + line)
	}
	switch o.Config.Panic {
	case "run":
		panic("run panics")
	case "goroutine":
		go func() { panic("a goroutine panics") }()
		<-ctx.Done()
	}
	return ackAll(ctx, SinkOpen[empty]{}, s)
}

// process is a plugin process, started without go-plugin, so that each end of it can be held or let go.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout chan string // lines
	addr   string
	exited chan struct{}

	mu     sync.Mutex
	stderr bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

// errors is what it has written to stderr.
func (p *process) errors() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

func testCommand(t *testing.T, kind string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), asPlugin+"="+kind)
	return cmd
}

// start starts a plugin and reads its handshake.
func start(t *testing.T, kind string, env ...string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "sdk")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &process{t: t, cmd: testCommand(t, kind), stdout: make(chan string, 1000), exited: make(chan struct{})}
	p.cmd.Env = append(p.cmd.Env, cookieKey+"="+cookieValue, "PLUGIN_UNIX_SOCKET_DIR="+dir, "PLUGIN_PROTOCOL_VERSIONS=1")
	p.cmd.Env = append(p.cmd.Env, env...)
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.cmd.Stderr = p
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.exited)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.stdout <- sc.Text()
		}
		close(p.stdout)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
	})
	select {
	case line := <-p.stdout:
		parts := strings.Split(line, "|")
		require.GreaterOrEqual(t, len(parts), 5, line)
		require.Equal(t, []string{"1", "1", "unix"}, parts[:3])
		require.Equal(t, "grpc", parts[4])
		p.addr = parts[3]
	case <-time.After(patience):
		require.Fail(t, "no handshake", p.errors())
	}
	return p
}

// connect dials the plugin and waits for its health.
func (p *process) connect() *host {
	p.t.Helper()
	conn, err := grpc.NewClient("unix:"+p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	p.t.Cleanup(cancel)
	r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "plugin"}, grpc.WaitForReady(true))
	require.NoError(p.t, err)
	require.Equal(p.t, healthpb.HealthCheckResponse_SERVING, r.GetStatus())
	return &host{t: p.t, ctx: ctx, conn: conn}
}

// wait waits for the process to exit and returns its status.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		require.Fail(p.t, "the plugin lives on", p.errors())
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func TestProcessByHand(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{nil, 2, "", "source-process is a source plugin of Relevo. It is not started by hand"},
		{[]string{"version"}, 0, "source-process 1.2.3\n", ""},
		{[]string{"--help"}, 0, "Usage:", ""},
		{[]string{"run"}, 2, "", `unknown arguments ["run"]`},
	} {
		cmd := testCommand(t, "source", tt.args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		require.Equal(t, tt.code, cmd.ProcessState.ExitCode(), "%v", tt.args)
		require.Contains(t, stdout.String(), tt.stdout)
		require.Contains(t, stderr.String(), tt.stderr)
	}
}

func TestProcessDescribe(t *testing.T) {
	t.Parallel()
	out, err := testCommand(t, "sink", "describe").Output()
	require.NoError(t, err)
	again, err := testCommand(t, "sink", "describe").Output()
	require.NoError(t, err)
	require.Equal(t, string(out), string(again), "the same bytes each time")
	var d pluginv1.DescribeResponse
	require.NoError(t, protojson.Unmarshal(out, &d))
	require.Equal(t, "process", d.GetName())
	require.Equal(t, pluginv1.PluginKind_PLUGIN_KIND_SINK, d.GetKind())
	require.True(t, json.Valid([]byte(d.GetConfigSchema())))
	require.NotContains(t, string(out), "has_positions", "unpopulated fields are left out")
}

func TestProcessStreams(t *testing.T) {
	t.Parallel()
	p := start(t, "sink")
	h := p.connect()
	d, err := pluginv1.NewPluginServiceClient(h.conn).Describe(h.ctx, &pluginv1.DescribeRequest{})
	require.NoError(t, err)
	require.Equal(t, "process", d.GetName())
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	s.batch("a", "b")
	s.stop()
	l := newLedger(t)
	s.untilStopped(l)
	require.Len(t, l.ends, 2)

	require.NoError(t, p.stdin.Close())
	require.Equal(t, 0, p.wait())
}

func TestProcessEndsWithStdin(t *testing.T) {
	t.Parallel()
	p := start(t, "sink")
	h := p.connect()
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 0, p.wait(), p.errors())
	require.NoFileExists(t, p.addr)
}

func TestProcessEndsWithStdinBeforeAnyoneConnects(t *testing.T) {
	t.Parallel()
	p := start(t, "source")
	require.NoError(t, p.stdin.Close())
	require.Equal(t, 0, p.wait())
	require.NoFileExists(t, p.addr)
	files, err := filepath.Glob(filepath.Join(filepath.Dir(p.addr), "*"))
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestProcessEndsWithLastConnection(t *testing.T) {
	t.Parallel()
	p := start(t, "sink")
	first, second := p.connect(), p.connect()
	require.NoError(t, first.conn.Close())
	// As long as the time in which the last connection would have ended it, and more: the other one keeps it.
	enough := time.Now().Add(lostTimeout + lostTimeout/2)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for now := range tick.C {
		if now.After(enough) {
			break
		}
		r, err := healthpb.NewHealthClient(second.conn).Check(second.ctx, &healthpb.HealthCheckRequest{Service: "plugin"})
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, r.GetStatus())
	}
	closed := time.Now()
	require.NoError(t, second.conn.Close())
	require.Equal(t, 0, p.wait())
	require.GreaterOrEqual(t, time.Since(closed), lostTimeout)
}

func TestProcessEndsWhenNobodyConnects(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes as long as a plugin waits for its host")
	}
	started := time.Now()
	p := start(t, "source")
	require.Equal(t, exitFailed, p.wait())
	require.GreaterOrEqual(t, time.Since(started), connectTimeout)
	require.Contains(t, p.errors(), "no host connected")
}

func TestProcessIgnoresSignals(t *testing.T) {
	t.Parallel()
	p := start(t, "sink")
	h := p.connect()
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	for range 3 {
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	}
	s.batch("a")
	l := newLedger(t)
	s.until(l, 1)
	require.True(t, p.alive())
}

// TestProcessNoise prints more than any pipe holds to every output, with no host that asks for go-plugin's stdio.
func TestProcessNoise(t *testing.T) {
	t.Parallel()
	p := start(t, "sink")
	h := p.connect()
	const n = 1 << 20
	s := h.write(&pluginv1.SinkOpen{
		Config:   []byte(fmt.Sprintf(`{"noise": %d, "secret": "tiger"}`, n)),
		Instance: &pluginv1.Instance{Pipeline: "orders"},
	})
	s.opened()
	require.NoError(t, p.stdin.Close())
	p.wait()
	errs := p.errors()
	require.Contains(t, errs, "os.Stdout xxx")
	require.Contains(t, errs, "os.Stderr xxx")
	require.Contains(t, errs, "early xxx")
	require.Contains(t, errs, `"msg":"log xxx`)
	line, more := <-p.stdout
	require.False(t, more, "after the handshake there is %q on stdout", line)
	require.NotContains(t, errs, "not to be seen")
	require.NotContains(t, errs, "tiger")

	var opened map[string]any
	for line := range strings.Lines(errs) {
		if strings.Contains(line, `"msg":"opened"`) {
			require.NoError(t, json.Unmarshal([]byte(line), &opened))
		}
	}
	require.Equal(t, "INFO", opened["level"])
	require.Equal(t, "orders", opened["pipeline"])
	require.Equal(t, "***", opened["secret"])
	_, err := time.Parse(time.RFC3339Nano, opened["time"].(string))
	require.NoError(t, err)
}

func TestProcessLogLevel(t *testing.T) {
	t.Parallel()
	p := start(t, "sink", levelKey+"=debug")
	h := p.connect()
	h.write(&pluginv1.SinkOpen{}).opened()
	require.NoError(t, p.stdin.Close())
	p.wait()
	require.Contains(t, p.errors(), "not to be seen")
}

func TestProcessPanics(t *testing.T) {
	t.Parallel()
	t.Run("run", func(t *testing.T) {
		t.Parallel()
		p := start(t, "sink")
		h := p.connect()
		s := h.write(&pluginv1.SinkOpen{Config: []byte(`{"panic": "run"}`)})
		require.ErrorContains(t, s.end(), "code = Internal desc = panic in the plugin: run panics")
		require.Equal(t, exitPanic, p.wait())
		require.Contains(t, p.errors(), `"panic":"run panics"`)
		require.Contains(t, p.errors(), "runProcessSink", "the stack")
	})
	t.Run("check", func(t *testing.T) {
		t.Parallel()
		p := start(t, "sink")
		h := p.connect()
		_, err := pluginv1.NewPluginServiceClient(h.conn).Check(h.ctx, &pluginv1.CheckRequest{})
		require.ErrorContains(t, err, "code = Internal desc = panic in the plugin: check panics")
		require.Equal(t, exitPanic, p.wait())
	})
	t.Run("goroutine", func(t *testing.T) {
		t.Parallel()
		p := start(t, "sink")
		h := p.connect()
		h.write(&pluginv1.SinkOpen{Config: []byte(`{"panic": "goroutine"}`)})
		require.NotZero(t, p.wait())
		require.Contains(t, p.errors(), "panic: a goroutine panics")
	})
}

// TestProcessWithGoPluginClient is the other side as go-plugin has it: handshake, dispense, stdio, Shutdown.
func TestProcessWithGoPluginClient(t *testing.T) {
	t.Parallel()
	p := start(t, "sink")
	c := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion: protocolVersion, MagicCookieKey: cookieKey, MagicCookieValue: cookieValue,
		},
		Plugins:          goplugin.PluginSet{"sink": &clientPlugin{}},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
		Reattach: &goplugin.ReattachConfig{
			Protocol:        goplugin.ProtocolGRPC,
			ProtocolVersion: protocolVersion,
			Addr:            &net.UnixAddr{Net: "unix", Name: p.addr},
			Pid:             p.cmd.Process.Pid,
		},
	})
	defer c.Kill()
	rpc, err := c.Client()
	require.NoError(t, err)
	require.NoError(t, rpc.Ping())
	raw, err := rpc.Dispense("sink")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := raw.(pluginv1.PluginServiceClient).Describe(ctx, &pluginv1.DescribeRequest{})
	require.NoError(t, err)
	require.Equal(t, "process", d.GetName())
	c.Kill() // it calls Shutdown, and kills only what is still there after 2 s
	require.Equal(t, 0, p.wait())
}

type clientPlugin struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (*clientPlugin) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error { return nil }

func (*clientPlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return pluginv1.NewPluginServiceClient(c), nil
}

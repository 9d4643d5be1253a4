package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

var (
	errStartTimeout = errors.New("start timed out")
	errNotHealthy   = errors.New("not healthy")
)

// Process is one running plugin process, from the handshake on. Its methods may be called side by side.
type Process struct {
	timing timing
	name   string
	run    *osProcess
	log    *lineLog
	client *goplugin.Client
	conn   *grpc.ClientConn

	healthy atomic.Bool  // the first health check was answered; conn is set
	alive   atomic.Int64 // Unix nanoseconds
	done    chan struct{}
	hung    error // why the host killed it; written by supervise, read after done
}

// Launch starts the executable, makes the handshake and a first health check. ctx bounds the start only. The error is a
// *LaunchError where the plugin is at fault: it names the likely cause and ends with the last lines of stderr. Nothing
// of a start that did not succeed is left behind.
func Launch(ctx context.Context, s Settings) (*Process, error) {
	return launch(ctx, s, defaultTiming())
}

func launch(ctx context.Context, s Settings, t timing) (*Process, error) {
	s, err := s.withDefaults()
	if err != nil {
		return nil, err
	}
	dir, err := socketDir(s.RuntimeDir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.StartTimeout, errStartTimeout)
	defer cancel()

	log := newLineLog(s.Log)
	p := &Process{timing: t, name: string(s.Kind) + "-" + s.Name, log: log, done: make(chan struct{})}
	p.run = newOSProcess(s, dir, log, t)
	peers := newPeerCredentials(p.run.group)
	p.client = goplugin.NewClient(clientConfig(s, p.run, peers, log))

	// go-plugin's Start and Client know no context: they end when the process is dead and its connections are cut.
	stop := context.AfterFunc(ctx, func() { p.run.abort(context.Cause(ctx)) })
	defer stop()
	protocol, err := p.client.Client()
	p.run.release()
	if !p.run.started() {
		removeAll(dir)
		return nil, explain(s, p.run, peers, err)
	}
	go p.supervise(dir) // Close and Kill wait for it, through done

	if err == nil {
		err = p.connect(ctx, s.Kind, protocol)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		p.run.awaitEnd(ctx, t.drainPipes) // its exit status explains more than a connection that was lost
		p.Kill()
		return nil, explain(s, p.run, peers, err)
	}
	p.healthy.Store(true)
	s.Log.Debug("plugin started", "pid", p.PID())
	return p, nil
}

// clientConfig is made anew for each start: a go-plugin client is good for one.
func clientConfig(s Settings, run *osProcess, peers *peerCredentials, log *lineLog) *goplugin.ClientConfig {
	return &goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion:  protocolVersion,
			MagicCookieKey:   cookieKey,
			MagicCookieValue: cookieValue,
		},
		Plugins:          goplugin.PluginSet{string(s.Kind): connPlugin{}},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Managed:          false,
		SkipHostEnv:      true,
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			run.env = pluginEnv(os.Environ(), s, run.dir, cmd.Env)
			return run, nil
		},
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: run.dir},
		// The deadline is ours (Launch); go-plugin's own comes after it.
		StartTimeout:    s.StartTimeout + time.Minute,
		SyncStdout:      log.writer("stdout"),
		SyncStderr:      log.writer("stderr"),
		Logger:          hclog.NewNullLogger(), // what it has to say comes back as an error
		GRPCDialOptions: dialOptions(s, run, peers),
	}
}

// connect gets at the connection and makes the first health check. Client succeeds also when nobody listens.
func (p *Process) connect(ctx context.Context, kind Kind, protocol goplugin.ClientProtocol) error {
	raw, err := protocol.Dispense(string(kind))
	if err != nil {
		return fmt.Errorf("dispense %s: %w", kind, err)
	}
	conn, ok := raw.(*grpc.ClientConn)
	if !ok {
		panic(fmt.Sprintf("BUG: dispensed a %T", raw))
	}
	p.conn = conn
	if err := p.checkHealth(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%w: %w", errNotHealthy, err)
	}
	return nil
}

// supervise ends what Launch started, however the process came to its end.
func (p *Process) supervise(dir string) {
	defer close(p.done)
	p.watch()
	// Always Kill, also after a crash: it ends go-plugin's goroutines and closes the connection, which ends every call.
	// It can't block, since the process is gone and reaped.
	p.client.Kill()
	removeAll(dir)
	p.log.close(time.Now())
}

// PID of the process that was started.
func (p *Process) PID() int { return p.run.pid }

// Done is closed when the process is gone and reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how it ended; only after Done.
func (p *Process) Exit() Exit {
	<-p.done
	e := Exit{Err: p.run.exitErr(), LastLogs: p.log.last()}
	if p.hung != nil {
		e.Hung, e.Err = true, p.hung
	}
	return e
}

// Alive is when the last health check was answered.
func (p *Process) Alive() time.Time { return time.Unix(0, p.alive.Load()) }

// Describe asks the plugin what it is.
func (p *Process) Describe(ctx context.Context) (*pluginv1.DescribeResponse, error) {
	r, err := pluginv1.NewPluginServiceClient(p.conn).Describe(ctx, &pluginv1.DescribeRequest{})
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", p.name, err)
	}
	return r, nil
}

// Check asks for findings.
func (p *Process) Check(ctx context.Context, r *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error) {
	res, err := pluginv1.NewPluginServiceClient(p.conn).Check(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", p.name, err)
	}
	return res, nil
}

// Close ends the process in good order: stdin is closed, then it has until ctx ends (at most 5 s), then its group is
// killed. It returns when the process is reaped and everything that Launch started has ended. Idempotent.
func (p *Process) Close(ctx context.Context) {
	p.run.closeStdin()
	grace := time.NewTimer(p.timing.exitGrace)
	defer grace.Stop()
	select {
	case <-p.done:
		return
	case <-ctx.Done():
	case <-grace.C:
	}
	p.log.out.Warn("plugin does not exit at the end of its stdin, it is killed", "pid", p.PID())
	p.Kill()
}

// Kill kills the group at once and returns when the process is reaped. Idempotent.
func (p *Process) Kill() {
	p.run.kill()
	<-p.done
}

// connPlugin is the client side of an entry in go-plugin's plugin map: it gives out the connection, since the services
// are plain gRPC and the streams need it raw.
type connPlugin struct {
	goplugin.NetRPCUnsupportedPlugin
}

var _ goplugin.GRPCPlugin = connPlugin{}

func (connPlugin) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error {
	return errors.New("BUG: the host serves no plugin")
}

func (connPlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

package sdk

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// The handshake, from docs/plugin-protocol.md.
const (
	cookieKey       = "RELEVO_PLUGIN"
	cookieValue     = "d5a3"
	protocolVersion = 1
)

// crashGrace is the time that the gRPC error of a panic has to reach the host.
const crashGrace = 250 * time.Millisecond

// gcBallast makes the garbage collector think that the heap is larger than it is. A plugin keeps little and makes much:
// with Go's smallest heap of 4 MiB it would collect after every ten batches, at a third of all its CPU. The ballast is
// never touched, so that it takes no memory; what it costs is as much garbage again.
const gcBallast = 16 << 20

// serve makes the handshake and serves until the host goes. It returns the exit code.
func serve(r *registration) int {
	ballast := make([]byte, gcBallast)
	defer runtime.KeepAlive(ballast)

	stderr := os.Stderr
	slog.SetDefault(newLogger(stderr, os.Getenv(levelKey)))

	// The host ends its plugins after their drain. A service manager or a terminal that signals the whole group must not
	// do it before. A channel that nobody reads drops the signals, and unlike signal.Ignore is not inherited by children.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM)

	// go-plugin swaps os.Stdout and os.Stderr for pipes that only a host which asks for them reads: anyone else's plugin
	// would block on its 64th kilobyte of output. Logs go to the real stderr, and so does what is printed. So does what
	// goes past the variables, by a copy made early or from C: file 1 has served its purpose with the handshake, which
	// the host has read when it connects.
	l := newLifeline(func() {
		os.Stdout, os.Stderr = stderr, stderr
		if err := unix.Dup2(2, 1); err != nil {
			slog.Warn("redirect stdout", "err", err)
		}
	}, func() { r.hostSeen.Store(time.Now().UnixNano()) })
	r.crash = func() { time.AfterFunc(crashGrace, func() { l.end(exitPanic, "panic in the plugin") }) }
	go l.watchInput(os.Stdin)

	served := make(chan struct{})
	go func() { // go-plugin's Serve has no way to be told to end but its server, which the lifeline stops
		defer close(served)
		goplugin.Serve(&goplugin.ServeConfig{
			HandshakeConfig: goplugin.HandshakeConfig{
				ProtocolVersion:  protocolVersion,
				MagicCookieKey:   cookieKey,
				MagicCookieValue: cookieValue,
			},
			Plugins: goplugin.PluginSet{r.kind(): &servedPlugin{r: r}},
			Logger:  hclog.New(&hclog.LoggerOptions{Level: hclog.Error, Output: stderr, JSONFormat: true}),
			GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
				opts = append(opts, r.serverOptions()...)
				s := grpc.NewServer(append(opts, grpc.StatsHandler(l))...)
				l.watchServer(s.Stop)
				return s
			},
		})
	}()
	select {
	case <-served: // go-plugin's Shutdown call, or it could not listen
		return l.served()
	case <-l.ended:
		// Stopping the server closes the socket and removes its file, which outlives the process otherwise.
		l.stopServer(served)
		return l.code
	}
}

// servedPlugin registers the services with go-plugin's server.
type servedPlugin struct {
	goplugin.NetRPCUnsupportedPlugin
	r *registration
}

var _ goplugin.GRPCPlugin = (*servedPlugin)(nil)

func (p *servedPlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	p.r.register(s)
	return nil
}

// GRPCClient belongs to go-plugin's interface; the host makes its own.
func (p *servedPlugin) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

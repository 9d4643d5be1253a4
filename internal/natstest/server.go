// Package natstest runs real NATS servers for tests: in the test's own process (Start), or as child processes that can be
// killed (StartChild, StartCluster). It also makes what the servers' kinds of authentication need.
//
// Everything is on 127.0.0.1, in a temporary directory, and ended when the test ends.
package natstest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// patience is how long a helper waits for a server before it fails the test. Under -race on a busy machine a start takes
// a hundred times what it takes alone.
const patience = 30 * time.Second

// TB is what the helpers use of testing.TB.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Server is a server with JetStream in the test's process. It can be stopped and started again on the same port and
// directory. Its methods are not for concurrent use.
type Server struct {
	t    TB
	opts *server.Options
	run  *server.Server
}

// Option changes a server before its first start.
type Option func(*server.Options)

// With gives access to every option of the server.
func With(f func(*server.Options)) Option { return f }

// SyncAlways has the server sync its files before each acknowledgement.
func SyncAlways() Option { return func(o *server.Options) { o.SyncAlways = true } }

// Start runs a server with JetStream until the test ends.
func Start(t TB, options ...Option) *Server {
	t.Helper()
	o := &server.Options{
		Host: "127.0.0.1", Port: freePorts(t, 1)[0], NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: Dir(t), JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 4 << 30,
	}
	for _, f := range options {
		f(o)
	}
	s := &Server{t: t, opts: o}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start starts a server that was stopped, on the same port and directory, and waits until it takes connections.
func (s *Server) Start() {
	s.t.Helper()
	// The server changes its options while it runs: it gets its own copy each time.
	run, err := server.NewServer(s.opts.Clone())
	if err != nil {
		s.t.Fatalf("make the server: %v", err)
	}
	run.Start()
	if !run.ReadyForConnections(patience) {
		s.t.Fatalf("the NATS server is not ready after %v", patience)
	}
	s.run = run
}

// Stop stops the server and waits until it has ended; stopping it twice is fine. Connections are cut.
func (s *Server) Stop() {
	if s.run == nil {
		return
	}
	s.run.Shutdown()
	s.run.WaitForShutdown()
	s.run = nil
}

// URL is where clients connect. It stays the same over a restart.
func (s *Server) URL() string { return "nats://" + s.Addr() }

// Addr is the host and port.
func (s *Server) Addr() string {
	return net.JoinHostPort(s.opts.Host, port(s.opts.Port))
}

// Raw is the running server, for what has no helper here. Nil while it is stopped.
func (s *Server) Raw() *server.Server { return s.run }

// Reload applies changed options to the running server, as a configuration reload does.
func (s *Server) Reload(change Option) {
	s.t.Helper()
	change(s.opts)
	if err := s.run.ReloadOptions(s.opts.Clone()); err != nil {
		s.t.Fatalf("reload the server's options: %v", err)
	}
}

// Connect connects a client of the test's own. It is closed when the test ends.
func (s *Server) Connect(options ...nats.Option) *nats.Conn { return Connect(s.t, s.URL(), options...) }

// JetStream connects a client of the test's own. It is closed when the test ends.
func (s *Server) JetStream(options ...nats.Option) jetstream.JetStream {
	s.t.Helper()
	return JetStream(s.t, s.URL(), options...)
}

// Connect connects to a server, trying again until it answers. The connection reconnects for ever and is closed when the
// test ends.
func Connect(t TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	options = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.Timeout(patience)}, options...)
	var nc *nats.Conn
	Eventually(t, "connect to "+url, func(context.Context) (err error) {
		nc, err = nats.Connect(url, options...)
		return err
	})
	t.Cleanup(nc.Close)
	return nc
}

// JetStream connects to a server and waits until its JetStream answers.
func JetStream(t TB, url string, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(Connect(t, url, options...))
	if err != nil {
		t.Fatalf("make a JetStream client: %v", err)
	}
	Eventually(t, "reach JetStream", func(ctx context.Context) error {
		_, err := js.AccountInfo(ctx)
		return err
	})
	return js
}

// Stream creates a stream, trying again until the server is ready for it.
func Stream(t TB, js jetstream.JetStream, config jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	var s jetstream.Stream
	Eventually(t, "create stream "+config.Name, func(ctx context.Context) (err error) {
		s, err = js.CreateStream(ctx, config)
		return err
	})
	return s
}

// Messages reads everything that a stream holds, in its order.
func Messages(t TB, js jetstream.JetStream, stream string) []*jetstream.RawStreamMsg {
	t.Helper()
	var all []*jetstream.RawStreamMsg
	Eventually(t, "read stream "+stream, func(ctx context.Context) (err error) {
		all, err = read(ctx, js, stream)
		return err
	})
	return all
}

func read(ctx context.Context, js jetstream.JetStream, stream string) ([]*jetstream.RawStreamMsg, error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	n := s.CachedInfo().State.Msgs
	if n == 0 {
		return nil, nil
	}
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true})
	if err != nil {
		return nil, err
	}
	defer s.DeleteConsumer(ctx, c.CachedInfo().Name) //nolint:errcheck // it ends by itself as well
	var all []*jetstream.RawStreamMsg
	for uint64(len(all)) < n {
		batch, err := c.Fetch(int(min(1000, n-uint64(len(all)))), jetstream.FetchContext(ctx))
		if err != nil {
			return nil, err
		}
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			all = append(all, &jetstream.RawStreamMsg{
				Subject: m.Subject(), Sequence: meta.Sequence.Stream, Header: m.Headers(), Data: m.Data(), Time: meta.Timestamp,
			})
		}
		if err := batch.Error(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Eventually calls f until it returns nil, and fails the test when that takes too long. A single call gets a few seconds.
func Eventually(t TB, what string, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		one, stop := context.WithTimeout(ctx, 10*time.Second)
		err := f(one)
		stop()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not after %v: %v", what, patience, err)
		case <-tick.C:
		}
	}
}

// Dir makes a directory with a short name, which is removed when the test ends. (What t.TempDir makes is too long for a
// unix socket when the test's name is.)
func Dir(t TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "natstest-")
	if err != nil {
		t.Fatalf("make a directory: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("remove %s: %v", dir, err)
		}
	})
	return dir
}

// write makes a file in dir that only its owner can read.
func write(t TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
	return path
}

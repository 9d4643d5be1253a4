// Command broken is a sink and two sources that keep the rules of docs/plugin-protocol.md, or break one of them. It is
// written without the SDK and without go-plugin, on the generated stubs alone, as a plugin in another language would be.
//
// The environment variable BROKEN says which: "sink", "source" (a table, polled) or "log" (a source with positions), then a
// colon and the name of a bug, or nothing. The tests of the conformance suite use it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/encoding/protojson"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

const maxMessage = 17 << 20

// bug is the rule that is broken; "": none.
var bug string

// terminated says that a signal has asked for the end, which only bugs mind.
var terminated atomic.Bool

func main() {
	kind, name, _ := strings.Cut(os.Getenv("BROKEN"), ":")
	bug = name
	if len(os.Args) == 5 && strings.HasPrefix(os.Args[1], "put") {
		exit(put(os.Args[1], os.Args[2], os.Args[3], os.Args[4]))
	}
	d := describe(kind)
	if len(os.Args) == 2 && os.Args[1] == "describe" {
		if bug == "describes-otherwise" {
			d.Version += "-other"
		}
		b, err := protojson.Marshal(d)
		fmt.Println(string(b))
		exit(err)
	}
	if os.Getenv("RELEVO_PLUGIN") != "d5a3" {
		exit(errors.New("this is a Relevo plugin: it is started by relevo, not by hand"))
	}
	if bug == "needs-environment" && os.Getenv("HOME") == "" {
		exit(errors.New("HOME is not set"))
	}
	exit(serve(kind, d))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "broken:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func describe(kind string) *pluginv1.DescribeResponse {
	d := &pluginv1.DescribeResponse{
		Name: "broken", Version: "1", Summary: "Keeps the rules, or breaks one.", MaxMessageBytes: maxMessage,
		Kind: pluginv1.PluginKind_PLUGIN_KIND_SINK, Capabilities: &pluginv1.Capabilities{KeepsOrder: true},
		ConfigSchema: `{"type": "object", "properties": {"target": {"type": "string"}}, "additionalProperties": false}`,
	}
	if kind != "sink" {
		d.Kind, d.Capabilities = pluginv1.PluginKind_PLUGIN_KIND_SOURCE, &pluginv1.Capabilities{HoldsKeys: kind == "source", HasPositions: kind == "log"}
		d.ConfigSchema = `{"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"], "additionalProperties": false}`
	}
	if bug == "broken-schema" {
		d.ConfigSchema = `{"type": "thing"}`
	}
	return d
}

// serve makes the handshake and serves until the host is gone.
func serve(kind string, d *pluginv1.DescribeResponse) error {
	base := os.Getenv("PLUGIN_UNIX_SOCKET_DIR")
	if bug == "listens-elsewhere" {
		base = ""
	}
	dir, err := os.MkdirTemp(base, "p")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	lis, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		return err
	}
	l := &life{ended: make(chan struct{})}
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage+1<<20), grpc.StatsHandler(l))
	h := health.NewServer()
	h.SetServingStatus("plugin", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(srv, h)
	if bug != "check-unimplemented" {
		pluginv1.RegisterPluginServiceServer(srv, &plugin{d: d})
	} else {
		pluginv1.RegisterPluginServiceServer(srv, describer{d: d})
	}
	if kind == "sink" {
		pluginv1.RegisterSinkServiceServer(srv, &sink{})
	} else {
		pluginv1.RegisterSourceServiceServer(srv, &source{log: kind == "log"})
	}
	if bug != "dies-at-sigterm" {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
		go func() { // lives as long as the process
			for range signals {
				terminated.Store(true)
			}
		}()
	}
	if bug == "junk-before-handshake" {
		fmt.Println("loading...")
	}
	fmt.Printf("1|1|unix|%s|grpc\n", lis.Addr())
	if bug == "talks-on-stdout" {
		fmt.Println("serving")
	}
	l.start()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	select {
	case err := <-served:
		return err
	case <-l.ended:
		srv.Stop()
		return <-served
	}
}

// life ends the process when its host is gone.
type life struct {
	once  sync.Once
	ended chan struct{}

	mu    sync.Mutex
	conns int
	seen  bool
}

func (l *life) end() { l.once.Do(func() { close(l.ended) }) }

func (l *life) start() {
	if bug != "outlives-stdin" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			l.end()
		}()
	}
	if bug == "waits-for-ever" {
		return
	}
	time.AfterFunc(15*time.Second, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.seen {
			l.end()
		}
	})
}

func (l *life) HandleConn(_ context.Context, s stats.ConnStats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s.(type) {
	case *stats.ConnBegin:
		l.conns++
		l.seen = true
	case *stats.ConnEnd:
		if l.conns--; l.conns == 0 && bug != "outlives-connection" {
			l.end()
		}
	}
}

func (l *life) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (l *life) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (l *life) HandleRPC(context.Context, stats.RPCStats)                         {}

// configFault is the answer to a configuration that can't be used; nil: it can.
func configFault(fault string) *pluginv1.Fault {
	if fault == "" || bug == "takes-unknown-keys" {
		return nil
	}
	return &pluginv1.Fault{Class: pluginv1.ErrorClass_ERROR_CLASS_CONFIG, Code: "config_invalid", Message: fault}
}

// outbox keeps answers until the host reads them: a plugin that answers while it reads stops reading when the host does.
type outbox[M any] struct {
	mu     sync.Mutex
	queue  []M
	more   chan struct{} // capacity 1: a note that the queue is not empty
	closed bool
}

func (o *outbox[M]) put(m M) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = append(o.queue, m)
	o.note()
}

func (o *outbox[M]) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.note()
}

func (o *outbox[M]) note() {
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// sendAll sends what is put until close.
func (o *outbox[M]) sendAll(send func(M) error) error {
	for range o.more {
		o.mu.Lock()
		queue, closed := o.queue, o.closed
		o.queue = nil
		o.mu.Unlock()
		for _, m := range queue {
			if err := send(m); err != nil {
				return err
			}
		}
		if closed {
			return nil
		}
	}
	return nil
}

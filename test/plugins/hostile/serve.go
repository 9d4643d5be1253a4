package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// serve speaks the protocol without go-plugin, as a plugin in another language does.
func serve(mode string) {
	socket := filepath.Join(socketDir(), "s")
	l, err := net.Listen("unix", socket)
	must(err)
	srv := newServer(mode)
	line(socket)
	if mode == "long-line" {
		_, _ = fmt.Println(strings.Repeat("x", 200<<10)) // with nobody to read it, this blocks
	}
	if mode == "lifeline-first" {
		lifeline(func() { os.Exit(0) })
	}
	if mode != "deaf" {
		go lifeline(func() { os.Exit(0) })
	}
	if mode == "mute" {
		forever() // the kernel takes connections for it
	}
	must(srv.Serve(l))
}

func newServer(mode string) *grpc.Server {
	srv := grpc.NewServer(
		grpc.ForceServerCodecV2(wire.Codec{}), grpc.MaxRecvMsgSize(wire.MaxMessage),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			if mode == "tell" {
				say("not served: " + method)
			}
			return status.Errorf(codes.Unimplemented, "unknown method %s", method)
		}),
	)
	p := &service{mode: mode}
	pluginv1.RegisterPluginServiceServer(srv, p)
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: pluginv1.SourceService_ServiceDesc.ServiceName, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Read", Handler: p.read, ServerStreams: true, ClientStreams: true}},
	}, p)
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: pluginv1.SinkService_ServiceDesc.ServiceName, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Write", Handler: p.write, ServerStreams: true, ClientStreams: true}},
	}, p)
	switch mode {
	case "no-health":
	case "health-turns":
		grpc_health_v1.RegisterHealthServer(srv, &turningHealth{})
	default:
		h := health.NewServer()
		state := grpc_health_v1.HealthCheckResponse_SERVING
		if mode == "not-serving" {
			state = grpc_health_v1.HealthCheckResponse_NOT_SERVING
		}
		h.SetServingStatus("plugin", state)
		grpc_health_v1.RegisterHealthServer(srv, h)
	}
	return srv
}

// turningHealth is well at first.
type turningHealth struct {
	grpc_health_v1.UnimplementedHealthServer
	mu sync.Mutex
	n  int
}

func (h *turningHealth) Check(
	context.Context, *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n++; h.n > 2 {
		return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_NOT_SERVING}, nil
	}
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

type service struct {
	pluginv1.UnimplementedPluginServiceServer
	mode string
}

func (s *service) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Name: "hostile", Kind: pluginv1.PluginKind_PLUGIN_KIND_SINK}, nil
}

// Check reports the environment, one finding each variable; or does what its config says.
func (s *service) Check(_ context.Context, r *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error) {
	switch string(r.GetConfig()) {
	case "exit":
		say("leaving")
		os.Exit(7)
	case "panic":
		go panic("out of cheese")
		select {}
	}
	res := &pluginv1.CheckResponse{}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		res.Findings = append(res.Findings, &pluginv1.Finding{Severity: pluginv1.Severity_SEVERITY_OK, Code: k, Message: v})
	}
	return res, nil
}

// frames are what read answers to Open, by the config in it.
func frames(config string) [][]byte {
	switch config {
	case "garbage":
		return [][]byte{{0xff, 0xff, 0xff}}
	case "empty":
		return [][]byte{{}}
	case "bad-batch": // count 3, and no events
		return [][]byte{{0x12, 0x02, 0x10, 0x03}}
	case "later": // a message of a later version, which is passed over; then Stopped
		return [][]byte{{0xf8, 0x01, 0x07}, {0x32, 0x00}}
	case "batch-later": // a batch with a field of a later version beside it
		return [][]byte{append(batch(), 0xf8, 0x01, 0x07), batch()}
	case "large":
		return [][]byte{largeBatch(16 << 20)}
	case "too-large":
		return [][]byte{largeBatch(wire.MaxMessage + 1<<10)}
	case "flood":
		b := largeBatch(4 << 20)
		return [][]byte{b, b, b, b, b, b, b, b, b, b}
	}
	return nil
}

func (s *service) read(_ any, stream grpc.ServerStream) error {
	req := &pluginv1.ReadRequest{}
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	config := string(req.GetOpen().GetConfig())
	if config == "refuse" {
		return status.Error(codes.FailedPrecondition, "no table outbox")
	}
	for _, f := range frames(config) {
		if err := stream.SendMsg(&wire.Frame{Segments: [][]byte{f}}); err != nil {
			return err
		}
	}
	if config == "end" {
		return nil
	}
	<-stream.Context().Done() // a plugin that never reads again
	return nil
}

// write acks what it gets: the count that the batch says.
func (s *service) write(_ any, stream grpc.ServerStream) error {
	for {
		req := &pluginv1.WriteRequest{}
		if err := stream.RecvMsg(req); err != nil {
			return err
		}
		var res *pluginv1.WriteResponse
		switch m := req.GetMessage().(type) {
		case *pluginv1.WriteRequest_Open:
			if string(m.Open.GetConfig()) == "deaf" {
				<-stream.Context().Done()
				return nil
			}
			res = &pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Opened{Opened: &pluginv1.SinkOpened{KeepsOrder: true}}}
		case *pluginv1.WriteRequest_Batch:
			through := m.Batch.GetFirstSeq() + uint64(m.Batch.GetCount()) - 1
			res = &pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Ack{Ack: &pluginv1.SinkAck{ThroughSeq: through}}}
		case *pluginv1.WriteRequest_Stop:
			return stream.SendMsg(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Stopped{Stopped: &pluginv1.Stopped{}}})
		default:
			return errors.New("unexpected request")
		}
		if err := stream.SendMsg(res); err != nil {
			return err
		}
	}
}

func batch() []byte {
	var b wire.Builder
	b.Add(&wire.Event{ID: "e1", Key: []byte("k")})
	return flat(b.Response(1, []byte("p")))
}

func largeBatch(size int) []byte {
	var b wire.Builder
	b.Add(&wire.Event{ID: "e1", Payload: make([]byte, size-64)})
	return flat(b.Response(1, nil))
}

func flat(f *wire.Frame) []byte {
	var out []byte
	for _, s := range f.Segments {
		out = append(out, s...)
	}
	return out
}

// serveStock is a plugin made with go-plugin's own Serve, which takes os.Stdout and os.Stderr over.
func serveStock() {
	go lifeline(func() { os.Exit(0) })
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: goplugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "RELEVO_PLUGIN", MagicCookieValue: "d5a3"},
		Plugins:         goplugin.PluginSet{"sink": stockPlugin{}},
		GRPCServer:      goplugin.DefaultGRPCServer,
	})
}

type stockPlugin struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (stockPlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	pluginv1.RegisterPluginServiceServer(s, &stockService{})
	return nil
}

func (stockPlugin) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("not a client")
}

type stockService struct{ service }

// Describe writes to what Serve has put in the place of os.Stdout and os.Stderr.
func (s *stockService) Describe(ctx context.Context, r *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	_, _ = fmt.Fprintln(os.Stdout, "printed to stdout")
	_, _ = fmt.Fprintln(os.Stderr, `{"level":"WARN","msg":"printed to stderr"}`)
	return s.service.Describe(ctx, r)
}

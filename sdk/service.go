package sdk

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Settings of the gRPC server.
const (
	// messageSlack is the room for the envelope beside the events of a message.
	messageSlack = 1 << 20
	// Static flow-control windows: without them gRPC probes the bandwidth of a unix socket, and a large batch waits for
	// it. They hold a few of the largest usual messages (4 MiB).
	streamWindow = 8 << 20
	connWindow   = 16 << 20
	ioBuffer     = 256 << 10
)

func (r *registration) serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.Codec{}),
		grpc.MaxRecvMsgSize(max(int(r.describe.GetMaxMessageBytes()), wire.DefaultMaxMessage) + messageSlack),
		grpc.MaxSendMsgSize(wire.MaxMessage),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.ReadBufferSize(ioBuffer),
		grpc.WriteBufferSize(ioBuffer),
		// A host that pings an idle connection is welcome; the default would cut it off.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(r.recoverUnary),
		grpc.ChainStreamInterceptor(r.recoverStream),
	}
}

// register adds PluginService and the service of the plugin's kind. The streams are served by hand: the generated
// handlers insist on typed messages, where a batch is to stay a wire.Frame. Names come from the generated descriptors.
func (r *registration) register(s grpc.ServiceRegistrar) {
	pluginv1.RegisterPluginServiceServer(s, pluginService{r: r})
	desc, serve := pluginv1.SourceService_ServiceDesc, r.serveRead
	if r.isSink() {
		desc, serve = pluginv1.SinkService_ServiceDesc, r.serveWrite
	}
	desc.HandlerType = (*any)(nil)
	desc.Streams = slices.Clone(desc.Streams)
	desc.Streams[0].Handler = func(_ any, stream grpc.ServerStream) error { return serve(stream) }
	s.RegisterService(&desc, r)
}

// pluginService answers what needs no stream.
type pluginService struct {
	pluginv1.UnimplementedPluginServiceServer
	r *registration
}

func (p pluginService) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return p.r.describe, nil
}

func (p pluginService) Check(ctx context.Context, r *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error) {
	return p.r.check(ctx, r)
}

func (r *registration) recoverUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (_ any, err error) {
	defer r.recovered(info.FullMethod, &err)
	return h(ctx, req)
}

func (r *registration) recoverStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
	defer r.recovered(info.FullMethod, &err)
	return h(srv, ss)
}

// recovered turns a panic into a logged stack, a gRPC error and the end of the process: what the plugin had in its hands
// is in an unknown state, and the host starts a new one. It is to be deferred itself.
func (r *registration) recovered(method string, err *error) {
	v := recover()
	if v == nil {
		return
	}
	stack := debug.Stack()
	if p, ok := v.(*panicked); ok { // it happened in another goroutine
		v, stack = p.value, p.stack
	}
	slog.Error("panic in the plugin", "method", method, "panic", fmt.Sprint(v), "stack", string(stack))
	*err = status.Errorf(codes.Internal, "panic in the plugin: %v", v)
	if r.crash != nil {
		r.crash()
	}
}

// panicked carries a panic from the goroutine where it happened to the one that called run.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v\n%s", p.value, p.stack) }

// guard runs f and returns its panic, if it had one.
func guard(f func()) (p *panicked) {
	defer func() {
		if v := recover(); v != nil {
			p = &panicked{value: v, stack: debug.Stack()}
		}
	}()
	f()
	return nil
}

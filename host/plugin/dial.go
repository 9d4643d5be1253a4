package plugin

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/relevo-io/relevo/internal/wire"
)

const (
	// flowWindow is several batches, and fixed: gRPC's estimator grows from 64 KiB in pings, one round trip each. The
	// windows of the protocol bound what is in flight; this one only must not be what a batch waits for.
	flowWindow = 16 << 20
	ioBuffer   = 256 << 10
)

// dialOptions come after go-plugin's own, and override its dialer, its credentials, and its limits of 2 GiB. There is no
// keep-alive: a server in another language cuts an idle connection that pings.
func dialOptions(s Settings, run *osProcess, peers *peerCredentials) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(run.dial),
		grpc.WithNoProxy(),
		grpc.WithTransportCredentials(peers),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(wire.Codec{}),
			grpc.MaxCallRecvMsgSize(wire.MaxMessage),
			grpc.MaxCallSendMsgSize(s.MaxMessageBytes),
		),
		grpc.WithStaticStreamWindowSize(flowWindow),
		grpc.WithStaticConnWindowSize(flowWindow),
		grpc.WithReadBufferSize(ioBuffer),
		grpc.WithWriteBufferSize(ioBuffer),
		grpc.WithDisableRetry(), // what is tried again is the pipeline's decision
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithChainStreamInterceptor(withoutBroker),
	}
}

// withoutBroker leaves go-plugin's broker out. We offer and take no brokered connections, and its client starts a
// goroutine for each one that a plugin announces.
func withoutBroker(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if method == "/plugin.GRPCBroker/StartStream" {
		return nil, status.Error(codes.Unimplemented, "the host has no broker")
	}
	return next(ctx, desc, cc, method, opts...)
}

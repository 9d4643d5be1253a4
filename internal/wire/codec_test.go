package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// frameSource sends the frames that it was given and reads, as frames, what it is sent.
type frameSource struct {
	pluginv1.UnimplementedSourceServiceServer
	out []*Frame
	in  chan *Frame
}

func (s *frameSource) Read(stream pluginv1.SourceService_ReadServer) error {
	for _, f := range s.out {
		if err := stream.SendMsg(f); err != nil {
			return err
		}
	}
	for {
		f := &Frame{}
		switch err := stream.RecvMsg(f); {
		case errors.Is(err, io.EOF):
			close(s.in)
			return nil
		case err != nil:
			return err
		}
		s.in <- f
	}
}

// dial serves s over a connection of gRPC's own, with the codec on the server's side; options are the client's.
func dial(t *testing.T, s pluginv1.SourceServiceServer, options ...grpc.CallOption) pluginv1.SourceServiceClient {
	t.Helper()
	lis := bufconn.Listen(64 << 10)
	srv := grpc.NewServer(grpc.ForceServerCodecV2(Codec{}), grpc.MaxRecvMsgSize(MaxMessage))
	pluginv1.RegisterSourceServiceServer(srv, s)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(append(options, grpc.MaxCallRecvMsgSize(MaxMessage))...))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		srv.Stop()
		require.NoError(t, <-served)
	})
	return pluginv1.NewSourceServiceClient(conn)
}

// batchOf makes a batch of n events with payloads of that size.
func batchOf(n, payload int) (*Frame, *pluginv1.Batch) {
	var w Builder
	want := &pluginv1.Batch{FirstSeq: 1, Count: uint32(n)}
	for i := range n {
		e := benchEvent(i)
		e.Payload = bytes.Repeat([]byte{byte(i)}, payload)
		w.Add(e)
		p := &pluginv1.Event{}
		if err := proto.Unmarshal(e.Append(nil), p); err != nil {
			panic(err)
		}
		want.Events = append(want.Events, p)
	}
	return w.Response(1, nil), want
}

func TestCodecCarriesFramesOfEverySize(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ events, payload int }{
		"one event": {1, 10},
		"300 kB":    {500, 500},
		"4 MiB":     {60, 64 << 10},
		"16 MiB":    {1, MaxEvent - 512},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, want := batchOf(c.events, c.payload)
			s := &frameSource{out: []*Frame{f, f}, in: make(chan *Frame, 1)}

			// As a peer in another language sees it, and as we do.
			for kind, options := range map[string][]grpc.CallOption{"generated": nil, "frame": {grpc.ForceCodecV2(Codec{})}} {
				ctx, cancel := context.WithCancel(t.Context())
				stream, err := dial(t, s, options...).Read(ctx)
				require.NoError(t, err, kind)
				for range s.out {
					if kind == "generated" {
						r, err := stream.Recv()
						require.NoError(t, err)
						require.True(t, proto.Equal(want, r.GetBatch()))
						continue
					}
					got := &Frame{}
					require.NoError(t, stream.RecvMsg(got))
					body, ok := BatchOf(got.Data)
					require.True(t, ok)
					b, err := ParseBatch(body)
					require.NoError(t, err)
					requireSameBatch(t, want, b)
				}
				cancel()
			}
		})
	}
}

func TestCodecMixesFramesAndMessagesOnOneStream(t *testing.T) {
	t.Parallel()
	f, want := batchOf(3, 100)
	s := &frameSource{out: []*Frame{f}, in: make(chan *Frame, 4)}
	stream, err := dial(t, s, grpc.ForceCodecV2(Codec{})).Read(t.Context())
	require.NoError(t, err)

	open := &pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Open{Open: &pluginv1.SourceOpen{Config: []byte("{}"), HeldIds: []string{"é"}}}}
	require.NoError(t, stream.Send(open))
	r, err := stream.Recv()
	require.NoError(t, err)
	require.True(t, proto.Equal(want, r.GetBatch()))

	// What was received can be sent on.
	got := <-s.in
	require.NoError(t, stream.SendMsg(got))
	require.NoError(t, stream.CloseSend())
	echo, back := &pluginv1.ReadRequest{}, <-s.in
	require.NoError(t, proto.Unmarshal(back.Data, echo))
	require.True(t, proto.Equal(open, echo))
	_, more := <-s.in
	require.False(t, more)
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
}

func TestCodecLeavesReceivedBytesAlone(t *testing.T) {
	t.Parallel()
	// gRPC takes its buffers back after each message: a frame that is kept must not change when later ones arrive.
	var frames []*Frame
	var wants []*pluginv1.Batch
	for i := range 20 {
		f, want := batchOf(10+i, 1000)
		frames, wants = append(frames, f), append(wants, want)
	}
	stream, err := dial(t, &frameSource{out: frames, in: make(chan *Frame, 1)}, grpc.ForceCodecV2(Codec{})).Read(t.Context())
	require.NoError(t, err)
	var kept []*Batch
	for range frames {
		f := &Frame{}
		require.NoError(t, stream.RecvMsg(f))
		body, _ := BatchOf(f.Data)
		b, err := ParseBatch(body)
		require.NoError(t, err)
		kept = append(kept, b)
	}
	for i, b := range kept {
		requireSameBatch(t, wants[i], b)
	}
}

func TestCodecRefusesWhatIsNoMessage(t *testing.T) {
	t.Parallel()
	_, err := Codec{}.Marshal("text")
	require.ErrorContains(t, err, "BUG")
	require.ErrorContains(t, Codec{}.Unmarshal(nil, new(string)), "BUG")
	_, err = Codec{}.Marshal(&pluginv1.Event{Id: "\xff"})
	require.Error(t, err, "the generated code refuses text that is not UTF-8")
}

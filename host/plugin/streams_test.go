package plugin

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

func launched(t *testing.T, kind Kind) *Process {
	s, _ := hostile(t, "good")
	s.Kind = kind
	return mustLaunch(t, s)
}

func read(t *testing.T, p *Process, config string) *ReadStream {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s, err := p.Read(ctx, &pluginv1.SourceOpen{Config: []byte(config)})
	require.NoError(t, err)
	return s
}

func TestReadStream(t *testing.T) {
	t.Parallel()
	p := launched(t, KindSource)

	t.Run("batches and other responses", func(t *testing.T) {
		s := read(t, p, "batch-later")
		for range 2 {
			b, r, err := s.Recv()
			require.NoError(t, err)
			require.Nil(t, r)
			require.Equal(t, uint64(1), b.FirstSeq)
			require.Equal(t, 1, b.Len())
			require.Equal(t, []byte("p"), b.Position)
			var e wire.Event
			require.NoError(t, e.Parse(b.Raw(0)))
			require.Equal(t, "e1", e.ID)
		}
	})
	t.Run("a message of a later version is passed over", func(t *testing.T) {
		b, r, err := read(t, p, "later").Recv()
		require.NoError(t, err)
		require.Nil(t, b)
		require.NotNil(t, r.GetStopped())
	})
	t.Run("the largest event", func(t *testing.T) {
		b, _, err := read(t, p, "large").Recv()
		require.NoError(t, err)
		require.Greater(t, b.Size(0), 15<<20)
	})
	t.Run("a larger one is refused", func(t *testing.T) {
		_, _, err := read(t, p, "too-large").Recv()
		require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	})
	t.Run("I6: nonsense is the plugin's bug", func(t *testing.T) {
		for _, config := range []string{"garbage", "empty", "bad-batch"} {
			_, _, err := read(t, p, config).Recv()
			e, ok := errors.AsType[*ProtocolError](err)
			require.True(t, ok, "%s: %v", config, err)
			require.Equal(t, "source-hostile", e.Plugin)
			require.ErrorContains(t, err, "a bug in the plugin")
		}
	})
	t.Run("the plugin ends it", func(t *testing.T) {
		_, _, err := read(t, p, "end").Recv()
		require.Equal(t, io.EOF, err)
	})
	t.Run("a status is kept", func(t *testing.T) {
		_, _, err := read(t, p, "refuse").Recv()
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.ErrorContains(t, err, "no table outbox")
	})
}

// A batch that the pipeline has no room for stays with gRPC; the health checks that share the connection go on.
func TestUnreadStreamDoesNotStopHealth(t *testing.T) {
	t.Parallel()
	s, _ := hostile(t, "good")
	s.Kind = KindSource
	p := mustLaunchIn(t, s, quick())
	r := read(t, p, "flood")
	_, _, err := r.Recv()
	require.NoError(t, err)
	then := p.Alive()
	eventually(t, func() bool { return p.Alive().Sub(then) > time.Second }, "health checks are answered")
	select {
	case <-p.Done():
		require.FailNow(t, "killed")
	default:
	}
}

func TestWriteStream(t *testing.T) {
	t.Parallel()
	p := launched(t, KindSink)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := p.Write(ctx, &pluginv1.SinkOpen{})
	require.NoError(t, err)
	r, err := s.Recv()
	require.NoError(t, err)
	require.True(t, r.GetOpened().GetKeepsOrder())

	var b wire.Builder
	b.Add(&wire.Event{ID: "a", Key: []byte("k"), Payload: []byte("x")})
	b.Add(&wire.Event{ID: "b"})
	body, ok := wire.BatchOf(flat(b.Response(1, nil)))
	require.True(t, ok)
	in, err := wire.ParseBatch(body)
	require.NoError(t, err)
	out := wire.SinkBatch{FirstSeq: 5, Count: 2, Destinations: []string{"d"}, Events: [][]byte{in.Framed(0, 2)}}
	require.NoError(t, s.SendFrame(out.Request()))
	r, err = s.Recv()
	require.NoError(t, err)
	require.Equal(t, uint64(6), r.GetAck().GetThroughSeq(), "the plugin has understood the frame")

	require.NoError(t, s.Send(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Stop{Stop: &pluginv1.Stop{}}}))
	r, err = s.Recv()
	require.NoError(t, err)
	require.NotNil(t, r.GetStopped())
	_, err = s.Recv()
	require.Equal(t, io.EOF, err)
	require.Eventually(t, func() bool { return errors.Is(s.Send(&pluginv1.WriteRequest{}), io.EOF) }, soon, time.Millisecond)
}

// What the plugin can't receive is refused here, before it is sent.
func TestWriteLimit(t *testing.T) {
	t.Parallel()
	p := launched(t, KindSink)
	s, err := p.Write(t.Context(), &pluginv1.SinkOpen{})
	require.NoError(t, err)
	err = s.SendFrame(&wire.Frame{Segments: [][]byte{make([]byte, wire.DefaultMaxMessage+1)}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))

	settings, _ := hostile(t, "good")
	settings.MaxMessageBytes = 8 << 20
	p = mustLaunch(t, settings)
	s, err = p.Write(t.Context(), &pluginv1.SinkOpen{})
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	var b wire.Builder
	b.Add(&wire.Event{ID: "a", Payload: make([]byte, 6<<20)})
	require.NoError(t, s.SendFrame(b.Response(1, nil))) // the carrier is the same
	r, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, uint64(1), r.GetAck().GetThroughSeq())
}

// The end of a stream's context frees a sender that the plugin does not read, and so does the end of the process.
func TestBlockedSenderIsFreed(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"context", "kill"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			p := launched(t, KindSink)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, err := p.Write(ctx, &pluginv1.SinkOpen{Config: []byte("deaf")})
			require.NoError(t, err)
			sent, freed := make(chan struct{}, 1), make(chan error, 1)
			go func() {
				for {
					if err := s.SendFrame(&wire.Frame{Segments: [][]byte{{0x12, 0x02, 0x10, 0x00}, make([]byte, 1<<20)}}); err != nil {
						freed <- err
						return
					}
					select {
					case sent <- struct{}{}:
					default:
					}
				}
			}()
			<-sent
			if by == "context" {
				cancel()
			} else {
				p.Kill()
			}
			select {
			case err := <-freed:
				require.Error(t, err)
			case <-time.After(soon):
				require.FailNow(t, "the sender is still blocked")
			}
			_, err = s.Recv()
			require.Contains(t, []codes.Code{codes.Canceled, codes.Unavailable}, status.Code(err), "%v", err)
		})
	}
}

func flat(f *wire.Frame) []byte {
	var out []byte
	for _, s := range f.Segments {
		out = append(out, s...)
	}
	return out
}

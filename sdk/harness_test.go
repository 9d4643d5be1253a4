package sdk

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// host serves a plugin in process and is connected to it.
type host struct {
	t    testing.TB
	ctx  context.Context
	conn *grpc.ClientConn
}

func newHost(t testing.TB, p Plugin) *host {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	return serveOn(t, p, lis, func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) })
}

// serveOn serves a plugin on a listener and connects to it.
func serveOn(t testing.TB, p Plugin, lis net.Listener, dial func(context.Context, string) (net.Conn, error)) *host {
	t.Helper()
	srv := grpc.NewServer(ServerOptions(p)...)
	Register(srv, p)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis)
	}()
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.Codec{}), grpc.MaxCallRecvMsgSize(wire.MaxMessage)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(ioBuffer), grpc.WithWriteBufferSize(ioBuffer))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		srv.Stop()
		<-served
	})
	return &host{t: t, ctx: ctx, conn: conn}
}

// sinkHost is the host's end of a Write stream.
type sinkHost struct {
	grpc.ClientStream
	t    testing.TB
	next uint64
}

func (h *host) write(open *pluginv1.SinkOpen) *sinkHost { return h.writeCtx(h.ctx, open) }

func (h *host) writeCtx(ctx context.Context, open *pluginv1.SinkOpen) *sinkHost {
	h.t.Helper()
	s, err := h.conn.NewStream(ctx, &pluginv1.SinkService_ServiceDesc.Streams[0], pluginv1.SinkService_Write_FullMethodName)
	require.NoError(h.t, err)
	if open.GetWindow() == nil {
		open.Window = &pluginv1.Window{Events: 1000, Bytes: 16 << 20}
	}
	if open.GetDrainTimeout() == nil {
		open.DrainTimeout = durationpb.New(patience)
	}
	require.NoError(h.t, s.SendMsg(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Open{Open: open}}))
	return &sinkHost{ClientStream: s, t: h.t, next: 1}
}

// opened waits for Opened.
func (s *sinkHost) opened() *pluginv1.SinkOpened {
	s.t.Helper()
	m := s.recv()
	require.NotNil(s.t, m.GetOpened(), "%v", m)
	return m.GetOpened()
}

func (s *sinkHost) recv() *pluginv1.WriteResponse {
	s.t.Helper()
	m := new(pluginv1.WriteResponse)
	require.NoError(s.t, s.RecvMsg(m))
	return m
}

// sendErr waits for the gRPC error that ends the stream.
func (s *sinkHost) end() error {
	for {
		if err := s.RecvMsg(new(pluginv1.WriteResponse)); err != nil {
			return err
		}
	}
}

// batch sends events with these keys; "" is no key. It returns the number of the first.
func (s *sinkHost) batch(keys ...string) uint64 {
	s.t.Helper()
	b := &pluginv1.Batch{FirstSeq: s.next, Count: uint32(len(keys)), Destinations: []string{"topic"}}
	for i, k := range keys {
		e := &pluginv1.Event{Id: fmt.Sprintf("id-%d", s.next+uint64(i)), Payload: []byte("payload")}
		if k != "" {
			e.Key = []byte(k)
		}
		b.Events = append(b.Events, e)
	}
	return s.batchOf(b)
}

func (s *sinkHost) batchOf(b *pluginv1.Batch) uint64 {
	s.t.Helper()
	first := b.GetFirstSeq()
	s.next = first + uint64(b.GetCount())
	s.send(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Batch{Batch: b}})
	return first
}

func (s *sinkHost) send(m *pluginv1.WriteRequest) {
	s.t.Helper()
	require.NoError(s.t, s.SendMsg(m))
}

func (s *sinkHost) release(keys ...string) {
	s.t.Helper()
	r := &pluginv1.Release{}
	for _, k := range keys {
		r.Keys = append(r.Keys, []byte(k))
	}
	s.send(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Release{Release: r}})
}

func (s *sinkHost) stop() {
	s.t.Helper()
	s.send(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Stop{Stop: &pluginv1.Stop{}}})
}

// outcome of a number, as the host learns it.
type outcome struct {
	what string // acked, failed, returned
	fail *pluginv1.Failure
}

// ledger applies responses as the host does: every number ends once.
type ledger struct {
	t    testing.TB
	ends map[uint64]outcome
	last *pluginv1.WriteResponse
}

// whats lists what became of the numbers from 1 on.
func (l *ledger) whats() []string {
	var w []string
	for seq := uint64(1); seq <= uint64(len(l.ends)); seq++ {
		w = append(w, l.ends[seq].what)
	}
	return w
}

func newLedger(t testing.TB) *ledger { return &ledger{t: t, ends: map[uint64]outcome{}} }

func (l *ledger) endOne(seq uint64, o outcome) {
	l.t.Helper()
	_, twice := l.ends[seq]
	require.Falsef(l.t, twice, "number %d ends twice", seq)
	l.ends[seq] = o
}

func (l *ledger) apply(m *pluginv1.WriteResponse) {
	l.t.Helper()
	l.last = m
	for seq := uint64(1); seq <= m.GetAck().GetThroughSeq(); seq++ {
		if _, ended := l.ends[seq]; !ended {
			l.endOne(seq, outcome{what: "acked"})
		}
	}
	ranges := func(rs []*pluginv1.SeqRange, what string) {
		last := uint64(0)
		for _, r := range rs {
			require.Greater(l.t, r.GetFirst(), last, "ranges ascend")
			require.GreaterOrEqual(l.t, r.GetLast(), r.GetFirst())
			last = r.GetLast()
			for seq := r.GetFirst(); seq <= last; seq++ {
				l.endOne(seq, outcome{what: what})
			}
		}
	}
	ranges(m.GetAck().GetRanges(), "acked")
	ranges(m.GetReturned().GetRanges(), "returned")
	if f := m.GetFailure(); f != nil {
		l.endOne(f.GetSeq(), outcome{what: "failed", fail: f})
	}
}

// until receives until n numbers have ended.
func (s *sinkHost) until(l *ledger, n int) {
	s.t.Helper()
	for len(l.ends) < n {
		l.apply(s.recv())
	}
}

// untilStopped receives until Stopped.
func (s *sinkHost) untilStopped(l *ledger) {
	s.t.Helper()
	for {
		m := s.recv()
		require.Nil(s.t, m.GetFault(), "%v", m)
		if m.GetStopped() != nil {
			return
		}
		l.apply(m)
	}
}

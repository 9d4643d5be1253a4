package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/relevo-io/relevo/sdk"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

const patience = 20 * time.Second

type stream struct {
	pluginv1.SourceService_ReadClient
	t *testing.T
}

func serve(t *testing.T) (context.Context, pluginv1.SourceServiceClient) {
	t.Helper()
	p := plugin()
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(sdk.ServerOptions(p)...)
	sdk.Register(srv, p)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis)
	}()
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		srv.Stop()
		<-served
	})
	return ctx, pluginv1.NewSourceServiceClient(conn)
}

func open(t *testing.T, c map[string]any, o *pluginv1.SourceOpen) *stream {
	t.Helper()
	ctx, client := serve(t)
	s, err := client.Read(ctx)
	require.NoError(t, err)
	config, err := json.Marshal(c)
	require.NoError(t, err)
	o.Config = config
	require.NoError(t, s.Send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Open{Open: o}}))
	return &stream{SourceService_ReadClient: s, t: t}
}

// recv receives the next message that is no Status.
func (s *stream) recv() *pluginv1.ReadResponse {
	s.t.Helper()
	for {
		m, err := s.Recv()
		require.NoError(s.t, err)
		if m.GetStatus() == nil {
			return m
		}
	}
}

func (s *stream) ack(a *pluginv1.SourceAck) {
	s.t.Helper()
	require.NoError(s.t, s.Send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{Ack: a}}))
}

func (s *stream) stop() {
	s.t.Helper()
	require.NoError(s.t, s.Send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Stop{Stop: &pluginv1.Stop{}}}))
	for s.recv().GetStopped() == nil {
	}
}

// TestPositions goes on behind the position of Open, and keeps to the window as a distance.
func TestPositions(t *testing.T) {
	t.Parallel()
	s := open(t, map[string]any{"positions": true, "batch": 4, "size": 10}, &pluginv1.SourceOpen{
		Position: []byte("100"), Window: &pluginv1.Window{Events: 6, Bytes: 1 << 20},
	})
	require.True(t, s.recv().GetOpened().GetHasPositions())
	b := s.recv().GetBatch()
	require.Equal(t, "101", b.GetEvents()[0].GetId())
	require.Equal(t, "104", string(b.GetPosition()))
	require.Len(t, b.GetEvents(), 4)
	require.Len(t, s.recv().GetBatch().GetEvents(), 2, "the window is full")
	s.ack(&pluginv1.SourceAck{ThroughSeq: 4, Position: []byte("104")})
	b = s.recv().GetBatch()
	require.Equal(t, uint64(7), b.GetFirstSeq())
	require.Equal(t, "107", b.GetEvents()[0].GetId())
	require.Len(t, b.GetEvents(), 4)
	s.stop()
}

// TestHolds is a host that fails events at random, holds their keys and releases them: every event comes to be acked
// once, those of a key in order, and none of a held key is sent after Held.
func TestHolds(t *testing.T) {
	t.Parallel()
	const count, keys, window = 3000, 7, 50
	s := open(t, map[string]any{"holds_keys": true, "count": count, "keys": keys, "batch": 9, "size": 10}, &pluginv1.SourceOpen{
		Window: &pluginv1.Window{Events: window, Bytes: 1 << 20},
	})
	require.True(t, s.recv().GetOpened().GetHoldsKeys())
	rng := rand.New(rand.NewPCG(1, 2))
	type number struct {
		seq uint64
		id  int
	}
	open := map[string][]number{} // by key, in order
	held := map[string]bool{}     // Hold was sent; true: Held has come
	var waiting []string          // held, oldest first
	acked := map[string][]int{}
	total, inWindow := 0, 0
	settle := func(key string, n int) { // acks the first n
		var a pluginv1.SourceAck
		for _, o := range open[key][:n] {
			a.Ranges = append(a.Ranges, &pluginv1.SeqRange{First: o.seq, Last: o.seq})
			acked[key] = append(acked[key], o.id)
		}
		open[key] = open[key][n:]
		total += n
		inWindow -= n
		s.ack(&a)
	}
	giveBack := func(key string, from int, hold ...[]byte) {
		h := &pluginv1.Hold{Keys: hold}
		for _, o := range open[key][from:] {
			h.Returned = append(h.Returned, &pluginv1.SeqRange{First: o.seq, Last: o.seq})
		}
		inWindow -= len(open[key][from:])
		open[key] = open[key][:from]
		require.NoError(t, s.Send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Hold{Hold: h}}))
	}
	release := func() {
		key := waiting[0]
		waiting = waiting[1:]
		delete(held, key)
		settle(key, len(open[key])) // the head is settled, which is what releases a key
		require.NoError(t, s.Send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Release{
			Release: &pluginv1.Release{Keys: [][]byte{[]byte(key)}},
		}}))
	}
	isHeld := func(key string) bool {
		_, ok := held[key]
		return ok
	}
	// exhausted: nothing can come but of held keys.
	exhausted := func() bool {
		for k := range keys {
			key := keyOf(uint64(k), keys)
			all := count / keys
			if k != 0 && k <= count%keys {
				all++
			}
			if !isHeld(key) && len(acked[key]) < all {
				return false
			}
		}
		return len(waiting) > 0
	}
	for total < count {
		if len(waiting) > keys/2 || exhausted() {
			release()
			continue
		}
		m := s.recv()
		if h := m.GetHeld(); h != nil {
			key := string(h.GetKeys()[0])
			held[key] = true
			waiting = append(waiting, key)
			continue
		}
		b := m.GetBatch()
		require.NotNil(t, b, "%v", m)
		touched := map[string]bool{}
		for i, e := range b.GetEvents() {
			id, err := strconv.Atoi(e.GetId())
			require.NoError(t, err)
			key := string(e.GetKey())
			require.False(t, held[key], "event %d of a key that was answered by Held", id)
			open[key] = append(open[key], number{b.GetFirstSeq() + uint64(i), id})
			inWindow++
			touched[key] = true
		}
		require.LessOrEqual(t, inWindow, window)
		for key := range touched {
			switch {
			case isHeld(key): // it was under way when Hold was sent
				giveBack(key, 1)
			case rng.IntN(3) == 0:
				held[key] = false
				giveBack(key, 1, []byte(key))
			default:
				settle(key, len(open[key]))
			}
		}
	}
	for key, ids := range acked {
		require.True(t, slices.IsSorted(ids), "%s: %v", key, ids)
		require.Len(t, slices.Compact(slices.Clone(ids)), len(ids), key)
	}
	s.stop()
}

func TestRejects(t *testing.T) {
	t.Parallel()
	s := open(t, map[string]any{"positions": true, "count": 10, "reject_every": 5, "keys": 3}, &pluginv1.SourceOpen{})
	require.NotNil(t, s.recv().GetOpened())
	b := s.recv().GetBatch()
	require.Equal(t, uint32(10), b.GetCount())
	require.Len(t, b.GetRejected(), 2)
	require.Equal(t, []uint32{4, 9}, []uint32{b.GetRejected()[0].GetOffset(), b.GetRejected()[1].GetOffset()})
	require.Equal(t, fmt.Sprint("key-", 5%3), string(b.GetRejected()[0].GetKey()))
	s.stop()
}

func TestFails(t *testing.T) {
	t.Parallel()
	s := open(t, map[string]any{"positions": true, "fail_after": 10, "batch": 5}, &pluginv1.SourceOpen{})
	require.NotNil(t, s.recv().GetOpened())
	require.Len(t, s.recv().GetBatch().GetEvents(), 5)
	require.Len(t, s.recv().GetBatch().GetEvents(), 5)
	require.Equal(t, "null_failed", s.recv().GetFault().GetCode())
}

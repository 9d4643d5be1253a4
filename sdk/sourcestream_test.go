package sdk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// sourceHost is the host's end of a Read stream.
type sourceHost struct {
	grpc.ClientStream
	t testing.TB
}

func (h *host) read(open *pluginv1.SourceOpen) *sourceHost {
	h.t.Helper()
	s, err := h.conn.NewStream(h.ctx, &pluginv1.SourceService_ServiceDesc.Streams[0], pluginv1.SourceService_Read_FullMethodName)
	require.NoError(h.t, err)
	r := &sourceHost{ClientStream: s, t: h.t}
	r.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Open{Open: open}})
	return r
}

func (s *sourceHost) send(m *pluginv1.ReadRequest) {
	s.t.Helper()
	require.NoError(s.t, s.SendMsg(m))
}

func (s *sourceHost) recv() *pluginv1.ReadResponse {
	s.t.Helper()
	m := new(pluginv1.ReadResponse)
	require.NoError(s.t, s.RecvMsg(m))
	return m
}

func (s *sourceHost) stop() {
	s.t.Helper()
	s.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Stop{Stop: &pluginv1.Stop{}}})
}

func sourceSpec() Spec[empty] { return Spec[empty]{Name: "test", HoldsKeys: true, HasPositions: true} }

func TestSourceStream(t *testing.T) {
	t.Parallel()
	requests := make(chan []Request, 1)
	h := newHost(t, Source(sourceSpec(), func(_ context.Context, o SourceOpen[empty], s *SourceStream) error {
		if diff := cmp.Diff(SourceOpen[empty]{
			Instance:     Instance{HostID: "h", Pipeline: "p", Name: "source", Attempt: 3, OwnerEpoch: 4},
			Window:       Window{Events: 10, Bytes: 1000},
			DrainTimeout: time.Minute,
			Position:     []byte("p0"),
			HeldKeys:     [][]byte{[]byte("k")},
			HeldIDs:      []string{"i"},
		}, o); diff != "" {
			return errors.New(diff)
		}
		if err := s.Status(SourceStatus{State: StateConnecting, OldestUnpublished: -1, LagBytes: -1, Backlog: -1}); err != nil {
			return err
		}
		if _, err := s.Send(&Batch{}, nil); err == nil {
			return errors.New("sent before Opened")
		}
		if err := s.Opened(SourceOpened{HoldsKeys: true, HasPositions: true, Order: "per key"}); err != nil {
			return err
		}
		if _, err := s.Send(&Batch{}, nil); err == nil {
			return errors.New("sent an empty batch")
		}
		var b Batch
		key := []byte("key")
		for i := range 3 {
			if err := b.Add(&Event{ID: fmt.Sprint(i), Key: key}); err != nil {
				return err
			}
		}
		copy(key, "xxx") // what Add was given may be reused
		b.Reject(Rejected{ID: "(0,1)", Key: []byte{}, Code: "id_null", Message: "the id is NULL"})
		if first, err := s.Send(&b, []byte("p1")); err != nil || first != 1 || b.Count() != 0 || b.Bytes() != 0 {
			return fmt.Errorf("first %d, %d left, %w", first, b.Count(), err)
		}
		if err := b.Add(&Event{ID: "4", Payload: []byte{}}); err != nil {
			return err
		}
		if first, err := s.Send(&b, nil); err != nil || first != 5 {
			return fmt.Errorf("first %d, %w", first, err)
		}
		if err := s.Held([][]byte{[]byte("k")}, []string{"i"}); err != nil {
			return err
		}
		if err := s.Progress([]byte("p2")); err != nil {
			return err
		}
		if err := s.Status(SourceStatus{State: StateStreaming, Text: "fine", LagBytes: 7, Backlog: 0, OldestUnpublished: time.Second}); err != nil {
			return err
		}
		var got []Request
		for r := range s.Requests() {
			got = append(got, r)
		}
		requests <- got
		return nil
	}))
	s := h.read(&pluginv1.SourceOpen{
		Instance:     &pluginv1.Instance{HostId: "h", Pipeline: "p", Name: "source", Attempt: 3, OwnerEpoch: 4},
		Window:       &pluginv1.Window{Events: 10, Bytes: 1000},
		DrainTimeout: durationpb.New(time.Minute),
		Position:     []byte("p0"),
		HeldKeys:     [][]byte{[]byte("k")},
		HeldIds:      []string{"i"},
	})
	for _, m := range []*pluginv1.ReadRequest{
		{Message: &pluginv1.ReadRequest_Ack{Ack: &pluginv1.SourceAck{ThroughSeq: 2, Position: []byte("p1")}}},
		{Message: &pluginv1.ReadRequest_Hold{Hold: &pluginv1.Hold{
			Keys: [][]byte{[]byte("k")}, Ids: []string{"i"}, Returned: []*pluginv1.SeqRange{{First: 3, Last: 3}},
		}}},
		{Message: &pluginv1.ReadRequest_Release{Release: &pluginv1.Release{Keys: [][]byte{[]byte("k")}, Ids: []string{"i"}}}},
		{Message: &pluginv1.ReadRequest_Window{Window: &pluginv1.Window{Events: 5, Bytes: 6}}},
		{Message: &pluginv1.ReadRequest_Stop{Stop: &pluginv1.Stop{}}},
	} {
		s.send(m)
	}
	require.Equal(t, []Request{
		Ack{ThroughSeq: 2, Position: []byte("p1")},
		Hold{Keys: [][]byte{[]byte("k")}, IDs: []string{"i"}, Returned: []SeqRange{{3, 3}}},
		Release{Keys: [][]byte{[]byte("k")}, IDs: []string{"i"}},
		Window{Events: 5, Bytes: 6},
		Stop{},
	}, <-requests)

	var got []*pluginv1.ReadResponse
	for {
		m := new(pluginv1.ReadResponse)
		if s.RecvMsg(m) != nil {
			break
		}
		got = append(got, m)
	}
	event := func(id, key string) *pluginv1.Event { return &pluginv1.Event{Id: id, Key: []byte(key)} }
	require.Empty(t, cmp.Diff([]*pluginv1.ReadResponse{
		{Message: &pluginv1.ReadResponse_Status{Status: &pluginv1.SourceStatus{State: pluginv1.SourceState_SOURCE_STATE_CONNECTING}}},
		{Message: &pluginv1.ReadResponse_Opened{Opened: &pluginv1.SourceOpened{HoldsKeys: true, HasPositions: true, Order: "per key"}}},
		{Message: &pluginv1.ReadResponse_Batch{Batch: &pluginv1.Batch{
			FirstSeq: 1, Count: 4, Position: []byte("p1"),
			Rejected: []*pluginv1.Rejected{{Offset: 3, Id: "(0,1)", Key: []byte{}, Code: "id_null", Message: "the id is NULL"}},
			Events:   []*pluginv1.Event{event("0", "key"), event("1", "key"), event("2", "key")},
		}}},
		{Message: &pluginv1.ReadResponse_Batch{Batch: &pluginv1.Batch{
			FirstSeq: 5, Count: 1, Events: []*pluginv1.Event{{Id: "4", Payload: []byte{}}},
		}}},
		{Message: &pluginv1.ReadResponse_Held{Held: &pluginv1.Held{Keys: [][]byte{[]byte("k")}, Ids: []string{"i"}}}},
		{Message: &pluginv1.ReadResponse_Progress{Progress: &pluginv1.Progress{Position: []byte("p2")}}},
		{Message: &pluginv1.ReadResponse_Status{Status: &pluginv1.SourceStatus{
			State: pluginv1.SourceState_SOURCE_STATE_STREAMING, Text: "fine", OldestUnpublished: durationpb.New(time.Second),
			LagBytes: proto.Uint64(7), Backlog: proto.Uint64(0),
		}}},
		{Message: &pluginv1.ReadResponse_Stopped{Stopped: &pluginv1.Stopped{}}},
	}, got, protocmp.Transform()))
}

// TestSourceNumbersAreConsecutive: goroutines that send at once get numbers in the order in which batches go out.
func TestSourceNumbersAreConsecutive(t *testing.T) {
	t.Parallel()
	const senders, batches = 4, 200
	h := newHost(t, Source(sourceSpec(), func(_ context.Context, _ SourceOpen[empty], s *SourceStream) error {
		_ = s.Opened(SourceOpened{})
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				var b Batch
				for range batches {
					for range 1 + i {
						_ = b.Add(&Event{ID: "x"})
					}
					if _, err := s.Send(&b, nil); err != nil {
						panic(err)
					}
				}
			})
		}
		wg.Wait()
		for range s.Requests() {
		}
		return nil
	}))
	s := h.read(&pluginv1.SourceOpen{})
	require.NotNil(t, s.recv().GetOpened())
	next := uint64(1)
	for range senders * batches {
		b := s.recv().GetBatch()
		require.Equal(t, next, b.GetFirstSeq())
		next += uint64(b.GetCount())
	}
	s.stop()
	require.NotNil(t, s.recv().GetStopped())
}

func TestSourceBugs(t *testing.T) {
	t.Parallel()
	errs := make(chan error, 4)
	h := newHost(t, Source(Spec[empty]{Name: "test"}, func(_ context.Context, _ SourceOpen[empty], s *SourceStream) error {
		errs <- s.Opened(SourceOpened{HasPositions: true})
		errs <- s.Opened(SourceOpened{HoldsKeys: true})
		if err := s.Opened(SourceOpened{}); err != nil {
			return err
		}
		var b Batch
		_ = b.Add(&Event{ID: "1"})
		_, err := s.Send(&b, []byte("p"))
		errs <- err
		for range 2 {
			_ = b.Add(&Event{ID: "1", Payload: make([]byte, wire.MaxBatch/2)})
		}
		_, err = s.Send(&b, nil)
		errs <- err
		return errors.New("done")
	}))
	s := h.read(&pluginv1.SourceOpen{})
	for range 4 {
		require.ErrorContains(t, <-errs, "BUG")
	}
	require.NotNil(t, s.recv().GetOpened())
	require.Equal(t, "done", s.recv().GetFault().GetMessage())
}

// An ack must have the form that Opened has asked for: one that is passed over would be waited for for ever (I6).
func TestSourceAcks(t *testing.T) {
	t.Parallel()
	ranges := []*pluginv1.SeqRange{{First: 1, Last: 2}}
	for name, c := range map[string]struct {
		positions bool
		ack       *pluginv1.SourceAck
		want      string // "": it arrives
	}{
		"ranges":                       {false, &pluginv1.SourceAck{Ranges: ranges}, ""},
		"position":                     {true, &pluginv1.SourceAck{ThroughSeq: 2, Position: []byte("p")}, ""},
		"position of an idle log":      {true, &pluginv1.SourceAck{Position: []byte("p")}, ""},
		"through_seq without position": {false, &pluginv1.SourceAck{ThroughSeq: 2}, "an ack by position for a source that has none"},
		"ranges with positions":        {true, &pluginv1.SourceAck{Ranges: ranges}, "an ack without a position"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			acks := make(chan Request, 1)
			h := newHost(t, Source(sourceSpec(), func(_ context.Context, _ SourceOpen[empty], s *SourceStream) error {
				if err := s.Opened(SourceOpened{HasPositions: c.positions}); err != nil {
					return err
				}
				for r := range s.Requests() {
					acks <- r
				}
				return nil
			}))
			s := h.read(&pluginv1.SourceOpen{})
			require.NotNil(t, s.recv().GetOpened())
			s.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{Ack: c.ack}})
			if c.want == "" {
				require.IsType(t, Ack{}, <-acks)
				return
			}
			require.ErrorContains(t, s.RecvMsg(new(pluginv1.ReadResponse)), c.want)
		})
	}
}

func TestSourceHostGone(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	h := newHost(t, Source(sourceSpec(), func(ctx context.Context, _ SourceOpen[empty], s *SourceStream) error {
		if err := s.Opened(SourceOpened{}); err != nil {
			return err
		}
		for range s.Requests() {
		}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil
	}))
	s := h.read(&pluginv1.SourceOpen{})
	require.NotNil(t, s.recv().GetOpened())
	require.NoError(t, s.CloseSend(), "a host that only half-closes has gone, too")
	require.ErrorContains(t, <-ended, "without Stop")
	require.Equal(t, codes.Canceled, status.Code(s.RecvMsg(new(pluginv1.ReadResponse))))
}

func TestSourceOneStreamAtATime(t *testing.T) {
	t.Parallel()
	h := newHost(t, Source(sourceSpec(), func(_ context.Context, _ SourceOpen[empty], s *SourceStream) error {
		_ = s.Opened(SourceOpened{})
		for range s.Requests() {
		}
		return nil
	}))
	first := h.read(&pluginv1.SourceOpen{})
	require.NotNil(t, first.recv().GetOpened())
	second := h.read(&pluginv1.SourceOpen{})
	err := second.RecvMsg(new(pluginv1.ReadResponse))
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	first.stop()
	require.NotNil(t, first.recv().GetStopped())
	require.ErrorContains(t, first.RecvMsg(new(pluginv1.ReadResponse)), "EOF")
	require.NotNil(t, h.read(&pluginv1.SourceOpen{}).recv().GetOpened(), "the first has ended")
}

func TestBatchLimits(t *testing.T) {
	t.Parallel()
	var b Batch
	var limit *LimitError
	require.ErrorAs(t, b.Add(&Event{}), &limit)
	require.Equal(t, "id_missing", limit.Code)
	require.Zero(t, b.Count())
	require.True(t, b.Fits(wire.MaxEvent), "an empty batch takes any")
	b.Reject(Rejected{
		ID: strings.Repeat("é", 200), Key: make([]byte, wire.MaxKey+1), Code: "x", Message: strings.Repeat("\xff", 5000),
	})
	require.Equal(t, 1, b.Count())
	require.Positive(t, b.Bytes())
	require.False(t, b.Fits(wire.MaxBatch))
	for b.Fits(1000) { // rejected rows count too
		b.Reject(Rejected{ID: "x", Message: strings.Repeat("m", 1000)})
	}
	require.False(t, b.oversized())
	f := b.response(1, nil)
	require.LessOrEqual(t, f.Size(), wire.MaxBatch)

	var m pluginv1.ReadResponse
	require.NoError(t, proto.Unmarshal(joined(f), &m))
	r := m.GetBatch().GetRejected()[0]
	require.LessOrEqual(t, len(r.GetId()), wire.MaxID)
	require.Nil(t, r.GetKey(), "no event can have that key")
	require.LessOrEqual(t, len(r.GetMessage()), maxRejectedMessage)
}

func joined(f *wire.Frame) []byte {
	var b []byte
	for _, s := range f.Segments {
		b = append(b, s...)
	}
	return b
}

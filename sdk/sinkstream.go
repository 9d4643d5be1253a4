package sdk

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/relevo-io/relevo/internal/failpoint"
	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// SinkStream is one open Write stream. Its methods may be called from several goroutines. What ends is collected and
// sent as few messages.
//
// With KeepsOrder the stream knows which keys have failed. Fail and the arrival of a batch are serialised, so that there
// is no event between the two: one that arrived before the Fail is in an *Events that Requests has brought or will
// bring, and is the sink's to return; one that arrives after it is returned by the stream and never seen. So a sink asks
// Failed for each event as it comes to publish it, however long it has had it, and returns it if so.
type SinkStream struct {
	session
	canKeepOrder bool // what Describe promises

	untold chan struct{} // capacity 1: ends has news

	failing atomic.Int64 // len(failed), so that Failed needs no lock as long as nothing has failed

	mu     sync.Mutex
	keeps  bool // Opened said KeepsOrder
	ends   ends
	failed map[string]struct{} // I11, I4: keys that have failed and were not released; empty without keeps
}

// serveWrite is the handler of SinkService.Write.
func (r *registration) serveWrite(stream grpc.ServerStream) error {
	release, err := r.streams.claim(stream.Context())
	if err != nil {
		return err
	}
	defer release()
	var first pluginv1.WriteRequest
	if err := stream.RecvMsg(&first); err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return status.Error(codes.InvalidArgument, "protocol: the first message is not Open")
	}

	ctx, cancel := context.WithCancelCause(stream.Context())
	s := &SinkStream{
		session:      session{stream: stream, cancel: cancel, requests: newQueue(windowOf(open.GetWindow()))},
		canKeepOrder: r.describe.GetCapabilities().GetKeepsOrder(),
		untold:       make(chan struct{}, 1),
		failed:       map[string]struct{}{},
	}
	var pump, teller sync.WaitGroup
	defer pump.Wait()
	tellCtx, endTelling := context.WithCancel(ctx)
	defer teller.Wait()
	defer endTelling()
	defer cancel(nil) // also when run panics
	pump.Go(func() { s.requests.run(ctx) })
	teller.Go(func() { s.tell(tellCtx) })
	go s.receive(ctx) // ends with Stop, or with RecvMsg when this handler has returned: gRPC gives no way to wait for it

	err = r.write(ctx, open, s)

	// Everything that has ended is told before the last message.
	endTelling()
	teller.Wait()
	s.flush()
	return s.end(ctx, err,
		&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Stopped{Stopped: &pluginv1.Stopped{}}},
		func(f *pluginv1.Fault) any {
			return &pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Fault{Fault: f}}
		})
}

// receive reads the stream until Stop or its end.
func (s *SinkStream) receive(ctx context.Context) {
	defer s.requests.close()
	for {
		var f wire.Frame // a new one each time: the events are views on it
		if err := s.stream.RecvMsg(&f); err != nil {
			s.lost(err)
			return
		}
		if err := s.request(ctx, f.Data); err != nil {
			s.cancel(err)
			return
		}
		if s.stop.Load() {
			return
		}
	}
}

func (s *SinkStream) request(ctx context.Context, data []byte) error {
	if body, ok := wire.BatchOf(data); ok {
		return s.batch(ctx, body)
	}
	var m pluginv1.WriteRequest
	if err := proto.Unmarshal(data, &m); err != nil {
		return hostBug("%v", err)
	}
	var r Request
	switch m := m.GetMessage().(type) {
	case *pluginv1.WriteRequest_Batch: // with unknown fields beside it: legal, never written by us
		b, err := proto.Marshal(m.Batch)
		if err != nil {
			return hostBug("%v", err)
		}
		return s.batch(ctx, b)
	case *pluginv1.WriteRequest_Release:
		s.release(m.Release.GetKeys())
		return nil
	case *pluginv1.WriteRequest_Window:
		r = windowOf(m.Window)
	case *pluginv1.WriteRequest_Stop:
		s.stop.Store(true)
		r = Stop{}
	case *pluginv1.WriteRequest_Open:
		return hostBug("Open was sent twice")
	default:
		return hostBug("a request that this version does not know")
	}
	if err := s.requests.room(ctx, Window{Events: 1}); err != nil {
		return err
	}
	s.requests.add(r, Window{Events: 1})
	return nil
}

// batch brings a batch to the sink, without what must be returned.
func (s *SinkStream) batch(ctx context.Context, body []byte) error {
	b, err := wire.ParseBatch(body)
	if err != nil {
		return hostBug("%v", err)
	}
	if len(b.Rejected) > 0 {
		return hostBug("a rejected row was sent to a sink")
	}
	items, malformed, err := itemsOf(b)
	if err != nil {
		return err
	}
	size := Window{Events: b.Count, Bytes: b.Bytes()}
	if err := s.requests.room(ctx, size); err != nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if b.FirstSeq != s.ends.last+1 { // I6
		return hostBug("batch %d follows number %d", b.FirstSeq, s.ends.last)
	}
	s.ends.arrive(b.Count)
	for _, f := range malformed {
		s.failLocked(f.failure, f.key)
	}
	if len(s.failed) > 0 {
		kept := items[:0]
		for i := range items {
			if s.failedLocked(items[i].Key) {
				s.ends.giveBack(items[i].Seq)
				continue
			}
			kept = append(kept, items[i])
		}
		if len(kept) < len(items) {
			wake(s.untold)
		}
		items = kept
	}
	if len(malformed) > 0 {
		wake(s.untold)
	}
	if len(items) > 0 {
		// Still under mu: a Fail comes before the whole batch, or after it is the sink's.
		s.requests.add(&Events{Items: items}, size)
	}
	return nil
}

func (s *SinkStream) release(keys [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		delete(s.failed, string(k))
	}
	s.failing.Store(int64(len(s.failed)))
}

// Requests brings *Events, Window and Stop, in the host's order. It is closed after Stop, and when the stream has ended.
// It never blocks the stream for long: the window bounds what is in it.
func (s *SinkStream) Requests() <-chan Request { return s.requests.out }

// Opened tells the host that the sink is ready. Once.
func (s *SinkStream) Opened(o SinkOpened) error {
	if o.KeepsOrder && !s.canKeepOrder {
		return errors.New("BUG: Opened promises KeepsOrder, which Spec does not")
	}
	s.mu.Lock()
	s.keeps = o.KeepsOrder // before the host can send a batch
	s.mu.Unlock()
	return s.open(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Opened{Opened: &pluginv1.SinkOpened{
		KeepsOrder: o.KeepsOrder,
	}}})
}

// Ack ends numbers whose events the broker has confirmed. I3: every earlier event of the same key has been acked, or is
// acked by the same call.
//
// Ack, Fail and Return do not block on the host. A number that is not open ends the stream: the plugin has lost count.
func (s *SinkStream) Ack(seqs ...uint64) {
	s.mu.Lock()
	for _, seq := range seqs {
		if !s.ends.ack(seq) {
			s.cancel(pluginBug("Ack: %s", s.ends.why(seq)))
		}
	}
	s.mu.Unlock()
	wake(s.untold)
}

// Fail ends the number of an event that the broker refused on its own. With KeepsOrder, its key has failed from now on,
// until the host releases it: what arrives of it later is returned by the stream itself; what the sink has of it and
// has not given to the broker it must Return.
func (s *SinkStream) Fail(it *Item, err error) {
	e := ErrorOf(err)
	f := &pluginv1.Failure{Seq: it.Seq, Class: e.Class.proto(), Code: text(e.code()), Message: text(e.Error()), Hint: text(e.Hint)}
	s.mu.Lock()
	s.failLocked(f, it.Key)
	s.mu.Unlock()
	wake(s.untold)
}

func (s *SinkStream) failLocked(f *pluginv1.Failure, key []byte) {
	if !s.ends.fail(f) {
		s.cancel(pluginBug("Fail: %s", s.ends.why(f.GetSeq())))
		return
	}
	if s.keeps && len(key) > 0 {
		s.failed[string(key)] = struct{}{}
		s.failing.Store(int64(len(s.failed)))
	}
}

// Return gives numbers back that were not tried because their key has failed.
func (s *SinkStream) Return(seqs ...uint64) {
	s.mu.Lock()
	for _, seq := range seqs {
		if !s.ends.giveBack(seq) {
			s.cancel(pluginBug("Return: %s", s.ends.why(seq)))
		}
	}
	s.mu.Unlock()
	wake(s.untold)
}

// Failed reports whether the event's key has failed and was not released. Never for events without a key. It costs
// nothing while no key has failed.
func (s *SinkStream) Failed(it *Item) bool {
	if s.failing.Load() == 0 || len(it.Key) == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failedLocked(it.Key)
}

func (s *SinkStream) failedLocked(key []byte) bool {
	_, ok := s.failed[string(key)]
	return ok && len(key) > 0
}

// Status reports how the sink is doing: at every change of state, and every few seconds. Also before Opened.
func (s *SinkStream) Status(st SinkStatus) error {
	return s.send(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Status{Status: &pluginv1.SinkStatus{
		State:             pluginv1.SinkState(min(max(st.State, 0), math.MaxInt32)),
		Text:              text(st.Text),
		OldestUnconfirmed: durationOf(st.OldestUnconfirmed),
		Metrics:           metricsOf(st.Metrics),
	}}})
}

// tell sends what has ended whenever it is free: what ends while a message is being sent goes with the next one.
func (s *SinkStream) tell(ctx context.Context) {
	for {
		select {
		case <-s.untold:
			s.flush()
		case <-ctx.Done():
			return
		}
	}
}

// flush sends what has ended. A send that fails means that the stream has ended, and the host repeats what it has not
// heard of.
func (s *SinkStream) flush() {
	s.mu.Lock()
	n := s.ends.take()
	s.mu.Unlock()
	if n.ack != nil {
		failpoint.Hit(failpoint.SinkConfirmed)
		if s.send(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Ack{Ack: n.ack}}) != nil {
			return
		}
	}
	for _, f := range n.failures {
		if s.send(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Failure{Failure: f}}) != nil {
			return
		}
	}
	if len(n.returned) > 0 {
		_ = s.send(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Returned{
			Returned: &pluginv1.Returned{Ranges: n.returned},
		}})
	}
}

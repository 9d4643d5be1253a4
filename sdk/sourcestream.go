package sdk

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// SourceStream is one open Read stream. Its methods may be called from several goroutines; batches go out in the order
// of the calls to Send.
type SourceStream struct {
	session
	can  *pluginv1.Capabilities // what Describe promises
	seen *atomic.Int64          // registration.hostSeen
	next uint64                 // guarded by sendMu: number of the next event
	mode atomic.Int32           // how it is to be acked, from Opened on
}

// How a source is acked.
const (
	ackByRanges   = 1
	ackByPosition = 2
)

// serveRead is the handler of SourceService.Read.
func (r *registration) serveRead(stream grpc.ServerStream) error {
	release, err := r.streams.claim(stream.Context())
	if err != nil {
		return err
	}
	defer release()
	var first pluginv1.ReadRequest
	if err := stream.RecvMsg(&first); err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return status.Error(codes.InvalidArgument, "protocol: the first message is not Open")
	}

	ctx, cancel := context.WithCancelCause(stream.Context())
	s := &SourceStream{
		session: session{stream: stream, cancel: cancel, requests: newQueue(windowOf(open.GetWindow()))},
		can:     r.describe.GetCapabilities(),
		seen:    &r.hostSeen,
		next:    1,
	}
	var pump sync.WaitGroup
	defer pump.Wait()
	defer cancel(nil) // also when run panics
	pump.Go(func() { s.requests.run(ctx) })
	go s.receive(ctx) // ends with Stop, or with RecvMsg when this handler has returned: gRPC gives no way to wait for it

	err = r.read(ctx, open, s)
	return s.end(ctx, err,
		&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Stopped{Stopped: &pluginv1.Stopped{}}},
		func(f *pluginv1.Fault) any {
			return &pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Fault{Fault: f}}
		})
}

// receive reads the stream until Stop or its end.
func (s *SourceStream) receive(ctx context.Context) {
	defer s.requests.close()
	for {
		m := new(pluginv1.ReadRequest)
		if err := s.stream.RecvMsg(m); err != nil {
			s.lost(err)
			return
		}
		r, err := sourceRequest(m)
		if a, ok := r.(Ack); ok && err == nil {
			err = s.checkAck(a)
		}
		if err == nil {
			err = s.requests.room(ctx, Window{Events: 1})
		}
		if err != nil {
			s.cancel(err)
			return
		}
		if _, ok := r.(Stop); ok {
			s.stop.Store(true)
		}
		s.requests.add(r, Window{Events: 1})
		if s.stop.Load() {
			return
		}
	}
}

// checkAck refuses an ack in the form that Opened did not ask for: a source that passed over it would wait for ever (I6).
func (s *SourceStream) checkAck(a Ack) error {
	switch mode := s.mode.Load(); {
	case mode == ackByRanges && (a.ThroughSeq != 0 || a.Position != nil):
		return hostBug("an ack by position for a source that has none")
	case mode == ackByPosition && (a.Position == nil || len(a.Ranges) > 0):
		return hostBug("an ack without a position for a source that has them")
	}
	return nil
}

func sourceRequest(m *pluginv1.ReadRequest) (Request, error) {
	switch m := m.GetMessage().(type) {
	case *pluginv1.ReadRequest_Ack:
		a := Ack{ThroughSeq: m.Ack.GetThroughSeq(), Ranges: rangesOf(m.Ack.GetRanges())}
		if p := m.Ack.GetPosition(); len(p) > 0 {
			a.Position = p
		}
		return a, nil
	case *pluginv1.ReadRequest_Hold:
		return Hold{Keys: m.Hold.GetKeys(), IDs: m.Hold.GetIds(), Returned: rangesOf(m.Hold.GetReturned())}, nil
	case *pluginv1.ReadRequest_Release:
		return Release{Keys: m.Release.GetKeys(), IDs: m.Release.GetIds()}, nil
	case *pluginv1.ReadRequest_Window:
		return windowOf(m.Window), nil
	case *pluginv1.ReadRequest_Stop:
		return Stop{}, nil
	case *pluginv1.ReadRequest_Open:
		return nil, hostBug("Open was sent twice")
	}
	return nil, hostBug("a request that this version does not know")
}

// Requests brings Ack, Hold, Release, Window and Stop, in the host's order. It is closed after Stop, and when the stream
// has ended. It must be read without long pauses.
func (s *SourceStream) Requests() <-chan Request { return s.requests.out }

// Opened tells the host that the source is ready. Once, before the first Send.
func (s *SourceStream) Opened(o SourceOpened) error {
	if (o.HoldsKeys && !s.can.GetHoldsKeys()) || (o.HasPositions && !s.can.GetHasPositions()) {
		return errors.New("BUG: Opened promises what Spec does not")
	}
	s.mode.Store(ackByRanges) // before the host can send one
	if o.HasPositions {
		s.mode.Store(ackByPosition)
	}
	return s.open(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Opened{Opened: &pluginv1.SourceOpened{
		HoldsKeys:    o.HoldsKeys,
		HasPositions: o.HasPositions,
		Order:        text(o.Order),
	}}})
}

// Send sends the batch, empties it, and returns the number of its first event; the others follow. position is where the
// source stands after the whole batch; nil: none. It may block while the host is slow to read.
//
// An error means that the stream has ended (wrapping ErrStreamEnded or gRPC's), or a bug in the source (an empty batch,
// one that had to be cut, Send before Opened). The batch is not to be sent again.
func (s *SourceStream) Send(b *Batch, position []byte) (first uint64, err error) {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	switch {
	case !s.opened:
		return 0, errors.New("BUG: Send before Opened")
	case b.Count() == 0:
		return 0, errors.New("BUG: Send of an empty batch")
	case b.oversized():
		return 0, errors.New("BUG: Send of a batch beyond the size of a message; ask Fits before Add")
	case len(position) > 0 && !s.can.GetHasPositions():
		return 0, errors.New("BUG: Send with a position, which Spec does not promise")
	}
	first = s.next
	s.next += uint64(b.Count())
	return first, s.sendLocked(b.response(first, position))
}

// Held answers a Hold: no batch from now on carries any of these before their Release.
func (s *SourceStream) Held(keys [][]byte, ids []string) error {
	return s.send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Held{Held: &pluginv1.Held{
		Keys: keys, Ids: ids,
	}}})
}

// Progress reports a position behind all that was sent which stands for no event.
func (s *SourceStream) Progress(position []byte) error {
	return s.send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Progress{Progress: &pluginv1.Progress{
		Position: position,
	}}})
}

// HostSeen is when the host made its last health check. One comes every few seconds for as long as the host runs; a host
// that is frozen makes none, while its connection looks well. A source that holds something which another host could have
// instead, such as a lock, is to let go of it when the host has been silent for long. Where no check was ever made, as in
// tests without a process, it is now.
func (s *SourceStream) HostSeen() time.Time {
	if n := s.seen.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Now()
}

// Status reports how the source is doing: at every change of state, and every few seconds. Also before Opened.
func (s *SourceStream) Status(st SourceStatus) error {
	p := &pluginv1.SourceStatus{
		State:             pluginv1.SourceState(min(max(st.State, 0), math.MaxInt32)),
		Text:              text(st.Text),
		OldestUnpublished: durationOf(st.OldestUnpublished),
		Metrics:           metricsOf(st.Metrics),
	}
	if st.LagBytes >= 0 {
		p.LagBytes = new(uint64(st.LagBytes))
	}
	if st.Backlog >= 0 {
		p.Backlog = new(uint64(st.Backlog))
	}
	return s.send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Status{Status: p}})
}

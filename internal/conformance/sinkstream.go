package conformance

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// The window of most streams: more than any check has open.
const (
	windowEvents = 50_000
	windowBytes  = 64 << 20
)

// sinkStream is one open Write stream, held to the rules while it runs.
type sinkStream struct {
	ending
	*sinkLedger // guarded by ending.mu

	suite  *suite
	client pluginv1.SinkService_WriteClient
	gate   chan struct{} // receiving waits for it; nil: it does not
}

// openSink opens a stream and waits for Opened. The stream ends with ctx.
func (r *attempt) openSink(ctx context.Context, p *process) (*sinkStream, error) {
	s, err := r.writeSink(ctx, p, r.config)
	if err != nil {
		return nil, err
	}
	return s, s.until(ctx, "Opened", func() bool { return s.opened != nil })
}

// writeSink opens a stream without waiting for the answer.
func (r *attempt) writeSink(ctx context.Context, p *process, config []byte) (*sinkStream, error) {
	client, err := pluginv1.NewSinkServiceClient(p.conn).Write(undated(ctx))
	if err != nil {
		return nil, fmt.Errorf("call Write: %w", err)
	}
	p.attempts++
	o := &pluginv1.SinkOpen{
		Config: config, Instance: r.instance(p, "conformance"), Window: &pluginv1.Window{Events: windowEvents, Bytes: windowBytes},
		DrainTimeout: durationpb.New(r.drain),
	}
	if r.spec.Destination != "" {
		o.ConstantDestination = proto.String(r.spec.Destination)
	}
	r.routinely("opened a stream")
	s := &sinkStream{sinkLedger: newSinkLedger(), suite: r.suite, client: client}
	r.streams = append(r.streams, s)
	if err := s.write(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Open{Open: o}}); err != nil {
		return nil, err
	}
	p.reads.Go(func() { s.receive(ctx, s.recv) }) // ends with the connection of p
	return s, nil
}

func (s *suite) instance(p *process, name string) *pluginv1.Instance {
	return &pluginv1.Instance{HostId: "conformance-" + s.runID, Pipeline: "conformance", Name: name, Attempt: p.attempts}
}

func (s *sinkStream) recv() error {
	m, err := s.client.Recv()
	if err != nil {
		return err
	}
	var gate chan struct{}
	s.update(func() {
		if s.stopped || s.fault != nil {
			s.breach(stopRule.broken("%s came after the last message", messageName(m.GetMessage())))
		}
		if err := s.received(m); err != nil {
			s.breach(err)
		}
		s.fault, s.stopped, s.accepted = m.GetFault(), m.GetStopped() != nil, s.opened != nil
		gate = s.gate
	})
	if gate != nil {
		<-gate
	}
	return nil
}

func (s *sinkStream) write(m *pluginv1.WriteRequest) error {
	if err := s.client.Send(m); err != nil {
		// Send says only EOF; the reason is on the receiving side.
		reason := s.until(s.client.Context(), "the end of the stream", func() bool { return false })
		return fmt.Errorf("send %s: %w", messageName(m.GetMessage()), reason)
	}
	return nil
}

// send sends events as one batch and returns the number of the first.
func (s *sinkStream) send(events ...*pluginv1.Event) (uint64, error) {
	return s.sendBatch(false, events...)
}

func (s *sinkStream) sendBatch(redelivered bool, events ...*pluginv1.Event) (uint64, error) {
	b := &pluginv1.Batch{Count: uint32(len(events)), Redelivered: redelivered, Events: events}
	if s.suite.spec.Destination != "" {
		b.Destinations = []string{s.suite.spec.Destination}
	}
	s.update(func() {
		b.FirstSeq = s.next()
		for _, e := range events {
			s.sent(e)
			s.suite.target.known[e.GetId()] = true
		}
	})
	return b.GetFirstSeq(), s.write(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Batch{Batch: b}})
}

// release opens keys again.
func (s *sinkStream) release(keys ...string) error {
	r := &pluginv1.Release{}
	s.update(func() {
		for _, k := range keys {
			s.released(k)
			r.Keys = append(r.Keys, []byte(k))
		}
	})
	return s.write(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Release{Release: r}})
}

// allEnded waits until every number has ended.
func (s *sinkStream) allEnded(ctx context.Context) error {
	err := s.until(ctx, "every number to end", func() bool { return s.openCount == 0 })
	if err != nil {
		s.look(func() {
			if s.broken == nil && s.openCount > 0 {
				err = fmt.Errorf("%w (%d of %d numbers are open, the first of them is %d, of key %q)",
					err, s.openCount, len(s.numbers), s.through+1, s.numbers[s.through].event.GetKey())
			}
		})
	}
	return err
}

// allAcked waits until every number has ended, and demands that all are acked.
func (s *sinkStream) allAcked(ctx context.Context) error {
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	return s.ackedFrom(1)
}

// ackedFrom demands that every number from seq on was acked.
func (s *sinkStream) ackedFrom(seq uint64) (err error) {
	s.look(func() {
		for i, n := range s.numbers[seq-1:] {
			if n.standing != acked && err == nil {
				err = fmt.Errorf("number %d, a usual event, %s", seq+uint64(i), n.says())
			}
		}
	})
	return err
}

// says tells how a number ended that should have been acked.
func (n *number) says() string {
	if n.failure != nil {
		return fmt.Sprintf("failed: %s (%s): %s; if the target refuses such events, say in conformance.yaml what `event` is to look like",
			n.failure.GetCode(), className(n.failure.GetClass()), n.failure.GetMessage())
	}
	return "was " + n.standing.String()
}

// acks counts the events that were acked so far.
func (s *sinkStream) acks() (n int) {
	s.look(func() { n = s.ackedCount })
	return n
}

// events of the stream: all, those that were acked, and those that are open.
func (s *sinkStream) events() (all, acks, unsettled []*pluginv1.Event) {
	s.look(func() {
		for _, n := range s.numbers {
			all = append(all, n.event)
			switch n.standing {
			case acked:
				acks = append(acks, n.event)
			case open:
				unsettled = append(unsettled, n.event)
			}
		}
	})
	return all, acks, unsettled
}

// summary tells how far the stream has come.
func (s *sinkStream) summary() (text string) {
	s.look(func() {
		if len(s.numbers) == 0 {
			return
		}
		by := map[standing]int{}
		for _, n := range s.numbers {
			by[n.standing]++
		}
		text = fmt.Sprintf("of %s sent: %d acked, %d failed, %d returned, %d open", count(len(s.numbers), "event"), by[acked], by[failed], by[returned], by[open])
	})
	return text
}

// stop sends Stop and waits for Stopped and the end of the stream.
func (s *sinkStream) stop(ctx context.Context) error {
	s.update(func() { s.stopping = true })
	if err := s.write(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Stop{Stop: &pluginv1.Stop{}}}); err != nil {
		return err
	}
	return s.stoppedWithin(ctx, s.suite.drain)
}

// event makes the next event of the run, with a key or, for "", without one.
func (r *attempt) event(key string) *pluginv1.Event {
	n := r.events.Add(1)
	e := &pluginv1.Event{
		Id: fmt.Sprintf("conformance-%s-%d", r.runID, n), Type: "ConformanceChecked", AggregateType: "conformance",
		ContentType: "application/json", Payload: fmt.Appendf(nil, `{"n":%d}`, n),
	}
	r.spec.Event.apply(e)
	if key != "" {
		e.Key = []byte(key)
	}
	return e
}

// refused makes the event that the sink refuses for good.
func (r *attempt) refused(key string) *pluginv1.Event {
	e := r.event(key)
	r.spec.Refused.apply(e)
	return e
}

// errNoOrder is why checks of order do not apply to a simple sink.
var errNoOrder = doesNotApply("the sink does not keep order, so the host never has two events of one key at it")

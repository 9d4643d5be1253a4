package conformance

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// sourceOptions are what differs between the streams that checks open.
type sourceOptions struct {
	config   []byte           // nil: the suite's
	window   *pluginv1.Window // nil: wide
	position []byte
	heldKeys []string
	heldIDs  []string
}

// sourceStream is one open Read stream, held to the rules while it runs.
type sourceStream struct {
	ending
	*sourceLedger // guarded by ending.mu

	suite  *suite
	client pluginv1.SourceService_ReadClient
	gate   chan struct{} // receiving waits for it; nil: it does not
}

// openSource opens a stream and waits for Opened. The stream ends with ctx.
func (r *attempt) openSource(ctx context.Context, p *process, o sourceOptions) (*sourceStream, error) {
	s, err := r.readSource(ctx, p, o)
	if err != nil {
		return nil, err
	}
	return s, s.until(ctx, "Opened", func() bool { return s.opened != nil })
}

// readSource opens a stream without waiting for the answer.
func (r *attempt) readSource(ctx context.Context, p *process, o sourceOptions) (*sourceStream, error) {
	client, err := pluginv1.NewSourceServiceClient(p.conn).Read(undated(ctx))
	if err != nil {
		return nil, fmt.Errorf("call Read: %w", err)
	}
	p.attempts++
	if o.config == nil {
		o.config = r.config
	}
	if o.window == nil {
		o.window = &pluginv1.Window{Events: windowEvents, Bytes: windowBytes}
	}
	r.routinely("opened a stream")
	s := &sourceStream{sourceLedger: newSourceLedger(o.window), suite: r.suite, client: client}
	r.streams = append(r.streams, s)
	open := &pluginv1.SourceOpen{
		Config: o.config, Instance: r.instance(p, "source"), Window: o.window, DrainTimeout: durationpb.New(r.drain), Position: o.position,
	}
	for _, k := range o.heldKeys { // they count as answered
		open.HeldKeys = append(open.HeldKeys, []byte(k))
		s.keys.ask(k)
		s.keys.answer(k)
	}
	for _, id := range o.heldIDs {
		open.HeldIds = append(open.HeldIds, id)
		s.loose.ask(id)
		s.loose.answer(id)
	}
	if err := s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Open{Open: open}}); err != nil {
		return nil, err
	}
	p.reads.Go(func() { s.receive(ctx, s.recv) }) // ends with the connection of p
	return s, nil
}

func (s *sourceStream) recv() error {
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

func (s *sourceStream) write(m *pluginv1.ReadRequest) error {
	if err := s.client.Send(m); err != nil {
		// Send says only EOF; the reason is on the receiving side.
		reason := s.until(s.client.Context(), "the end of the stream", func() bool { return false })
		return fmt.Errorf("send %s: %w", messageName(m.GetMessage()), reason)
	}
	return nil
}

// ackThrough acks every open number up to seq, as far as positions allow.
func (s *sourceStream) ackThrough(seq uint64) error {
	var a *pluginv1.SourceAck
	s.update(func() { a = s.ack(seq) })
	if a == nil {
		return nil
	}
	return s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{Ack: a}})
}

// ackAll acks everything that was read.
func (s *sourceStream) ackAll() error {
	var last uint64
	s.look(func() { last = uint64(len(s.readings)) })
	return s.ackThrough(last)
}

// reads waits until n events in all have come on this stream.
func (s *sourceStream) reads(ctx context.Context, n int) error {
	err := s.until(ctx, fmt.Sprintf("%d events", n), func() bool { return len(s.readings) >= n })
	if err != nil {
		s.look(func() { err = fmt.Errorf("%w (%d have come)", err, len(s.readings)) })
	}
	return err
}

func (s *sourceStream) widen(w *pluginv1.Window) error {
	s.update(func() { s.window = w })
	return s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Window{Window: w}})
}

// stop sends Stop and waits for Stopped and the end of the stream.
func (s *sourceStream) stop(ctx context.Context) error {
	if err := s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Stop{Stop: &pluginv1.Stop{}}}); err != nil {
		return err
	}
	return s.stoppedWithin(ctx, s.suite.drain)
}

// works demands that the stream takes a message and, where the author can put some, that events come.
func (s *sourceStream) works(ctx context.Context, r *attempt) error {
	if err := s.widen(s.window); err != nil {
		return err
	}
	if !r.canPut() {
		return s.until(ctx, "nothing", func() bool { return s.ended == nil })
	}
	const events, keys = 6, 3
	before := len(s.ids(nil))
	if err := r.feed(ctx, events, keys); err != nil {
		return err
	}
	if err := s.reads(ctx, before+events); err != nil {
		return err
	}
	return s.ackAll()
}

// summary tells how far the stream has come.
func (s *sourceStream) summary() (text string) {
	s.look(func() {
		if len(s.readings) == 0 {
			return
		}
		by := map[standing]int{}
		for _, r := range s.readings {
			by[r.standing]++
		}
		text = fmt.Sprintf("of %s read: %d acked, %d given back, %d open", count(len(s.readings), "event"), by[acked], by[returned], by[open])
	})
	return text
}

// ids of what was read so far, in order, of one key or of all.
func (s *sourceStream) ids(which func(r *reading) bool) (ids []string) {
	s.look(func() {
		for _, r := range s.readings {
			if which == nil || which(r) {
				ids = append(ids, r.id)
			}
		}
	})
	return ids
}

func (s *sourceStream) lastPosition() (position []byte) {
	s.look(func() { position = s.position })
	return position
}

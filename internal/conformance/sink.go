package conformance

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Limits of the protocol, from event.proto.
const (
	maxBatch       = 4 << 20
	maxEvent       = 16 << 20
	maxID          = 255
	maxName        = 255
	maxKey         = 4 << 10
	maxHeaders     = 128
	maxHeaderBytes = 64 << 10
)

// sinkChecks are the checks of sinks, from the usual to the rough.
var sinkChecks = []check{
	{name: "each-number-ends-once", anchor: "numbers", config: true, run: eachNumberEndsOnce, rule: "Every number that a sink was sent ends exactly once."},
	{name: "order-per-key", anchor: "order", config: true, run: orderPerKey, rule: "No event is acked before every earlier one of its key."},
	{
		name: "event-shapes", anchor: "events", config: true, run: eventShapes,
		rule: "Every event that the protocol allows ends: acked, or failed for good with a reason.",
	},
	{name: "large-batch", anchor: "sizes", config: true, run: largeBatch, rule: "A batch of 4 MiB is taken, and an event as large as max_message_bytes allows."},
	{name: "slow-host", anchor: "window", config: true, run: slowHost, rule: "A sink never stops reading: a host that does not read its answers for a while loses none."},
	{
		name: "refused-event", anchor: "failures", config: true, run: refusedEvent,
		rule: "A refused event fails alone; what is behind it in its key is returned until Release; then the key goes on.",
	},
	{name: "refused-without-key", anchor: "failures", config: true, run: refusedWithoutKey, rule: "A refused event without a key returns nothing."},
	{name: "redelivery", anchor: "crash", config: true, run: redelivery, rule: "After kill -9 a new process takes the unsettled events again."},
	{name: "drain", anchor: "stop", config: true, run: drain, rule: "After Stop every number ends, then Stopped comes within the drain time-out and ends the stream."},
}

// works sends an event and waits for its ack.
func (s *sinkStream) works(ctx context.Context, r *attempt) error {
	seq, err := s.send(r.event(r.key("works")))
	if err != nil {
		return err
	}
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	return s.ackedFrom(seq)
}

// key makes a key that no other run has.
func (r *attempt) key(name string) string { return name + "-" + r.runID }

// connectedSink starts the plugin and opens a stream.
func (r *attempt) connectedSink(ctx context.Context) (*process, *sinkStream, error) {
	p, err := r.connected(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := r.openSink(ctx, p)
	return p, s, err
}

// keysFor makes n keys, over which events of a batch are spread: few where the sink keeps order, else one per event.
func (s *sinkStream) keysFor(r *attempt, n, events int) []string {
	if !s.opened.GetKeepsOrder() {
		n = events
	}
	return r.keys("key", n)
}

// keys makes n keys.
func (r *attempt) keys(name string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = r.key(fmt.Sprintf("%s-%d", name, i))
	}
	return keys
}

// batches sends n batches of size events each over the keys, in turn; a sink without order gets the next batch when the
// one before has ended, as from a host.
func (s *sinkStream) batches(ctx context.Context, r *attempt, n, size int, keys []string) error {
	i := 0
	for range n {
		events := make([]*pluginv1.Event, size)
		for j := range events {
			events[j] = r.event(keys[i%len(keys)])
			i++
		}
		if _, err := s.send(events...); err != nil {
			return err
		}
		if !s.opened.GetKeepsOrder() && len(keys) < n*size {
			if err := s.allEnded(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func eachNumberEndsOnce(ctx context.Context, r *attempt) error {
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	// A Release of a key that has not failed and a new window change nothing.
	if err := s.release(r.key("unknown")); err != nil {
		return err
	}
	w := &pluginv1.Window{Events: windowEvents - 1, Bytes: windowBytes}
	if err := s.write(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Window{Window: w}}); err != nil {
		return err
	}
	r.try("sent ten batches each of 1, 7 and 100 events")
	for _, size := range []int{1, 7, 100} {
		if err := s.batches(ctx, r, 10, size, s.keysFor(r, 20, size)); err != nil {
			return err
		}
	}
	if err := s.allAcked(ctx); err != nil {
		return err
	}
	if err := s.stop(ctx); err != nil { // an end that comes twice would come by then
		return err
	}
	r.saw("all %d were acked, each once", s.acks())
	return nil
}

func orderPerKey(ctx context.Context, r *attempt) error {
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	if !s.opened.GetKeepsOrder() {
		return errNoOrder
	}
	r.try("sent 1520 events over 5 keys in batches of 1, 3, 250 and 50")
	for _, size := range []int{1, 3, 250, 50} {
		if err := s.batches(ctx, r, 5, size, s.keysFor(r, 5, 0)); err != nil {
			return err
		}
	}
	if err := s.allAcked(ctx); err != nil {
		return err
	}
	r.saw("all were acked, in order for each key")
	return s.stop(ctx)
}

// largeBatch fills messages to the byte.
func largeBatch(ctx context.Context, r *attempt) error {
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	limit := int(r.described.GetMaxMessageBytes())
	if limit == 0 {
		limit = maxBatch
	}
	// Events of 32 kB, which every broker takes, as many as fit.
	var events []*pluginv1.Event
	size := 256 // the envelope
	for i := 0; ; i++ {
		e := r.event(r.key(fmt.Sprintf("large-%d", i)))
		e.Payload = make([]byte, 32<<10)
		n := proto.Size(e) + 5
		if size+n > min(limit, maxBatch) {
			break
		}
		size += n
		events = append(events, e)
	}
	r.try("sent a batch of %d events and %d bytes", len(events), size)
	if _, err := s.send(events...); err != nil {
		return err
	}
	if err := s.allAcked(ctx); err != nil {
		return err
	}
	r.saw("all of the batch was acked")
	// One event as large as the plugin says that it can receive: the target may refuse it, the plugin may not choke.
	e := r.event(r.key("largest"))
	e.Payload = make([]byte, min(limit, maxEvent)-4<<10)
	r.try("sent one event of %d bytes", proto.Size(e))
	if _, err := s.send(e); err != nil {
		return err
	}
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	s.look(func() {
		switch n := s.numbers[len(s.numbers)-1]; {
		case n.failure != nil:
			r.saw("the large event was refused: %s (%s)", n.failure.GetCode(), className(n.failure.GetClass()))
		default:
			r.saw("the large event was %v", n.standing)
		}
	})
	return s.stop(ctx)
}

// slowHost sends so many small batches that the answers to them do not fit into gRPC's window, and reads none of them
// until all is sent.
func slowHost(ctx context.Context, r *attempt) error {
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	const events = 20_000
	gate := make(chan struct{})
	openGate := func() { close(gate) }
	s.update(func() { s.gate = gate })
	r.try("sent %d batches of one event and read no answer before all were sent", events)
	for i := range events {
		if _, err := s.send(r.event(r.key(fmt.Sprintf("slow-%d", i)))); err != nil {
			openGate()
			return err
		}
	}
	s.update(func() { s.gate = nil })
	openGate()
	if err := s.allAcked(ctx); err != nil {
		return err
	}
	r.saw("all were acked")
	return s.stop(ctx)
}

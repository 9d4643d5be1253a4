package sdk

import (
	"context"
	"time"
)

// Writer is the simplest sink: one event at a time.
type Writer interface {
	// Write publishes one event and returns when the broker has confirmed it. It is called side by side for different
	// keys, never twice at once for one key. An error becomes a Failure with its class.
	Write(ctx context.Context, e *Item) error
	// Close ends the connection. ctx has the deadline of the drain.
	Close(ctx context.Context) error
}

// BatchWriter publishes several events with one call.
type BatchWriter interface {
	// WriteBatch publishes events in order. The first accepted of them are in; if fewer than all, the next one failed
	// with err and the rest was not tried: WriteBatch is called again with it. It is never called twice at once.
	WriteBatch(ctx context.Context, events []*Item) (accepted int, err error)
	// Close ends the connection. ctx has the deadline of the drain.
	Close(ctx context.Context) error
}

// Sink makes a plugin of a Writer. concurrency is how many Write calls may run at once. open connects; an error ends
// the stream with its class.
func Sink[C any](spec Spec[C], concurrency int, open func(ctx context.Context, o SinkOpen[C]) (Writer, error)) Plugin {
	panic("TODO")
}

// BatchSink makes a plugin of a BatchWriter.
func BatchSink[C any](spec Spec[C], open func(ctx context.Context, o SinkOpen[C]) (BatchWriter, error)) Plugin {
	panic("TODO")
}

// StreamSink makes a plugin that publishes asynchronously. run is one attempt: it connects, calls s.Opened, publishes
// what s.Requests brings and ends every Item exactly once (Ack, Fail or Return), until Stop has come and everything has
// ended or the drain time-out is over, then returns nil. While its broker is away it reports SinkDown, keeps what it has
// and goes on by itself. An error ends the stream with its class. ctx ends when the host has gone.
func StreamSink[C any](spec Spec[C], run func(ctx context.Context, o SinkOpen[C], s *SinkStream) error) Plugin {
	panic("TODO")
}

// Item is one event with its number at this sink.
type Item struct {
	Event
	Seq         uint64
	Destination string // "" where the sink has none
	Redelivered bool   // an earlier process of this sink may have published it
	Size        int    // encoded, in bytes
}

// Events is a batch that arrived, in order. With KeepsOrder, what must be returned because its key has failed has been
// returned already and is not in it.
type Events struct{ Items []Item }

// SinkState is how a sink is doing.
type SinkState int

// States of a sink, as in the protocol.
const (
	SinkOK   SinkState = 1
	SinkSlow SinkState = 2
	SinkDown SinkState = 3
)

// SinkStatus tells how a sink is doing.
type SinkStatus struct {
	State SinkState
	Text  string
	// OldestUnconfirmed is the age of the oldest event given to the broker and not confirmed; negative: not known.
	OldestUnconfirmed time.Duration
	Metrics           []Metric
}

// SinkOpened says what holds for this configuration and broker.
type SinkOpened struct {
	// KeepsOrder: the sink may be given several events of one key at once. False: it never has two of one key.
	KeepsOrder bool
}

// SinkStream is one open Write stream. Its methods may be called from several goroutines. What ends is collected and
// sent as few messages.
type SinkStream struct{}

// Requests brings *Events, Window and Stop, in the host's order. It is closed after Stop, and when the stream has ended.
// It never blocks the stream for long: the window bounds what is in it.
func (s *SinkStream) Requests() <-chan Request { panic("TODO") }

// Opened tells the host that the sink is ready. Once.
func (s *SinkStream) Opened(o SinkOpened) error { panic("TODO") }

// Ack ends numbers whose events the broker has confirmed. I3: every earlier event of the same key has been acked, or is
// acked by the same call.
func (s *SinkStream) Ack(seqs ...uint64) { panic("TODO") }

// Fail ends the number of an event that the broker refused on its own. With KeepsOrder, its key has failed from now on,
// until the host releases it: what arrives of it later is returned by the stream itself; what the sink has of it and
// has not given to the broker it must Return.
func (s *SinkStream) Fail(it *Item, err error) { panic("TODO") }

// Return gives numbers back that were not tried because their key has failed.
func (s *SinkStream) Return(seqs ...uint64) { panic("TODO") }

// Failed reports whether the event's key has failed and was not released. Never for events without a key.
func (s *SinkStream) Failed(it *Item) bool { panic("TODO") }

// Status reports how the sink is doing: at every change of state, and every few seconds. Also before Opened.
func (s *SinkStream) Status(st SinkStatus) error { panic("TODO") }

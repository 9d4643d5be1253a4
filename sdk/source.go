package sdk

import (
	"context"
	"time"

	"github.com/relevo-io/relevo/internal/wire"
)

// Source makes a source plugin. run is one attempt: it connects, calls s.Opened, sends batches and obeys the requests
// until Stop or until s.Requests is closed, then returns nil. It keeps within the window: a number leaves it when its
// ack has taken effect upstream, or when Hold returns it. An error ends the stream, with its class (see Error). While
// it connects it reports StateConnecting and tries again by itself. ctx ends when the host has gone.
func Source[C any](spec Spec[C], run func(ctx context.Context, o SourceOpen[C], s *SourceStream) error) Plugin {
	panic("TODO")
}

// SourceOpened says what holds for this configuration and server.
type SourceOpened struct {
	HoldsKeys    bool
	HasPositions bool
	Order        string // "per key", "best effort"
}

// SourceState is what a source is doing.
type SourceState int

// States of a source, as in the protocol.
const (
	StateConnecting SourceState = 1
	StateStandby    SourceState = 2
	StateSnapshot   SourceState = 3
	StateStreaming  SourceState = 4
)

// SourceStatus tells how a source is doing.
type SourceStatus struct {
	State SourceState
	Text  string
	// OldestUnpublished is the age of the oldest event that is committed and not acked; negative: not known.
	OldestUnpublished time.Duration
	// LagBytes and Backlog are negative when not known.
	LagBytes, Backlog int64
	Metrics           []Metric
}

// SourceStream is one open Read stream. Its methods may be called from several goroutines; batches go out in the order
// of the calls to Send.
type SourceStream struct{}

// Requests brings Ack, Hold, Release, Window and Stop, in the host's order. It is closed after Stop, and when the stream
// has ended. It must be read without long pauses.
func (s *SourceStream) Requests() <-chan Request { panic("TODO") }

// Opened tells the host that the source is ready. Once, before the first Send.
func (s *SourceStream) Opened(o SourceOpened) error { panic("TODO") }

// Send sends the batch, empties it, and returns the number of its first event; the others follow. position is where the
// source stands after the whole batch; nil: none. It may block while the host is slow to read.
func (s *SourceStream) Send(b *Batch, position []byte) (first uint64, err error) { panic("TODO") }

// Held answers a Hold: no batch from now on carries any of these before their Release.
func (s *SourceStream) Held(keys [][]byte, ids []string) error { panic("TODO") }

// Progress reports a position behind all that was sent which stands for no event.
func (s *SourceStream) Progress(position []byte) error { panic("TODO") }

// Status reports how the source is doing: at every change of state, and every few seconds. Also before Opened.
func (s *SourceStream) Status(st SourceStatus) error { panic("TODO") }

// Batch collects events, encoded at once, so that what Add was given may be reused. The zero value is empty and ready.
type Batch struct{ b wire.Builder }

// Add appends an event. A *LimitError means that it was not added: Reject the row.
func (b *Batch) Add(e *Event) error {
	if err := e.Check(); err != nil {
		return err
	}
	b.b.Add(e)
	return nil
}

// Reject appends a row that cannot be made into an event; it takes a number like one.
func (b *Batch) Reject(r Rejected) { panic("TODO") }

// Count is the number of events and rejected rows so far.
func (b *Batch) Count() int { return b.b.Count() }

// Bytes is the encoded size so far.
func (b *Batch) Bytes() int { return b.b.Bytes() }

// Fits reports whether an event of that encoded size (Event.Size) still has room in a message. An empty batch takes any.
func (b *Batch) Fits(size int) bool { return b.b.Fits(size) }

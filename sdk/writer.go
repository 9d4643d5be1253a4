package sdk

import (
	"context"
)

// Writer is the simplest sink: one event at a time.
type Writer interface {
	// Write publishes one event and returns when the broker has confirmed it. It is called side by side for different
	// keys, never twice at once for one key. An error becomes a Failure with its class. Write returns soon when ctx ends:
	// the drain time-out is over, or the host has gone; its error then counts as an unknown outcome.
	Write(ctx context.Context, e *Item) error
	// Close ends the connection. ctx has the deadline of the drain.
	Close(ctx context.Context) error
}

// BatchWriter publishes several events with one call.
type BatchWriter interface {
	// WriteBatch publishes events in order. The first accepted of them are in; if fewer than all, the next one failed
	// with err and the rest was not tried: WriteBatch is called again with it. It is never called twice at once, and a
	// key occurs once in events. It returns soon when ctx ends, as Write does.
	WriteBatch(ctx context.Context, events []*Item) (accepted int, err error)
	// Close ends the connection. ctx has the deadline of the drain.
	Close(ctx context.Context) error
}

// maxWriteBatch is the most events of one WriteBatch.
const maxWriteBatch = 1000

// Sink makes a plugin of a Writer. concurrency is how many Write calls may run at once. open connects; an error ends
// the stream with its class. A panic in Write ends the process: what it had in its hands is delivered again.
func Sink[C any](spec Spec[C], concurrency int, open func(ctx context.Context, o SinkOpen[C]) (Writer, error)) Plugin {
	mustBeSimple(spec.KeepsOrder)
	return StreamSink(spec, func(ctx context.Context, o SinkOpen[C], s *SinkStream) error {
		w, err := open(ctx, o)
		if err != nil {
			return err
		}
		d := newDispatcher(s, max(1, concurrency), 1, func(ctx context.Context, job []*Item) (int, error) {
			if err := w.Write(ctx, job[0]); err != nil {
				return 0, err
			}
			return 1, nil
		})
		return d.run(ctx, o.DrainTimeout, w.Close)
	})
}

// BatchSink makes a plugin of a BatchWriter. WriteBatch gets everything that has arrived, up to 1000 events.
func BatchSink[C any](spec Spec[C], open func(ctx context.Context, o SinkOpen[C]) (BatchWriter, error)) Plugin {
	mustBeSimple(spec.KeepsOrder)
	return StreamSink(spec, func(ctx context.Context, o SinkOpen[C], s *SinkStream) error {
		w, err := open(ctx, o)
		if err != nil {
			return err
		}
		return newDispatcher(s, 1, maxWriteBatch, w.WriteBatch).run(ctx, o.DrainTimeout, w.Close)
	})
}

func mustBeSimple(keepsOrder bool) {
	if keepsOrder {
		panic("BUG: sdk.Spec: KeepsOrder needs a StreamSink: Sink and BatchSink leave order to the host")
	}
}

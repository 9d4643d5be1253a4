package sdk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

func simpleSpec() Spec[empty] { return Spec[empty]{Name: "test"} }

// writerFunc is a Writer of one function; closed, if set, is told of Close.
type writerFunc struct {
	write  func(ctx context.Context, it *Item) error
	closed chan context.Context
}

func (w writerFunc) Write(ctx context.Context, it *Item) error { return w.write(ctx, it) }

func (w writerFunc) Close(ctx context.Context) error {
	if w.closed != nil {
		w.closed <- ctx
	}
	return nil
}

func writerHost(t *testing.T, width int, w writerFunc) *host {
	t.Helper()
	return newHost(t, Sink(simpleSpec(), width, func(context.Context, SinkOpen[empty]) (Writer, error) { return w, nil }))
}

func TestWriterSideBySide(t *testing.T) {
	t.Parallel()
	const width = 4
	var mu sync.Mutex
	running, most := 0, 0
	full := make(chan struct{}) // closed when as many run as may
	h := writerHost(t, width, writerFunc{write: func(ctx context.Context, _ *Item) error {
		mu.Lock()
		if running++; running > most {
			if most = running; most == width {
				close(full)
			}
		}
		mu.Unlock()
		select {
		case <-full:
		case <-ctx.Done():
		}
		mu.Lock()
		running--
		mu.Unlock()
		return nil
	}})
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	var keys []string
	for i := range 50 {
		keys = append(keys, fmt.Sprint(i))
	}
	s.batch(keys...)
	s.stop() // what was delivered is written before Stopped
	l := newLedger(t)
	s.untilStopped(l)
	require.Len(t, l.ends, 50)
	require.Equal(t, width, most)
}

func TestWriterErrors(t *testing.T) {
	t.Parallel()
	h := writerHost(t, 2, writerFunc{write: func(_ context.Context, it *Item) error {
		switch string(it.Key) {
		case "p":
			return fmt.Errorf("publish: %w", Permanent(errors.New("too large")).WithCode("too_large"))
		case "c":
			return Config(errors.New("no exchange"))
		case "t":
			return errors.New("time-out")
		}
		return nil
	}})
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	s.batch("p", "c", "t", "ok", "")
	l := newLedger(t)
	s.until(l, 5)
	require.Equal(t, []string{"failed", "failed", "failed", "acked", "acked"}, l.whats())
	require.Equal(t, "too_large", l.ends[1].fail.GetCode())
	require.Equal(t, "publish: too large", l.ends[1].fail.GetMessage())
	require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_CONFIG, l.ends[2].fail.GetClass())
	require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, l.ends[3].fail.GetClass())

	s.batch("p", "t") // the keys are free again: the host decides when to try them
	s.until(l, 7)
}

func TestWriterOpenFails(t *testing.T) {
	t.Parallel()
	h := newHost(t, Sink(simpleSpec(), 1, func(context.Context, SinkOpen[empty]) (Writer, error) {
		return nil, Config(errors.New("no such host")).WithCode("dial")
	}))
	require.Equal(t, "dial", h.write(&pluginv1.SinkOpen{}).recv().GetFault().GetCode())
}

// TestWriterHostBreaksOrder: a host that sends two events of a key at once is not obeyed silently.
func TestWriterHostBreaksOrder(t *testing.T) {
	t.Parallel()
	h := writerHost(t, 2, writerFunc{write: func(ctx context.Context, _ *Item) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	s.batch("a", "b", "")
	s.batch("", "a")
	err := s.end()
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "number 5 has the key of an event that has not ended")
}

// TestWriterKeyIsFreeBeforeTheAck: the next event of a key may come as soon as the host has heard of the one before.
func TestWriterKeyIsFreeBeforeTheAck(t *testing.T) {
	t.Parallel()
	h := writerHost(t, 4, writerFunc{write: func(context.Context, *Item) error { return nil }})
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	l := newLedger(t)
	for i := range 2000 {
		s.batch("a", "b")
		s.until(l, 2*(i+1))
	}
}

func TestWriterDrainTimesOut(t *testing.T) {
	t.Parallel()
	const drain = 2 * time.Second
	closed := make(chan context.Context, 1)
	h := writerHost(t, 2, writerFunc{closed: closed, write: func(ctx context.Context, it *Item) error {
		if string(it.Key) == "slow" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}})
	s := h.write(&pluginv1.SinkOpen{DrainTimeout: durationpb.New(drain)})
	s.opened()
	s.batch("slow", "quick")
	stopped := time.Now()
	s.stop()
	l := newLedger(t)
	s.untilStopped(l)
	require.Less(t, time.Since(stopped), drain, "Stopped is in time")
	require.Equal(t, map[uint64]outcome{2: {what: "acked"}}, l.ends, "an interrupted write has no outcome")
	deadline, ok := (<-closed).Deadline()
	require.True(t, ok)
	require.Less(t, deadline.Sub(stopped), drain)
}

// TestWriterIgnoresContext: Stopped does not wait for a write that hangs.
func TestWriterIgnoresContext(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	h := writerHost(t, 1, writerFunc{write: func(context.Context, *Item) error {
		<-let
		return nil
	}})
	s := h.write(&pluginv1.SinkOpen{DrainTimeout: durationpb.New(300 * time.Millisecond)})
	s.opened()
	s.batch("a")
	s.stop()
	s.untilStopped(newLedger(t))
	close(let)
}

func TestWriterPanics(t *testing.T) {
	t.Parallel()
	h := writerHost(t, 2, writerFunc{write: func(context.Context, *Item) error { panic("write panics") }})
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	s.batch("a")
	err := s.end()
	require.Equal(t, codes.Internal, status.Code(err))
	require.ErrorContains(t, err, "panic in the plugin: write panics")
}

// batchFunc is a BatchWriter of one function.
type batchFunc func(ctx context.Context, events []*Item) (int, error)

func (f batchFunc) WriteBatch(ctx context.Context, events []*Item) (int, error) {
	return f(ctx, events)
}
func (f batchFunc) Close(context.Context) error { return nil }

func batchHost(t *testing.T, f batchFunc) *host {
	t.Helper()
	return newHost(t, BatchSink(simpleSpec(), func(context.Context, SinkOpen[empty]) (BatchWriter, error) { return f, nil }))
}

// TestBatchWriterTakesWhatHasArrived: one call at a time, and the next takes all that came meanwhile, up to the limit.
func TestBatchWriterTakesWhatHasArrived(t *testing.T) {
	t.Parallel()
	calls := make(chan []uint64, 100)
	let := make(chan struct{})
	h := batchHost(t, func(_ context.Context, events []*Item) (int, error) {
		var seqs []uint64
		for _, it := range events {
			seqs = append(seqs, it.Seq)
		}
		calls <- seqs
		<-let
		return len(events), nil
	})
	s := h.write(&pluginv1.SinkOpen{Window: &pluginv1.Window{Events: 5000, Bytes: 16 << 20}})
	s.opened()
	s.batch("first")
	require.Equal(t, []uint64{1}, <-calls)
	for i := range 3 {
		var keys []string
		for j := range 500 {
			keys = append(keys, fmt.Sprint(i, j))
		}
		s.batch(keys...)
	}
	s.stop() // it has arrived when Stop has, of which Stopped is the proof
	close(let)
	l := newLedger(t)
	s.untilStopped(l)
	require.Len(t, l.ends, 1501)
	close(calls)
	next := uint64(2)
	for c := range calls {
		require.LessOrEqual(t, len(c), maxWriteBatch)
		for _, seq := range c {
			require.Equal(t, next, seq, "in order")
			next++
		}
	}
}

func TestBatchWriterPrefix(t *testing.T) {
	t.Parallel()
	var calls [][]string
	h := batchHost(t, func(_ context.Context, events []*Item) (int, error) {
		var keys []string
		for i, it := range events {
			keys = append(keys, string(it.Key))
			if string(it.Key) == "bad" || string(it.Key) == "worse" {
				calls = append(calls, keys)
				return i, Permanent(errors.New(string(it.Key)))
			}
		}
		calls = append(calls, keys)
		return len(events), nil
	})
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	s.batch("a", "bad", "b", "worse", "c")
	s.stop()
	l := newLedger(t)
	s.untilStopped(l)
	require.Equal(t, []string{"acked", "failed", "acked", "failed", "acked"}, l.whats())
	require.Equal(t, [][]string{{"a", "bad"}, {"b", "worse"}, {"c"}}, calls)
}

func TestBatchWriterBugs(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]batchFunc{
		"accepted 2 of 1 events":                   func(context.Context, []*Item) (int, error) { return 2, nil },
		"accepted -1 of 1 events":                  func(context.Context, []*Item) (int, error) { return -1, errors.New("x") },
		"accepted 0 of 1 events, without an error": func(context.Context, []*Item) (int, error) { return 0, nil },
	} {
		h := batchHost(t, f)
		s := h.write(&pluginv1.SinkOpen{})
		s.opened()
		s.batch("a")
		err := s.end()
		require.Equal(t, codes.Internal, status.Code(err))
		require.ErrorContains(t, err, name)
	}
}

func TestSimpleSinksDoNotKeepOrder(t *testing.T) {
	t.Parallel()
	spec := emptySpec() // with KeepsOrder
	require.Panics(t, func() { Sink(spec, 1, func(context.Context, SinkOpen[empty]) (Writer, error) { return nil, nil }) })
	require.Panics(t, func() {
		BatchSink(spec, func(context.Context, SinkOpen[empty]) (BatchWriter, error) { return nil, nil })
	})
}

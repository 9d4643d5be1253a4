package sdk

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

type empty struct{}

func emptySpec() Spec[empty] { return Spec[empty]{Name: "test", KeepsOrder: true} }

type sinkRun = func(context.Context, SinkOpen[empty], *SinkStream) error

// sinkWith makes a sink that keeps order and hands its batches to f.
func sinkWith(f func(s *SinkStream, e *Events)) sinkRun {
	return func(ctx context.Context, _ SinkOpen[empty], s *SinkStream) error {
		if err := s.Opened(SinkOpened{KeepsOrder: true}); err != nil {
			return err
		}
		for r := range s.Requests() {
			switch r := r.(type) {
			case *Events:
				f(s, r)
			case Stop, Window:
			default:
				panic(fmt.Sprintf("a sink was given a %T", r))
			}
		}
		return context.Cause(ctx)
	}
}

// ackAll acks what arrives.
func ackAll(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
	if err := s.Opened(SinkOpened{}); err != nil {
		return err
	}
	for r := range s.Requests() {
		if e, ok := r.(*Events); ok {
			for i := range e.Items {
				s.Ack(e.Items[i].Seq)
			}
		}
	}
	return nil
}

func TestSinkAcksThenStops(t *testing.T) {
	t.Parallel()
	h := newHost(t, StreamSink(Spec[empty]{Name: "test"}, ackAll))
	s := h.write(&pluginv1.SinkOpen{})
	require.False(t, s.opened().GetKeepsOrder())
	s.batch("a", "b", "")
	s.batch("c")
	s.stop()
	l := newLedger(t)
	s.untilStopped(l)
	require.Equal(t, []string{"acked", "acked", "acked", "acked"}, l.whats())
	require.Error(t, s.RecvMsg(new(pluginv1.WriteResponse)), "nothing after Stopped")
}

func TestSinkItems(t *testing.T) {
	t.Parallel()
	got := make(chan []Item, 1)
	h := newHost(t, StreamSink(emptySpec(), sinkWith(func(_ *SinkStream, e *Events) { got <- e.Items })))
	s := h.write(&pluginv1.SinkOpen{})
	require.True(t, s.opened().GetKeepsOrder())
	events := []*pluginv1.Event{
		{Id: "1"},
		{Id: "2", Key: []byte{}, Payload: []byte{}, TimeUnixMicro: proto.Int64(42)},
		{Id: "3", Key: []byte("k"), Headers: []*pluginv1.Header{{Name: "a"}, {Name: "b", Value: []byte{}}}},
		{Id: "4", Headers: []*pluginv1.Header{{Name: "c", Value: []byte("v")}}, Payload: []byte("p")},
		{Id: "5", Headers: []*pluginv1.Header{{Name: "d"}, {Name: "e"}, {Name: "f"}}},
		{Id: "6", Headers: []*pluginv1.Header{{Name: "g"}}},
	}
	s.batchOf(&pluginv1.Batch{
		FirstSeq: 1, Count: 6, Redelivered: true,
		Destinations: []string{"x", "y"}, DestinationIndex: []uint32{0, 1, 0, 1, 1, 0}, Events: events,
	})
	items := <-got
	want := []Item{
		{Event: Event{ID: "1"}, Destination: "x"},
		{Event: Event{ID: "2", Key: []byte{}, Payload: []byte{}, TimeMicro: 42, HasTime: true}, Destination: "y"},
		{Event: Event{ID: "3", Key: []byte("k"), Headers: []Header{{Name: "a"}, {Name: "b", Value: []byte{}}}}, Destination: "x"},
		{Event: Event{ID: "4", Headers: []Header{{Name: "c", Value: []byte("v")}}, Payload: []byte("p")}, Destination: "y"},
		{Event: Event{ID: "5", Headers: []Header{{Name: "d"}, {Name: "e"}, {Name: "f"}}}, Destination: "y"},
		{Event: Event{ID: "6", Headers: []Header{{Name: "g"}}}, Destination: "x"},
	}
	for i := range want {
		want[i].Seq, want[i].Redelivered, want[i].Size = uint64(i+1), true, proto.Size(events[i])
	}
	require.Empty(t, cmp.Diff(want, items))
}

// TestSinkHeadersAreBounded: one event with many headers must not make every event allocate as many. Not parallel: it
// measures what the whole process allocates.
func TestSinkHeadersAreBounded(t *testing.T) {
	b := &pluginv1.Batch{FirstSeq: 1, Count: 10_000, Destinations: []string{"d"}}
	for i := range b.GetCount() {
		e := &pluginv1.Event{Id: fmt.Sprint(i)}
		if i == 0 {
			for range wire.MaxHeaders {
				e.Headers = append(e.Headers, &pluginv1.Header{Name: "h"})
			}
		}
		b.Events = append(b.Events, e)
	}
	data, err := proto.Marshal(b)
	require.NoError(t, err)
	parsed, err := wire.ParseBatch(data)
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err = itemsOf(parsed)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
}

// TestSinkFailedKey walks through the life of a failed key: what the sink has of it is the sink's to return, what comes
// later the stream returns, until it is released.
func TestSinkFailedKey(t *testing.T) {
	t.Parallel()
	first := make(chan *SinkStream, 1)
	goOn := make(chan struct{})
	seen := make(chan string, 100)
	h := newHost(t, StreamSink(emptySpec(), func(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
		if err := s.Opened(SinkOpened{KeepsOrder: true}); err != nil {
			return err
		}
		e := (<-s.Requests()).(*Events)
		first <- s
		<-goOn // the second batch has arrived, and is not yet taken
		s.Ack(e.Items[0].Seq)
		s.Fail(&e.Items[1], Permanent(errors.New("too large")).WithCode("too_large").WithHint("make it smaller"))
		for r := range s.Requests() {
			e, ok := r.(*Events)
			if !ok {
				continue
			}
			for i := range e.Items {
				it := &e.Items[i]
				seen <- it.ID
				if s.Failed(it) {
					s.Return(it.Seq)
				} else {
					s.Ack(it.Seq)
				}
			}
		}
		return nil
	}))
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	s.batch("a", "b") // 1 2
	stream := <-first
	s.batch("a", "b", "") // 3 4 5: these are the sink's
	require.Eventually(t, func() bool {
		stream.mu.Lock()
		defer stream.mu.Unlock()
		return stream.ends.last == 5
	}, patience, time.Millisecond)
	close(goOn)
	l := newLedger(t)
	s.until(l, 5)
	require.Equal(t, []string{"acked", "failed", "acked", "returned", "acked"}, l.whats())
	require.Equal(t, "too_large", l.ends[2].fail.GetCode())
	require.Equal(t, "too large", l.ends[2].fail.GetMessage())
	require.Equal(t, "make it smaller", l.ends[2].fail.GetHint())
	require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_PERMANENT, l.ends[2].fail.GetClass())

	s.batch("b", "c", "b", "") // 6 7 8 9: the b are the stream's
	s.until(l, 9)
	require.Equal(t, []string{"returned", "acked", "returned", "acked"}, l.whats()[5:])
	s.release("b", "unknown")
	s.batch("b") // 10
	s.until(l, 10)
	require.Equal(t, "acked", l.ends[10].what)
	s.stop()
	s.untilStopped(l)
	close(seen)
	var ids []string
	for id := range seen {
		ids = append(ids, id)
	}
	require.Equal(t, []string{"id-3", "id-4", "id-5", "id-7", "id-9", "id-10"}, ids)
}

// TestSinkFailureWithoutKey fails alone, and so does one at a sink that does not keep order.
func TestSinkFailureWithoutKey(t *testing.T) {
	t.Parallel()
	for _, keeps := range []bool{true, false} {
		h := newHost(t, StreamSink(emptySpec(), func(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
			_ = s.Opened(SinkOpened{KeepsOrder: keeps})
			for r := range s.Requests() {
				if e, ok := r.(*Events); ok {
					for i := range e.Items {
						s.Fail(&e.Items[i], errors.New("no"))
						if s.Failed(&e.Items[i]) {
							panic("it has no key, or no order")
						}
					}
				}
			}
			return nil
		}))
		s := h.write(&pluginv1.SinkOpen{})
		s.opened()
		key := ""
		if !keeps {
			key = "a"
		}
		s.batch(key)
		s.batch(key)
		l := newLedger(t)
		s.until(l, 2)
		require.Equal(t, []string{"failed", "failed"}, l.whats())
		require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, l.ends[1].fail.GetClass())
		require.Equal(t, "transient", l.ends[1].fail.GetCode())
	}
}

// TestSinkFailRaces has keys fail from other goroutines while batches arrive, and a host that releases each key when all
// its numbers have ended. No number ends twice or never, and a key's events are acked in order or not at all.
func TestSinkFailRaces(t *testing.T) {
	t.Parallel()
	const keys, rounds = 5, 300
	h := newHost(t, StreamSink(emptySpec(), func(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
		_ = s.Opened(SinkOpened{KeepsOrder: true})
		var lanes [keys]chan *Item
		var wg sync.WaitGroup
		for k := range lanes {
			lanes[k] = make(chan *Item, 100)
			wg.Go(func() {
				n := 0
				for it := range lanes[k] {
					switch n++; {
					case s.Failed(it):
						s.Return(it.Seq)
					case n%7 == 0:
						s.Fail(it, errors.New("the seventh"))
					default:
						s.Ack(it.Seq)
					}
				}
			})
		}
		for r := range s.Requests() {
			if e, ok := r.(*Events); ok {
				for i := range e.Items {
					lanes[e.Items[i].Key[0]-'0'] <- &e.Items[i]
				}
			}
		}
		for _, c := range lanes {
			close(c)
		}
		wg.Wait()
		return nil
	}))
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	l := newLedger(t)
	open := map[string]map[uint64]bool{} // by key
	failed := map[string]bool{}
	keyOf := map[uint64]string{}
	known := 0
	settle := func() {
		for seq, o := range l.ends {
			k := keyOf[seq]
			if !open[k][seq] {
				continue
			}
			if o.what == "acked" {
				for earlier := range open[k] {
					if earlier < seq {
						require.NotEqual(t, "failed", l.ends[earlier].what, "%d was acked behind %d, which failed", seq, earlier)
						require.NotEqual(t, "", l.ends[earlier].what, "%d was acked before %d", seq, earlier)
					}
				}
			}
		}
		for seq, o := range l.ends {
			k := keyOf[seq]
			if open[k][seq] && o.what == "failed" {
				require.False(t, failed[k], "key %s failed twice", k)
				failed[k] = true
			}
			delete(open[k], seq)
		}
		for k := range failed {
			if len(open[k]) == 0 {
				s.release(k)
				delete(failed, k)
			}
		}
		known = len(l.ends)
	}
	for i := range rounds {
		var batch []string
		for j := range 7 {
			batch = append(batch, fmt.Sprint((i*3+j*j)%keys))
		}
		first := s.batch(batch...)
		for j, k := range batch {
			seq := first + uint64(j)
			keyOf[seq] = k
			if open[k] == nil {
				open[k] = map[uint64]bool{}
			}
			open[k][seq] = true
		}
		if i%3 == 0 {
			s.until(l, known+1)
			settle()
		}
	}
	s.until(l, 7*rounds)
	settle()
	require.Empty(t, failed)
	s.stop()
	s.untilStopped(l)
	what := map[string]int{}
	for _, o := range l.ends {
		what[o.what]++
	}
	require.Len(t, what, 3, "acked, failed and returned: %v", what)
}

// TestSinkAcksTravelTogether: what ends while the stream is busy goes as one message.
func TestSinkAcksTravelTogether(t *testing.T) {
	t.Parallel()
	const n = 1000
	h := newHost(t, StreamSink(emptySpec(), sinkWith(func(s *SinkStream, e *Events) {
		s.sendMu.Lock() // as if a message were on its way
		defer s.sendMu.Unlock()
		for i := range e.Items {
			s.Ack(e.Items[i].Seq)
		}
	})))
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	s.batch(make([]string, n)...)
	l := newLedger(t)
	messages := 0
	for len(l.ends) < n {
		l.apply(s.recv())
		messages++
	}
	require.LessOrEqual(t, messages, 2, "one that waited, and one with all the rest")
}

func TestSinkBreaksProtocol(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		f    func(s *SinkStream, e *Events)
		want string
	}{
		"ack twice":        {func(s *SinkStream, e *Events) { s.Ack(1); s.Ack(1) }, "Ack: number 1 has ended already"},
		"ack twice later":  {func(s *SinkStream, e *Events) { s.Ack(1); s.flush(); s.Ack(1) }, "Ack: number 1 has ended already"},
		"ack never sent":   {func(s *SinkStream, e *Events) { s.Ack(2) }, "Ack: number 2 was never sent; the last is 1"},
		"ack zero":         {func(s *SinkStream, e *Events) { s.Ack(0) }, "Ack: number 0 was never sent"},
		"fail after ack":   {func(s *SinkStream, e *Events) { s.Ack(1); s.Fail(&e.Items[0], errors.New("x")) }, "Fail: number 1 has ended already"},
		"return after ack": {func(s *SinkStream, e *Events) { s.Ack(1); s.Return(1) }, "Return: number 1 has ended already"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, StreamSink(emptySpec(), sinkWith(tt.f)))
			s := h.write(&pluginv1.SinkOpen{})
			s.opened()
			s.batch("a")
			err := s.end()
			require.Equal(t, codes.Internal, status.Code(err), "%v", err)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestHostBreaksProtocol(t *testing.T) {
	t.Parallel()
	event := func(id string) []*pluginv1.Event { return []*pluginv1.Event{{Id: id}} }
	batch := func(b *pluginv1.Batch) *pluginv1.WriteRequest {
		return &pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Batch{Batch: b}}
	}
	for name, tt := range map[string]struct {
		m    *pluginv1.WriteRequest
		want string
	}{
		"gap":      {batch(&pluginv1.Batch{FirstSeq: 2, Count: 1, Events: event("1")}), "batch 2 follows number 0"},
		"count":    {batch(&pluginv1.Batch{FirstSeq: 1, Count: 2, Events: event("1")}), "count is 2, with 1 events"},
		"zero":     {batch(&pluginv1.Batch{}), "count is 0"},
		"rejected": {batch(&pluginv1.Batch{FirstSeq: 1, Count: 1, Rejected: []*pluginv1.Rejected{{Id: "1"}}}), "rejected row"},
		"destination": {
			batch(&pluginv1.Batch{FirstSeq: 1, Count: 1, Destinations: []string{"a"}, DestinationIndex: []uint32{1}, Events: event("1")}),
			"destination that is not in it",
		},
		"open again": {&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Open{Open: &pluginv1.SinkOpen{}}}, "Open was sent twice"},
		"nothing":    {&pluginv1.WriteRequest{}, "does not know"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, StreamSink(emptySpec(), ackAll))
			s := h.write(&pluginv1.SinkOpen{})
			s.opened()
			s.send(tt.m)
			err := s.end()
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			require.ErrorContains(t, err, tt.want)
		})
	}
	t.Run("no open", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, StreamSink(emptySpec(), ackAll))
		s, err := h.conn.NewStream(h.ctx, &pluginv1.SinkService_ServiceDesc.Streams[0], pluginv1.SinkService_Write_FullMethodName)
		require.NoError(t, err)
		require.NoError(t, s.SendMsg(batch(&pluginv1.Batch{})))
		require.ErrorContains(t, s.RecvMsg(new(pluginv1.WriteResponse)), "the first message is not Open")
	})
}

// TestSinkMalformedEvent: the host does not read events, so that one which is broken arrives; it is refused for good, and
// the stream goes on.
func TestSinkMalformedEvent(t *testing.T) {
	t.Parallel()
	var ids []string
	h := newHost(t, StreamSink(emptySpec(), sinkWith(func(s *SinkStream, e *Events) {
		for i := range e.Items {
			ids = append(ids, e.Items[i].ID)
			s.Ack(e.Items[i].Seq)
		}
	})))
	s := h.write(&pluginv1.SinkOpen{})
	s.opened()
	frame := func(raw ...byte) []byte { return append([]byte{15<<3 | 2, byte(len(raw))}, raw...) }
	ok1 := frame(1<<3|2, 1, 'a')
	notUTF8 := frame(1<<3|2, 1, 0xff, 2<<3|2, 1, 'k') // its key can be read
	ok2 := frame(1<<3|2, 1, 'b', 2<<3|2, 1, 'k')      // of the same key: waits
	b := wire.SinkBatch{FirstSeq: 1, Count: 4, Destinations: []string{"d"}, Events: [][]byte{ok1, notUTF8, ok2, ok1}}
	require.NoError(t, s.SendMsg(b.Request()))
	l := newLedger(t)
	s.until(l, 4)
	require.Equal(t, []string{"acked", "failed", "returned", "acked"}, l.whats())
	require.Equal(t, "event_malformed", l.ends[2].fail.GetCode())
	require.Equal(t, pluginv1.ErrorClass_ERROR_CLASS_PERMANENT, l.ends[2].fail.GetClass())
	s.next = 5
	s.stop()
	s.untilStopped(l)
	require.Equal(t, []string{"a", "a"}, ids)
}

func TestSinkLastMessage(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		config string
		run    sinkRun
		want   *pluginv1.Fault // nil: Stopped
	}{
		"stopped": {run: func(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
			for range s.Requests() {
			}
			return nil
		}},
		"early": {
			run: func(context.Context, SinkOpen[empty], *SinkStream) error { return nil },
			want: &pluginv1.Fault{
				Class: pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, Code: "ended_early",
				Message: "the plugin stopped its work without being told to",
			},
		},
		"plain error": {
			run: func(context.Context, SinkOpen[empty], *SinkStream) error { return errors.New("dial: refused\xff") },
			want: &pluginv1.Fault{
				Class: pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT, Code: "transient", Message: "dial: refused\uFFFD",
			},
		},
		"wrapped": {
			run: func(context.Context, SinkOpen[empty], *SinkStream) error {
				return fmt.Errorf("open: %w", Config(errors.New("no such exchange")).WithCode("exchange_missing").WithHint("declare it"))
			},
			want: &pluginv1.Fault{
				Class: pluginv1.ErrorClass_ERROR_CLASS_CONFIG, Code: "exchange_missing",
				Message: "open: no such exchange", Hint: "declare it",
			},
		},
		"configuration": {
			config: `{"x": 1}`,
			run:    func(context.Context, SinkOpen[empty], *SinkStream) error { panic("not reached") },
			want: &pluginv1.Fault{
				Class: pluginv1.ErrorClass_ERROR_CLASS_CONFIG, Code: "config_invalid", Message: "configuration: /x: unknown key",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, StreamSink(emptySpec(), tt.run))
			s := h.write(&pluginv1.SinkOpen{Config: []byte(tt.config)})
			if tt.want == nil {
				s.stop()
			}
			m := s.recv()
			require.True(t, proto.Equal(tt.want, m.GetFault()), "%v", m)
			require.Equal(t, tt.want == nil, m.GetStopped() != nil)
			require.ErrorContains(t, s.end(), "EOF")
		})
	}
}

// TestSinkStopIsNotStoppedBeforeItIsTaken: run ends by itself at the moment at which Stop arrives.
func TestSinkStopIsNotStoppedBeforeItIsTaken(t *testing.T) {
	t.Parallel()
	h := newHost(t, StreamSink(emptySpec(), func(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
		for !s.stop.Load() { // it has arrived; nobody has taken it
		}
		return nil
	}))
	s := h.write(&pluginv1.SinkOpen{})
	s.stop()
	require.Equal(t, "ended_early", s.recv().GetFault().GetCode())
}

// TestSinkFlushesBeforeTheEnd: acks before a Fault count, and what has not ended at Stop does not hold Stopped. Often,
// since sometimes the stream is quick enough to send them all before it learns that run has returned.
func TestSinkFlushesBeforeTheEnd(t *testing.T) {
	t.Parallel()
	for i := range 100 {
		fault := i%2 == 0
		h := newHost(t, StreamSink(emptySpec(), func(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
			_ = s.Opened(SinkOpened{KeepsOrder: true})
			e := (<-s.Requests()).(*Events)
			for range s.Requests() {
			}
			s.sendMu.Lock() // the stream is busy with the ack when the others end
			defer s.sendMu.Unlock()
			s.Ack(e.Items[0].Seq)
			for taken := false; !taken; {
				s.mu.Lock()
				taken = s.ends.told == 1
				s.mu.Unlock()
			}
			s.Fail(&e.Items[1], errors.New("no"))
			s.Return(e.Items[2].Seq)
			if fault {
				return errors.New("lost")
			}
			return nil
		}))
		s := h.write(&pluginv1.SinkOpen{})
		s.opened()
		s.batch("a", "b", "b", "c")
		s.stop()
		l := newLedger(t)
		for {
			m := s.recv()
			l.apply(m)
			if m.GetFault() != nil || m.GetStopped() != nil {
				require.Equal(t, fault, m.GetFault() != nil)
				break
			}
		}
		require.Equal(t, []string{"acked", "failed", "returned"}, l.whats())
	}
}

func TestSinkHostGone(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	h := newHost(t, StreamSink(emptySpec(), func(ctx context.Context, _ SinkOpen[empty], s *SinkStream) error {
		err := s.Opened(SinkOpened{})
		for range s.Requests() {
		}
		<-ctx.Done()
		s.Ack(1) // of no effect
		ended <- err
		return ctx.Err()
	}))
	ctx, cancel := context.WithCancel(h.ctx)
	s := h.writeCtx(ctx, &pluginv1.SinkOpen{})
	s.opened()
	cancel()
	require.NoError(t, <-ended)
}

func TestSinkOneStreamAtATime(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	h := newHost(t, StreamSink(emptySpec(), func(ctx context.Context, o SinkOpen[empty], s *SinkStream) error {
		err := ackAll(ctx, o, s)
		if o.Instance.Attempt == 1 {
			<-let // it is slow to notice
		}
		return err
	}))
	ctx, cancel := context.WithCancel(h.ctx)
	first := h.writeCtx(ctx, &pluginv1.SinkOpen{Instance: &pluginv1.Instance{Attempt: 1}})
	first.opened()
	second := h.write(&pluginv1.SinkOpen{})
	require.Equal(t, codes.FailedPrecondition, status.Code(second.end()))

	cancel() // a host that cut a stream may open the next at once
	require.Error(t, first.end())
	third := h.write(&pluginv1.SinkOpen{Instance: &pluginv1.Instance{Attempt: 2}})
	close(let)
	third.opened()
}

func TestSinkStatus(t *testing.T) {
	t.Parallel()
	h := newHost(t, StreamSink(emptySpec(), func(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
		if err := s.Status(SinkStatus{State: SinkDown, Text: "no broker \xff", OldestUnconfirmed: -1}); err != nil {
			return err
		}
		if err := s.Opened(SinkOpened{}); err != nil {
			return err
		}
		if s.Opened(SinkOpened{}) == nil {
			return errors.New("opened twice")
		}
		return s.Status(SinkStatus{State: SinkOK, OldestUnconfirmed: time.Second, Metrics: []Metric{{Name: "a_total", Value: 2}}})
	}))
	s := h.write(&pluginv1.SinkOpen{})
	st := s.recv().GetStatus()
	require.Equal(t, pluginv1.SinkState_SINK_STATE_DOWN, st.GetState())
	require.Equal(t, "no broker \uFFFD", st.GetText())
	require.Nil(t, st.GetOldestUnconfirmed())
	s.opened()
	st = s.recv().GetStatus()
	require.Equal(t, pluginv1.SinkState_SINK_STATE_OK, st.GetState())
	require.Equal(t, time.Second, st.GetOldestUnconfirmed().AsDuration())
	require.InDelta(t, 2, st.GetMetrics()[0].GetValue(), 0)
}

// TestSinkMethodsAfterTheEnd: goroutines that a plugin left behind do no harm.
func TestSinkMethodsAfterTheEnd(t *testing.T) {
	t.Parallel()
	var left *SinkStream
	h := newHost(t, StreamSink(emptySpec(), func(_ context.Context, _ SinkOpen[empty], s *SinkStream) error {
		left = s
		return errors.New("over")
	}))
	s := h.write(&pluginv1.SinkOpen{})
	require.Equal(t, "over", s.recv().GetFault().GetMessage())
	require.ErrorContains(t, s.end(), "EOF")
	require.ErrorIs(t, left.Status(SinkStatus{}), ErrStreamEnded)
	require.ErrorIs(t, left.Opened(SinkOpened{}), ErrStreamEnded)
	left.Ack(1)
	left.Return(1)
	left.Fail(&Item{Seq: 1}, errors.New("x"))
	require.False(t, left.Failed(&Item{Event: Event{Key: []byte("k")}}))
}

func TestSinkMessageSizes(t *testing.T) {
	t.Parallel()
	size := make(chan int, 1)
	run := sinkWith(func(_ *SinkStream, e *Events) { size <- len(e.Items[0].Payload) })
	spec := emptySpec()
	spec.MaxMessageBytes = wire.MaxMessage
	for _, tt := range []struct {
		spec Spec[empty]
		n    int
		ok   bool
	}{
		{emptySpec(), wire.DefaultMaxMessage, true},
		{emptySpec(), 8 << 20, false},
		{spec, 16 << 20, true},
	} {
		h := newHost(t, StreamSink(tt.spec, run))
		s := h.write(&pluginv1.SinkOpen{})
		s.opened()
		s.batchOf(&pluginv1.Batch{FirstSeq: 1, Count: 1, Events: []*pluginv1.Event{{Id: "1", Payload: make([]byte, tt.n)}}})
		if tt.ok {
			require.Equal(t, tt.n, <-size)
		} else {
			require.Equal(t, codes.ResourceExhausted, status.Code(s.end()))
		}
	}
}

func TestSinkWindow(t *testing.T) {
	t.Parallel()
	got := make(chan Window, 2)
	h := newHost(t, StreamSink(emptySpec(), func(_ context.Context, o SinkOpen[empty], s *SinkStream) error {
		got <- o.Window
		for r := range s.Requests() {
			if w, ok := r.(Window); ok {
				got <- w
			}
		}
		return nil
	}))
	s := h.write(&pluginv1.SinkOpen{Window: &pluginv1.Window{Events: 7, Bytes: 70}})
	require.Equal(t, Window{Events: 7, Bytes: 70}, <-got)
	s.send(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Window{Window: &pluginv1.Window{Events: 9, Bytes: 90}}})
	require.Equal(t, Window{Events: 9, Bytes: 90}, <-got)
}

func TestLongTextsAreCut(t *testing.T) {
	t.Parallel()
	require.Len(t, text(strings.Repeat("x", 1<<20)), maxText)
	require.Equal(t, "ab", cut("abé", 3), "not through a character")
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// A table whose rows stay.
const keptDDL = `CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_id bigint, type text NOT NULL DEFAULT 't',
	payload jsonb, created_at timestamptz NOT NULL DEFAULT now(), tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
	seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) UNIQUE)`

const keptTxIndex = `CREATE INDEX outbox_tx ON outbox (tx)`

func keeping(extra ...any) map[string]any {
	c := map[string]any{"columns": map[string]any{"tx": "tx"}, "after_publish": "keep"}
	for i := 0; i+1 < len(extra); i += 2 {
		c[extra[i].(string)] = extra[i+1]
	}
	return c
}

// keptHost is a host of a source with positions: it settles what arrives, stores the position, and acks it.
type keptHost struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[pluginv1.ReadRequest, pluginv1.ReadResponse]
	cancel context.CancelFunc
	ended  chan struct{}

	mu       sync.Mutex
	changed  chan struct{} // closed and made anew at each change
	opened   *pluginv1.SourceOpened
	status   *pluginv1.SourceStatus
	fault    *pluginv1.Fault
	stopped  bool
	err      error
	got      []got
	marks    []keptMark // not stored yet
	progress int
	stored   []byte
	covered  uint64 // by stored
	most     int    // events that were open at once

	// What the host does with what arrives. nil: settles, stores and acks it at once.
	on func(h *keptHost, through uint64)
}

type keptMark struct {
	through  uint64
	position []byte
}

type keptOptions struct {
	config   map[string]any
	position []byte
	window   *pluginv1.Window
	on       func(h *keptHost, through uint64)
}

// keptNoAck leaves everything unsettled.
func keptNoAck(*keptHost, uint64) {}

func startKept(t testing.TB, dsn string, o keptOptions) *keptHost {
	t.Helper()
	if o.config == nil {
		o.config = keeping()
	}
	o.config["dsn"] = dsn
	conf, err := json.Marshal(o.config)
	require.NoError(t, err)
	if o.window == nil {
		o.window = &pluginv1.Window{Events: 10_000, Bytes: 64 << 20}
	}
	conn := serve(t)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := pluginv1.NewSourceServiceClient(conn).Read(ctx)
	require.NoError(t, err)
	h := &keptHost{
		t: t, stream: stream, cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{}),
		stored: o.position, on: o.on,
	}
	require.NoError(t, stream.Send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Open{Open: &pluginv1.SourceOpen{
		Config: conf, Instance: &pluginv1.Instance{HostId: "h", Pipeline: "p", Name: "source", Attempt: 1},
		Window: o.window, DrainTimeout: durationpb.New(10 * time.Second), Position: o.position,
	}}}))
	go h.receive()
	t.Cleanup(h.kill)
	return h
}

// kill ends the stream as a crash does.
func (h *keptHost) kill() {
	h.cancel()
	<-h.ended
}

func (h *keptHost) receive() {
	defer close(h.ended)
	for {
		m, err := h.stream.Recv()
		h.mu.Lock()
		act := false
		switch {
		case err != nil:
			h.err = err
		case m.GetOpened() != nil:
			h.opened = m.GetOpened()
		case m.GetBatch() != nil:
			h.batch(m.GetBatch())
			act = true
		case m.GetProgress() != nil:
			h.progress++
			h.mark(m.GetProgress().GetPosition())
			act = true
		case m.GetStatus() != nil:
			h.status = m.GetStatus()
		case m.GetStopped() != nil:
			h.stopped = true
		case m.GetFault() != nil:
			h.fault = m.GetFault()
		}
		through, on := uint64(len(h.got)), h.on
		h.mu.Unlock()
		h.tell()
		switch {
		case err != nil:
			return
		case act && on != nil:
			on(h, through)
		case act:
			h.settle(through)
		}
	}
}

func (h *keptHost) batch(b *pluginv1.Batch) {
	rejected := map[uint32]*pluginv1.Rejected{}
	for _, x := range b.GetRejected() {
		rejected[x.GetOffset()] = x
	}
	events := b.GetEvents()
	for i := range b.GetCount() {
		g := got{seq: b.GetFirstSeq() + uint64(i)}
		if x := rejected[i]; x != nil {
			g.rejected = x
		} else {
			g.event, events = events[0], events[1:]
		}
		if g.seq != uint64(len(h.got))+1 {
			h.t.Errorf("number %d follows %d", g.seq, len(h.got))
		}
		h.got = append(h.got, g)
	}
	h.most = max(h.most, len(h.got)-int(h.covered))
	if len(b.GetPosition()) > 0 {
		h.mark(b.GetPosition())
	}
}

func (h *keptHost) mark(position []byte) {
	h.marks = append(h.marks, keptMark{uint64(len(h.got)), position})
}

// tell wakes those who await something.
func (h *keptHost) tell() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.changed)
	h.changed = make(chan struct{})
}

// store makes the newest position durable that what is settled through such a number allows; false: there is none.
func (h *keptHost) store(through uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := false
	for len(h.marks) > 0 && h.marks[0].through <= through {
		h.stored, h.covered, found = h.marks[0].position, h.marks[0].through, true
		h.marks = h.marks[1:]
	}
	return found
}

func (h *keptHost) ack() {
	h.mu.Lock()
	a := &pluginv1.SourceAck{ThroughSeq: h.covered, Position: h.stored}
	h.mu.Unlock()
	_ = h.stream.Send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{Ack: a}}) // the receiver learns why
}

func (h *keptHost) settle(through uint64) {
	if h.store(through) {
		h.ack()
	}
}

// stop drains: everything settles and is stored, then comes Stop.
func (h *keptHost) stop() {
	h.t.Helper()
	h.await("the position of what arrived", func() bool { return h.covered == uint64(len(h.got)) })
	require.NoError(h.t, h.stream.Send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Stop{Stop: &pluginv1.Stop{}}}))
	h.await("Stopped", func() bool { return h.stopped })
	<-h.ended
	require.ErrorIs(h.t, h.err, io.EOF)
}

func (h *keptHost) await(what string, cond func() bool) {
	h.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		h.mu.Lock()
		ok, changed, err, fault, n := cond(), h.changed, h.err, h.fault, len(h.got)
		h.mu.Unlock()
		if ok {
			return
		}
		if err != nil && (fault == nil || !errors.Is(err, io.EOF)) {
			require.FailNow(h.t, "stream ended", "waiting for %s, got %d: %v, fault %v", what, n, err, fault)
		}
		select {
		case <-changed:
		case <-late.C:
			require.FailNow(h.t, "too late", "waiting for %s, got %d, status %v", what, n, h.status)
		}
	}
}

func (h *keptHost) awaitGot(n int) []got {
	h.t.Helper()
	h.await("events", func() bool { return len(h.got) >= n })
	return h.all()
}

func (h *keptHost) all() []got {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]got(nil), h.got...)
}

func (h *keptHost) awaitFault() *pluginv1.Fault {
	h.t.Helper()
	h.await("Fault", func() bool { return h.fault != nil })
	return h.fault
}

// now is what is stored at the moment.
func (h *keptHost) now() position {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := decodePosition(h.stored)
	require.NoError(h.t, err)
	return p
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/sdk"
)

// fakeHost is the host's side of one open sink: it keeps to the window, gives one event a key at a time unless the sink
// keeps the order, holds keys that have failed, and sends their events again in order. It fails the test when a number
// ends twice, or an event is acked before an earlier one of its key.
type fakeHost struct {
	t        *testing.T
	requests chan sdk.Request
	opened   chan sdk.SinkOpened
	done     chan error
	cancel   context.CancelFunc

	window int
	// mend looks at a failed event before it is tried again: false drops it, as the policy discard does.
	mend func(it *sdk.Item, err *sdk.Error) bool
	// backoff is how long a failed key waits. Zero: it waits until retry is called.
	backoff time.Duration

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at each change
	keeps     bool
	stopped   bool
	seq       uint64
	keys      []string
	pending   map[string][]sdk.Item // not sent, by key
	out       map[uint64]sdk.Item   // sent, by number
	outKey    map[string]int
	failing   map[string]bool
	releasing map[string]bool
	acked     []string // ids, in the order of their acks
	failures  []failure
	returned  int
	statuses  []sdk.SinkStatus
}

type failure struct {
	id  string
	err *sdk.Error
}

// open starts an attempt and waits until it is ready.
func openSink(t *testing.T, c Config, to string, options ...func(*fakeHost)) *fakeHost {
	t.Helper()
	h := startSink(t, c, to, options...)
	select {
	case o := <-h.opened:
		h.mu.Lock()
		h.keeps = o.KeepsOrder
		h.mu.Unlock()
	case err := <-h.done:
		h.done <- err
		require.FailNow(t, "the sink did not open", "%v", err)
	case <-time.After(patience):
		require.FailNow(t, "the sink did not open", "%v", h.lastStatus())
	}
	return h
}

const patience = 30 * time.Second

// startSink starts an attempt.
func startSink(t *testing.T, c Config, to string, options ...func(*fakeHost)) *fakeHost {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &fakeHost{
		t: t, requests: make(chan sdk.Request, 1<<16), opened: make(chan sdk.SinkOpened, 1), done: make(chan error, 1), cancel: cancel,
		window: 10_000, backoff: 5 * time.Millisecond, changed: make(chan struct{}),
		out: map[uint64]sdk.Item{}, outKey: map[string]int{}, failing: map[string]bool{}, pending: map[string][]sdk.Item{}, releasing: map[string]bool{},
	}
	for _, f := range options {
		f(h)
	}
	require.NoError(t, c.Validate())
	go func() {
		h.done <- attempt(ctx, sdk.SinkOpen[Config]{
			Config: c, Instance: sdk.Instance{Pipeline: "orders", Name: "nats"}, DrainTimeout: 10 * time.Second,
			ConstantDestination: to,
		}, h)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-h.done:
		case <-time.After(patience):
			t.Error("the sink did not end")
		}
	})
	return h
}

func (h *fakeHost) Requests() <-chan sdk.Request { return h.requests }

func (h *fakeHost) Opened(o sdk.SinkOpened) error { h.opened <- o; return nil }

// add queues events and sends what the window lets through.
func (h *fakeHost) add(items ...sdk.Item) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, it := range items {
		k := string(it.Key)
		if _, known := h.pending[k]; !known {
			h.keys = append(h.keys, k)
		}
		h.pending[k] = append(h.pending[k], it)
	}
	h.sendLocked()
}

// sendLocked goes round the keys, one event each, as long as the window has room.
func (h *fakeHost) sendLocked() {
	var now []sdk.Item
	for sent := true; sent && !h.stopped; {
		sent = false
		for _, k := range h.keys {
			q := h.pending[k]
			if len(q) == 0 || len(h.out) >= h.window || k != "" && h.failing[k] || k != "" && !h.keeps && h.outKey[k] > 0 {
				continue
			}
			it := q[0]
			h.pending[k] = q[1:]
			h.seq++
			it.Seq = h.seq
			h.out[it.Seq] = it
			h.outKey[k]++
			now = append(now, it)
			sent = true
		}
	}
	for chunk := range slices.Chunk(now, 500) {
		h.requests <- &sdk.Events{Items: chunk}
	}
}

func (h *fakeHost) endLocked(seq uint64) sdk.Item {
	it, ok := h.out[seq]
	if !ok {
		h.t.Errorf("number %d ended twice, or was never sent", seq)
	}
	delete(h.out, seq)
	h.outKey[string(it.Key)]--
	return it
}

func (h *fakeHost) Ack(seqs ...uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, seq := range seqs {
		it := h.endLocked(seq)
		h.acked = append(h.acked, it.ID)
		if len(it.Key) == 0 {
			continue
		}
		for other, o := range h.out {
			if other < seq && string(o.Key) == string(it.Key) && !slices.Contains(seqs, other) {
				h.t.Errorf("%d was acked before %d of the same key", seq, other)
			}
		}
	}
	h.changedLocked()
}

func (h *fakeHost) Fail(it *sdk.Item, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := sdk.ErrorOf(err)
	got := h.endLocked(it.Seq)
	h.failures = append(h.failures, failure{it.ID, e})
	k := string(it.Key)
	if h.mend == nil || h.mend(&got, e) {
		h.backLocked(got)
	}
	if k != "" {
		h.failing[k] = true
	}
	h.changedLocked()
}

func (h *fakeHost) Return(seqs ...uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, seq := range seqs {
		it := h.endLocked(seq)
		if !h.failing[string(it.Key)] {
			h.t.Errorf("%d was returned, and its key has not failed", seq)
		}
		h.returned++
		h.backLocked(it)
	}
	h.changedLocked()
}

// backLocked puts an event back among the others of its key, by its old number.
func (h *fakeHost) backLocked(it sdk.Item) {
	q := h.pending[string(it.Key)]
	at := slices.IndexFunc(q, func(p sdk.Item) bool { return p.Seq == 0 || p.Seq > it.Seq })
	if at < 0 {
		at = len(q)
	}
	h.pending[string(it.Key)] = slices.Insert(slices.Clone(q), at, it)
}

func (h *fakeHost) Failed(it *sdk.Item) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(it.Key) > 0 && h.failing[string(it.Key)]
}

func (h *fakeHost) Status(s sdk.SinkStatus) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.statuses = append(h.statuses, s)
	h.changedLocked()
	return nil
}

func (h *fakeHost) changedLocked() {
	for k := range h.failing {
		// Release only when every number of the key has ended, and after the back-off.
		if h.outKey[k] == 0 && h.backoff > 0 && !h.releasing[k] {
			h.releasing[k] = true
			time.AfterFunc(h.backoff, func() { h.release(k) })
		}
	}
	h.sendLocked()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *fakeHost) release(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.failing, key)
	delete(h.releasing, key)
	for i := range h.pending[key] {
		h.pending[key][i].Seq = 0
	}
	h.sendLocked()
}

// wait waits until the condition holds; it is called with the host locked.
func (h *fakeHost) wait(what string, condition func() bool) {
	h.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		h.mu.Lock()
		ok, changed := condition(), h.changed
		h.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case err := <-h.done:
			h.done <- err
			require.FailNow(h.t, "the sink ended while waiting", "%s: %v", what, err)
		case <-deadline.C:
			h.mu.Lock()
			defer h.mu.Unlock()
			require.FailNow(h.t, "waited too long", "%s: acked %d, out %d, pending %d, failures %v, status %v",
				what, len(h.acked), len(h.out), len(h.pending), h.failures, h.statusLocked())
		}
	}
}

func (h *fakeHost) waitAcked(n int) {
	h.t.Helper()
	h.wait(fmt.Sprintf("%d acks", n), func() bool { return len(h.acked) >= n })
}

func (h *fakeHost) waitState(s sdk.SinkState) {
	h.t.Helper()
	h.wait("a status", func() bool { return len(h.statuses) > 0 && h.statusLocked().State == s })
}

func (h *fakeHost) statusLocked() sdk.SinkStatus {
	if len(h.statuses) == 0 {
		return sdk.SinkStatus{}
	}
	return h.statuses[len(h.statuses)-1]
}

func (h *fakeHost) lastStatus() sdk.SinkStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.statusLocked()
}

func (h *fakeHost) metric(name string) float64 {
	for _, m := range h.lastStatus().Metrics {
		if m.Name == name {
			return m.Value
		}
	}
	return -1
}

func (h *fakeHost) failed() []failure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.failures)
}

// stop sends Stop and returns what run returned.
func (h *fakeHost) stop() error {
	h.t.Helper()
	h.mu.Lock()
	h.stopped = true
	h.requests <- sdk.Stop{}
	close(h.requests)
	h.mu.Unlock()
	return h.ended()
}

// ended waits for the end of the attempt.
func (h *fakeHost) ended() error {
	h.t.Helper()
	select {
	case err := <-h.done:
		h.done <- err
		return err
	case <-time.After(patience):
		require.FailNow(h.t, "the sink did not end", "%v", h.lastStatus())
		return nil
	}
}

// event makes the n-th event of a key.
func event(key string, n int, to string) sdk.Item {
	return sdk.Item{
		Event: sdk.Event{
			ID: fmt.Sprintf("%s-%d", key, n), Key: []byte(key), Type: "OrderPlaced", AggregateType: "order",
			ContentType: "application/json", Payload: []byte(fmt.Sprintf(`{"key":%q,"n":%d}`, key, n)),
		},
		Destination: to,
	}
}

// events makes n events of each of several keys, interleaved.
func events(keys, n int, to string) []sdk.Item {
	var all []sdk.Item
	for i := range n {
		for k := range keys {
			all = append(all, event(fmt.Sprintf("k%d", k), i, to))
		}
	}
	return all
}

// config is a sink's configuration for a server.
func config(url string, change ...func(*Config)) Config {
	c := DefaultConfig()
	c.Servers = []string{url}
	for _, f := range change {
		f(&c)
	}
	return c
}

func batches(yes bool) func(*jetstream.StreamConfig) {
	return func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = yes }
}

// orders makes the stream ORDERS over orders.>, with atomic batches unless changed.
func orders(t *testing.T, js jetstream.JetStream, change ...func(*jetstream.StreamConfig)) {
	t.Helper()
	c := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowAtomicPublish: true}
	for _, f := range change {
		f(&c)
	}
	natstest.Stream(t, js, c)
}

// requireStream checks what a consumer sees that drops ids it has seen: every wanted event, in order for each key, and
// nothing else. It returns how many messages the stream has.
func requireStream(t *testing.T, js jetstream.JetStream, stream string, want []sdk.Item) int {
	t.Helper()
	msgs := natstest.Messages(t, js, stream)
	wantKeys, gotKeys := map[string][]string{}, map[string][]string{}
	key := map[string]string{}
	for _, it := range want {
		k := string(it.Key)
		key[it.ID] = k
		wantKeys[k] = append(wantKeys[k], it.ID)
	}
	seen := map[string]bool{}
	for _, m := range msgs {
		id := m.Header.Get(headerID)
		k, known := key[id]
		require.True(t, known, "invented: %s", id)
		if !seen[id] {
			gotKeys[k] = append(gotKeys[k], id)
		}
		seen[id] = true
	}
	require.Equal(t, wantKeys, gotKeys)
	return len(msgs)
}

func requireClass(t *testing.T, err error, class sdk.Class, code string) *sdk.Error {
	t.Helper()
	require.Error(t, err)
	e := sdk.ErrorOf(err)
	require.Equal(t, class, e.Class, "%v", err)
	require.Equal(t, code, e.Code, "%v", err)
	return e
}

var errNone = errors.New("none")

type ctx = context.Context

func replicas(n int) func(*jetstream.StreamConfig) {
	return func(c *jetstream.StreamConfig) { c.Replicas = n }
}

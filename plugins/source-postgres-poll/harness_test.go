package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/relevo-io/relevo/internal/pgtest"
	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
	"github.com/relevo-io/relevo/sdk"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m, pgtest.IgnoreServer())
}

// The article's table, plain and with the recommended columns.
const (
	plainDDL = `CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_id bigint, type text NOT NULL,
		payload jsonb, created_at timestamptz NOT NULL DEFAULT now())`
	seqDDL = `CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_id bigint, aggregate_type text, type text NOT NULL,
		payload jsonb, headers jsonb, created_at timestamptz NOT NULL DEFAULT now(), seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) UNIQUE)`
)

// db is a database with its connections.
type db struct {
	t    testing.TB
	dsn  string
	conn *pgx.Conn
}

func newDB(t testing.TB, ddl ...string) *db {
	t.Helper()
	return useDB(t, pgtest.DB(t), ddl...)
}

// privateDB is on a server of its own: for tests that mind whose transactions are open on it.
func privateDB(t testing.TB, settings map[string]string, ddl ...string) (*db, *pgtest.Postgres) {
	t.Helper()
	p := pgtest.Start(t, pgtest.Options{Settings: settings})
	return useDB(t, p.DSN(), ddl...), p
}

func useDB(t testing.TB, dsn string, ddl ...string) *db {
	t.Helper()
	d := &db{t: t, dsn: dsn}
	d.conn = d.session()
	for _, s := range ddl {
		d.exec(s)
	}
	return d
}

// session is a further connection, closed after the test.
func (d *db) session() *pgx.Conn {
	d.t.Helper()
	c, err := pgx.Connect(context.Background(), d.dsn)
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (d *db) exec(sql string, args ...any) {
	d.t.Helper()
	do(d.t, d.conn, sql, args...)
}

func do(t testing.TB, c *pgx.Conn, sql string, args ...any) {
	t.Helper()
	_, err := c.Exec(context.Background(), sql, args...)
	require.NoError(t, err, sql)
}

func (d *db) int(sql string, args ...any) int {
	d.t.Helper()
	var n int
	require.NoError(d.t, d.conn.QueryRow(context.Background(), sql, args...).Scan(&n), sql)
	return n
}

func (d *db) text(sql string, args ...any) string {
	d.t.Helper()
	var s string
	require.NoError(d.t, d.conn.QueryRow(context.Background(), sql, args...).Scan(&s), sql)
	return s
}

// got is a number that arrived.
type got struct {
	seq      uint64
	event    *pluginv1.Event    // nil: rejected
	rejected *pluginv1.Rejected // nil: an event
}

func (g got) id() string {
	if g.event != nil {
		return g.event.GetId()
	}
	return g.rejected.GetId()
}

func (g got) key() string {
	if g.event != nil {
		return string(g.event.GetKey())
	}
	return string(g.rejected.GetKey())
}

// n is the number that tests write into payloads as {"n": …}.
func (g got) n() int {
	var p struct{ N int }
	_ = json.Unmarshal(g.event.GetPayload(), &p)
	return p.N
}

// relay is one plugin, served in process, and its host.
type relay struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[pluginv1.ReadRequest, pluginv1.ReadResponse]
	cancel context.CancelFunc

	sendMu sync.Mutex

	mu      sync.Mutex
	changed chan struct{} // closed and made anew at each change
	opened  *pluginv1.SourceOpened
	status  *pluginv1.SourceStatus
	got     []got
	batches []int // counts
	held    []*pluginv1.Held
	fault   *pluginv1.Fault
	stopped bool
	err     error // of the stream's end
	open    map[uint64]got
	bytes   int
	most    int  // bytes that were open at once
	busy    bool // onBatch has not returned

	onBatch func(r *relay, b []got) // in the receiver's goroutine; nil: acks everything at once
}

type relayOptions struct {
	config   map[string]any
	window   *pluginv1.Window
	heldKeys [][]byte
	heldIDs  []string
	onBatch  func(r *relay, b []got)
	drain    time.Duration
}

// noAck leaves everything open.
func noAck(*relay, []got) {}

func startRelay(t testing.TB, dsn string, o relayOptions) *relay {
	t.Helper()
	if o.config == nil {
		o.config = map[string]any{}
	}
	if _, ok := o.config["dsn"]; !ok {
		o.config["dsn"] = dsn
	}
	conf, err := json.Marshal(o.config)
	require.NoError(t, err)
	if o.window == nil {
		o.window = &pluginv1.Window{Events: 10_000, Bytes: 64 << 20}
	}
	if o.drain == 0 {
		o.drain = 10 * time.Second
	}
	conn := serve(t)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := pluginv1.NewSourceServiceClient(conn).Read(ctx)
	require.NoError(t, err)
	r := &relay{t: t, stream: stream, cancel: cancel, changed: make(chan struct{}), open: map[uint64]got{}, onBatch: o.onBatch}
	done := make(chan struct{})
	r.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Open{Open: &pluginv1.SourceOpen{
		Config: conf, Instance: &pluginv1.Instance{HostId: "h", Pipeline: "p", Name: "source", Attempt: 1},
		Window: o.window, DrainTimeout: durationpb.New(o.drain), HeldKeys: o.heldKeys, HeldIds: o.heldIDs,
	}}})
	go func() {
		defer close(done)
		r.receive()
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// serve runs a plugin in process.
func serve(t testing.TB) *grpc.ClientConn {
	t.Helper()
	p := plugin()
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(sdk.ServerOptions(p)...)
	sdk.Register(srv, p)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis)
	}()
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxMessage)))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		srv.GracefulStop()
		<-served
	})
	return conn
}

func (r *relay) send(m *pluginv1.ReadRequest) {
	r.sendMu.Lock()
	defer r.sendMu.Unlock()
	_ = r.stream.Send(m) // the receiver learns why
}

func (r *relay) receive() {
	for {
		m, err := r.stream.Recv()
		var batch []got
		r.mu.Lock()
		switch {
		case err != nil:
			if !errors.Is(err, io.EOF) {
				r.err = err
			} else {
				r.err = io.EOF
			}
		case m.GetOpened() != nil:
			r.opened = m.GetOpened()
		case m.GetBatch() != nil:
			batch, r.busy = r.batch(m.GetBatch()), true
		case m.GetHeld() != nil:
			r.held = append(r.held, m.GetHeld())
		case m.GetStatus() != nil:
			r.status = m.GetStatus()
		case m.GetStopped() != nil:
			r.stopped = true
		case m.GetFault() != nil:
			r.fault = m.GetFault()
		}
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
		if err != nil {
			return
		}
		if batch == nil {
			continue
		}
		if r.onBatch != nil {
			r.onBatch(r, batch)
		} else {
			r.ack(batch...)
		}
		r.mu.Lock()
		r.busy = false
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
	}
}

func (r *relay) batch(b *pluginv1.Batch) []got {
	rejected := map[uint32]*pluginv1.Rejected{}
	for _, x := range b.GetRejected() {
		rejected[x.GetOffset()] = x
	}
	events := b.GetEvents()
	var batch []got
	for i := range b.GetCount() {
		g := got{seq: b.GetFirstSeq() + uint64(i)}
		if x := rejected[i]; x != nil {
			g.rejected = x
		} else {
			g.event, events = events[0], events[1:]
			r.bytes += g.size()
		}
		if len(r.got) > 0 && g.seq != r.got[len(r.got)-1].seq+1 {
			r.t.Errorf("number %d follows %d", g.seq, r.got[len(r.got)-1].seq)
		}
		batch = append(batch, g)
		r.got = append(r.got, g)
		r.open[g.seq] = g
	}
	r.most = max(r.most, r.bytes)
	r.batches = append(r.batches, int(b.GetCount()))
	return batch
}

func (g got) size() int {
	if g.event == nil {
		return 0
	}
	return len(g.event.GetPayload())
}

func (r *relay) end(gs []got) []*pluginv1.SeqRange {
	r.mu.Lock()
	defer r.mu.Unlock()
	var seqs []uint64
	for _, g := range gs {
		if _, ok := r.open[g.seq]; !ok {
			r.t.Errorf("BUG in the test: %d ended twice", g.seq)
		}
		delete(r.open, g.seq)
		r.bytes -= g.size()
		seqs = append(seqs, g.seq)
	}
	slices.Sort(seqs)
	var ranges []*pluginv1.SeqRange
	for _, s := range seqs {
		if n := len(ranges); n > 0 && ranges[n-1].GetLast()+1 == s {
			ranges[n-1].Last = s
		} else {
			ranges = append(ranges, &pluginv1.SeqRange{First: s, Last: s})
		}
	}
	return ranges
}

func (r *relay) ack(gs ...got) {
	if len(gs) == 0 {
		return
	}
	r.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{Ack: &pluginv1.SourceAck{Ranges: r.end(gs)}}})
}

func (r *relay) hold(keys, ids []string, returned ...got) {
	h := &pluginv1.Hold{Ids: ids, Returned: r.end(returned)}
	for _, k := range keys {
		h.Keys = append(h.Keys, []byte(k))
	}
	r.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Hold{Hold: h}})
}

func (r *relay) release(keys, ids []string) {
	h := &pluginv1.Release{Ids: ids}
	for _, k := range keys {
		h.Keys = append(h.Keys, []byte(k))
	}
	r.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Release{Release: h}})
}

func (r *relay) setWindow(events, bytes uint64) {
	r.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Window{Window: &pluginv1.Window{Events: events, Bytes: bytes}}})
}

func (r *relay) stop() {
	r.send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Stop{Stop: &pluginv1.Stop{}}})
}

// drain stops the relay in good order and waits for it.
func (r *relay) drain() {
	r.t.Helper()
	r.await("the acks of what arrived", func() bool { return !r.busy })
	r.stop()
	r.await("Stopped", func() bool { return r.stopped })
}

// await waits until cond holds; it is asked under mu, at each change.
func (r *relay) await(what string, cond func() bool) {
	r.t.Helper()
	r.awaitFor(patience, what, cond)
}

func (r *relay) awaitFor(d time.Duration, what string, cond func() bool) {
	r.t.Helper()
	late := time.NewTimer(d)
	defer late.Stop()
	for {
		r.mu.Lock()
		ok, changed, err, fault := cond(), r.changed, r.err, r.fault
		n := len(r.got)
		r.mu.Unlock()
		if ok {
			return
		}
		if err != nil {
			require.FailNow(r.t, "stream ended", "waiting for %s, got %d: %v, fault %v", what, n, err, fault)
		}
		select {
		case <-changed:
		case <-late.C:
			require.FailNow(r.t, "too late", "waiting for %s, got %d, status %v", what, n, r.status)
		}
	}
}

// awaitGot waits for n numbers and returns all that arrived.
func (r *relay) awaitGot(n int) []got {
	r.t.Helper()
	r.await(fmt.Sprintf("%d events", n), func() bool { return len(r.got) >= n })
	return r.all()
}

func (r *relay) all() []got {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *relay) awaitOpened() *pluginv1.SourceOpened {
	r.t.Helper()
	r.await("Opened", func() bool { return r.opened != nil })
	return r.opened
}

func (r *relay) awaitFault() *pluginv1.Fault {
	r.t.Helper()
	r.await("Fault", func() bool { return r.fault != nil })
	return r.fault
}

func (r *relay) awaitState(s pluginv1.SourceState) {
	r.t.Helper()
	r.await(s.String(), func() bool { return r.status.GetState() == s })
}

// eventually polls what only the database knows.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, patience, 5*time.Millisecond, what)
}

// inOrder checks that the n of each key ascends.
func inOrder(t testing.TB, gs []got) {
	t.Helper()
	last := map[string]int{}
	for _, g := range gs {
		if g.key() == "" {
			continue
		}
		if g.n() <= last[g.key()] {
			require.Failf(t, "out of order", "key %s: %d came after %d", g.key(), g.n(), last[g.key()])
		}
		last[g.key()] = g.n()
	}
}

func numbers(gs []got) []int {
	var ns []int
	for _, g := range gs {
		ns = append(ns, g.n())
	}
	return ns
}

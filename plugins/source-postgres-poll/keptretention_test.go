package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
	"github.com/relevo-io/relevo/sdk"
)

// The table of partitions, with rows that stay.
var keptPartsDDL = []string{
	strings.Replace(partDDL, "published_at timestamptz", "tx xid8 NOT NULL DEFAULT pg_current_xact_id()", 1),
	`CREATE INDEX ON outbox (seq)`, `CREATE INDEX ON outbox (tx)`,
}

func keepingParts(extra ...any) map[string]any {
	return keeping(append([]any{"retention", byDay, "batch", 2}, extra...)...)
}

// insertAgo inserts an event into the partition of some days ago.
func insertAgo(n, days int) string {
	return fmt.Sprintf(`INSERT INTO outbox (aggregate_id, payload, created_at) VALUES (1, '{"n": %d}', %s)`, n, ago(days))
}

// keptHouse is a housekeeper that goes by what a host has stored.
func (d *db) keptHouse(host *keptHost) *housekeeper {
	h := d.house(keepingParts())
	h.published = func() (txSnapshot, error) { return host.now().old, nil }
	return h
}

// A partition goes when a position that the host has acked covers all of its rows, and not when one was sent that does, or
// when one was acked that covers a part of what is read.
func TestKeepRetention(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptPartsDDL...)
	old := d.day(5)
	today := d.day(0)
	for i := 1; i <= 3; i++ {
		d.exec(insertAgo(i, 5))
	}
	d.exec(insertAgo(4, 0))
	// A round is done at each start.
	stays := func(h *keptHost, why string) {
		t.Helper()
		h.await("a round of housekeeping", func() bool { return strings.Contains(h.status.GetText(), why) })
		require.Contains(t, h.status.GetText(), old)
		require.True(t, d.attached(old))
		require.Zero(t, d.int(`SELECT count(*) FROM pg_constraint WHERE conname LIKE 'relevo%'`), "it is not sealed")
		h.kill()
	}
	h := startKept(t, d.dsn, keptOptions{config: keepingParts(), on: keptNoAck})
	h.awaitGot(4)
	stays(h, "no position covers its rows yet")
	require.Equal(t, 4, d.int(`SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass`), "two were made ahead")

	within := func(h *keptHost, through uint64) { h.settle(min(through, 2)) }
	h = startKept(t, d.dsn, keptOptions{config: keeping("batch", 2), on: within})
	h.await("a position within the pair", func() bool { return h.covered == 2 })
	h.kill()
	require.False(t, h.now().new.none())
	stays(startKept(t, d.dsn, keptOptions{config: keepingParts(), position: h.stored, on: keptNoAck}), "no position covers its rows yet")

	h = startKept(t, d.dsn, keptOptions{config: keeping("batch", 2), position: h.stored})
	require.Equal(t, []int{3, 4}, numbers(h.awaitGot(2)))
	h.stop()
	stored := h.stored
	d.exec(insertAgo(5, 5)) // late, and not published
	stays(startKept(t, d.dsn, keptOptions{config: keepingParts(), position: stored, on: keptNoAck}), "not published yet")

	h = startKept(t, d.dsn, keptOptions{config: keeping("batch", 2), position: stored})
	require.Equal(t, []int{5}, numbers(h.awaitGot(1)))
	h.stop()
	h = startKept(t, d.dsn, keptOptions{config: keepingParts(), position: h.stored})
	h.await("the round is told of", func() bool { return keptMetric(h, "partitions_dropped_total") == 1 })
	require.False(t, d.exists(old))
	require.Equal(t, 1, d.int(`SELECT count(*) FROM `+today), "what is young stays")
	d.exec(insertAgo(6, 0))
	require.Equal(t, []int{6}, numbers(h.awaitGot(1)))
	h.stop()
}

// The round in a relay that runs goes by its last ack, not by the position that it began with.
func TestKeepRetentionByAck(t *testing.T) {
	t.Parallel()
	f := newKeptFlight(sdk.Window{Events: 10, Bytes: 1000})
	published := func(want string) {
		t.Helper()
		old, err := f.published()
		require.NoError(t, err)
		require.Equal(t, want, old.String())
	}
	at := func(old string) []byte { return position{old: mustSnapshot(t, old)}.encode() }
	published("")
	f.resume(at("5:5:"))
	published("5:5:")
	f.take(keptBatch{events: 2})
	f.take(keptBatch{events: 2})
	published("5:5:")
	require.NoError(t, f.ack(2, at("5:9:7")))
	published("5:9:7")
	require.Error(t, f.ack(3, at("20:20:")))
	published("5:9:7")
}

// A transaction has inserted into an old partition and not committed: it puts the sealing off. What it inserted is read when
// it commits, keeps the partition until it is acked, and comes before a later one of its key.
func TestKeepRetentionLateCommit(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptPartsDDL...)
	old := d.day(5)
	d.day(0)
	r := startKept(t, d.dsn, keptOptions{})
	h := d.keptHouse(r)
	late := d.session()
	do(t, late, `BEGIN`)
	do(t, late, insertAgo(1, 5))
	xid := d.int(`SELECT backend_xid::text::bigint FROM pg_stat_activity WHERE pid = $1`, late.PgConn().PID())
	d.exec(`INSERT INTO outbox (aggregate_id, payload) VALUES (2, '{"n": 1}')`)
	r.awaitGot(1)
	r.await("the position behind it", func() bool { return r.covered == 1 })
	require.ErrorContains(t, h.round(context.Background()), "an open transaction uses it")
	require.True(t, d.attached(old))
	acked := r.now().old
	require.Contains(t, acked.xip, uint64(xid), "the test has what it is about: the row is waited for, below what has ended")

	r.mu.Lock()
	r.on = keptNoAck
	r.mu.Unlock()
	do(t, late, `COMMIT`)
	r.awaitGot(2)
	require.True(t, acked.equal(r.now().old))
	require.ErrorContains(t, h.round(context.Background()), "rows in it are not published yet")
	require.True(t, d.attached(old))
	r.mu.Lock()
	r.on = nil
	r.mu.Unlock()
	d.exec(`INSERT INTO outbox (aggregate_id, payload) VALUES (1, '{"n": 2}')`)
	gs := r.awaitGot(3)
	inOrder(t, gs)
	r.await("the position of all", func() bool { return r.covered == 3 })
	require.NoError(t, h.round(context.Background()))
	require.False(t, d.exists(old))
	r.stop()
	require.Len(t, r.all(), 3)
}

// Killed behind the sealing, and then the position is lost: the rows are to be published again, so the partition is opened
// and stays in the table until they are.
func TestKeepRetentionPositionLost(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptPartsDDL...)
	old := d.day(5)
	d.day(0)
	d.exec(insertAgo(1, 5))
	r := startKept(t, d.dsn, keptOptions{})
	r.awaitGot(1)
	r.stop()
	h := d.keptHouse(r)
	d.sealed(h, old)
	published := h.published
	h.published = func() (txSnapshot, error) { return txSnapshot{}, nil }
	require.ErrorContains(t, h.round(context.Background()), "no position covers")
	require.True(t, d.attached(old))
	require.Zero(t, d.int(`SELECT count(*) FROM pg_constraint WHERE conname LIKE 'relevo%'`), "it is open again")
	r = startKept(t, d.dsn, keptOptions{})
	require.Equal(t, []int{1}, numbers(r.awaitGot(1)))
	r.stop()
	h.published = published
	d.sealed(h, old)
	require.NoError(t, h.round(context.Background()))
	require.False(t, d.exists(old))
}

// The dry round goes by the position that the host has.
func TestDoctorKeptRetention(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptPartsDDL...)
	goes, stays := d.day(7), d.day(6)
	d.day(0)
	d.exec(insertAgo(1, 7))
	conf := keepingParts("dsn", d.dsn)
	look := func(conf map[string]any, position []byte) (drop, keep string) {
		t.Helper()
		b, err := json.Marshal(conf)
		require.NoError(t, err)
		resp, err := pluginv1.NewPluginServiceClient(serve(t)).Check(context.Background(), &pluginv1.CheckRequest{
			Config: b, Instance: &pluginv1.Instance{Pipeline: "p", Name: "source"}, Position: position,
		})
		require.NoError(t, err)
		require.Nil(t, find(resp.GetFindings(), "not_looked_at"))
		for _, f := range resp.GetFindings() {
			switch f.GetCode() {
			case "retention_old":
				drop += f.GetMessage()
			case "retention_stays":
				keep += f.GetMessage()
			}
		}
		return drop, keep
	}
	drop, keep := look(conf, nil)
	require.Contains(t, keep, goes)
	require.Contains(t, keep, "no position covers")
	require.Contains(t, drop, stays, "it is empty")
	r := startKept(t, d.dsn, keptOptions{})
	r.awaitGot(1)
	r.stop()
	d.exec(insertAgo(2, 6))
	drop, keep = look(conf, r.stored)
	require.Contains(t, drop, goes)
	require.Contains(t, keep, stays)
	require.Contains(t, keep, "not published yet")
	drop, keep = look(conf, []byte("x"))
	require.NotContains(t, drop, "WOULD", "it does not start with that")
	require.Contains(t, keep, stays)
	drop, keep = look(keepingParts("dsn", d.dsn, "backlog", "skip"), nil)
	require.Contains(t, drop, goes)
	require.Contains(t, drop, stays)
	require.Empty(t, keep)
	require.True(t, d.exists(goes))
}

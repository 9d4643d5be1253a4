package main

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

func slogDiscard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// discard is a host that hears everything and says nothing.
type discard struct{ stream }

func (discard) Status(sdk.SourceStatus) error { return nil }

func keptLayout(t *testing.T, d *db) *outbox.Layout {
	t.Helper()
	table, err := outbox.Inspect(context.Background(), reading(t, d).conn, outbox.Name{Table: "outbox"})
	require.NoError(t, err)
	m, err := outbox.Map("", &outbox.Columns{Tx: new("tx")})
	require.NoError(t, err)
	l, err := outbox.Bind(m, table)
	require.NoError(t, err)
	return l
}

func mustSnapshot(t testing.TB, text string) txSnapshot {
	t.Helper()
	s, err := parseSnapshot(text)
	require.NoError(t, err)
	return s
}

// A position that cannot be used stops the pipeline until somebody says the word; the word counts for this gap only.
func TestKeepGap(t *testing.T) {
	t.Parallel()
	d := newDB(t, keptDDL, keptTxIndex, insertKept(1, 20))
	h := startKept(t, d.dsn, keptOptions{})
	h.awaitGot(20)
	h.stop()
	stored := h.stored

	d.exec(`DROP TABLE outbox`)
	for _, s := range []string{keptDDL, keptTxIndex, insertKept(21, 25)} {
		d.exec(s)
	}
	f := startKept(t, d.dsn, keptOptions{position: stored}).awaitFault()
	require.Equal(t, "position_gap", f.GetCode())
	require.EqualValues(t, sdk.ClassConfig, f.GetClass())
	require.Contains(t, f.GetMessage(), "table with oid")
	word := regexp.MustCompile(`accept_gap: "([0-9a-f]{8})"`).FindStringSubmatch(f.GetHint())
	require.NotNil(t, word, f.GetHint())
	f = startKept(t, d.dsn, keptOptions{position: stored, config: keeping("accept_gap", "00000000")}).awaitFault()
	require.Equal(t, "position_gap", f.GetCode())

	accept := keeping("accept_gap", word[1])
	h = startKept(t, d.dsn, keptOptions{position: stored, config: accept})
	require.Equal(t, sequence(21, 25), numbers(h.awaitGot(5)))
	h.stop()

	// It stays in the configuration. What it once accepted is over.
	h = startKept(t, d.dsn, keptOptions{position: h.stored, config: accept})
	d.exec(insertKept(26, 26))
	require.Equal(t, []int{26}, numbers(h.awaitGot(1)))
	h.stop()

	// A further accident has a word of its own.
	d.exec(`DROP TABLE outbox`)
	d.exec(keptDDL)
	d.exec(keptTxIndex)
	f = startKept(t, d.dsn, keptOptions{position: stored, config: accept}).awaitFault()
	require.Equal(t, "position_gap", f.GetCode())

	// With skip, what is in the table stays there, and "now" is durable before anything else is published.
	d.exec(insertKept(31, 35))
	h = startKept(t, d.dsn, keptOptions{config: keeping("backlog", "skip"), on: keptNoAck})
	h.await("the position it begins with", func() bool { return h.progress == 1 })
	d.exec(insertKept(36, 37))
	h.await("it is streaming", func() bool { return h.status != nil })
	require.Empty(t, h.all(), "nothing is read before it is acked")
	h.settle(0)
	h.mu.Lock()
	h.on = nil
	h.mu.Unlock()
	require.Equal(t, []int{36, 37}, numbers(h.awaitGot(2)))
	h.kill()
}

// Each reason to doubt a position, and each way in which a server goes on without harm.
func TestJudge(t *testing.T) {
	t.Parallel()
	at := time.UnixMicro(1_700_000_000_000_000)
	good := position{system: 7, timeline: 3, database: 5, table: 16384, old: mustSnapshot(t, "100:110:105"), lsn: 5000, at: at}
	server := keptServer{base: good, moment: moment{snap: mustSnapshot(t, "120:120:"), lsn: 6000}, started: at.Add(-time.Hour)}
	for name, k := range map[string]struct {
		server func(v *keptServer)
		says   string // "": it goes on
	}{
		"same":                            {func(*keptServer) {}, ""},
		"the server was restarted":        {func(v *keptServer) { v.started = at.Add(time.Hour) }, ""},
		"another cluster":                 {func(v *keptServer) { v.base.system = 8 }, "of the cluster 7"},
		"another database":                {func(v *keptServer) { v.base.database = 6 }, "database with oid 5"},
		"another table":                   {func(v *keptServer) { v.base.table = 1 }, "table with oid 16384"},
		"restored, transactions back":     {func(v *keptServer) { v.snap = mustSnapshot(t, "105:109:") }, "transactions up to 109"},
		"restored, WAL back":              {func(v *keptServer) { v.lsn = 4000 }, "5000 bytes of WAL"},
		"promoted with all of it":         {func(v *keptServer) { v.base.timeline, v.recovered = 4, 5000 }, ""},
		"promoted behind it":              {func(v *keptServer) { v.base.timeline, v.recovered = 4, 4999 }, "timeline 3"},
		"promoted, then restarted":        {func(v *keptServer) { v.base.timeline, v.recovered, v.started = 4, 6000, at.Add(time.Hour) }, "timeline 3"},
		"promoted, WAL replayed unknown":  {func(v *keptServer) { v.base.timeline = 4 }, "timeline 3"},
		"promoted twice":                  {func(v *keptServer) { v.base.timeline, v.recovered = 5, 6000 }, "timeline 3"},
		"back on the timeline before its": {func(v *keptServer) { v.base.timeline, v.recovered = 2, 6000 }, "timeline 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := server
			k.server(&v)
			p, gap := v.judge(good.encode())
			if k.says == "" {
				require.Nil(t, gap)
				require.Equal(t, good.old, p.old)
				return
			}
			require.NotNil(t, gap)
			require.Contains(t, gap.Error(), k.says)
		})
	}
}

func TestPosition(t *testing.T) {
	t.Parallel()
	full := position{
		system: 1<<63 + 5, timeline: 3, database: 5, table: 16384, old: mustSnapshot(t, "10:20:10,15"), new: mustSnapshot(t, "15:30:15"),
		after: -3, lsn: 1 << 62, at: time.UnixMicro(1_700_000_000_000_001),
	}
	first := full
	first.old = txSnapshot{}
	between := full
	between.new, between.after = txSnapshot{}, 0
	for _, p := range []position{full, first, between} {
		back, err := decodePosition(p.encode())
		require.NoError(t, err)
		require.Equal(t, p, back)
	}
	text := string(full.encode())
	for name, bad := range map[string]string{
		"empty": "", "no JSON": "x", "something behind it": text + "{}", "another version": swap(text, `"v":1`, `"v":2`), "a key more": swap(text, `{`, `{"x":1,`),
		"no snapshot":   `{"v":1,"system":"1","timeline":1,"database":1,"table":1,"lsn":1,"at":1}`,
		"half a pair":   swap(text, `"after":-3,`, ``),
		"backwards":     swap(text, `"15:30:15"`, `"15:16:15"`),
		"opened again":  swap(text, `"15:30:15"`, `"12:30:12"`),
		"not in order":  swap(text, `10,15`, `15,10`),
		"out of bounds": swap(text, `10,15`, `10,20`),
		"leading zero":  swap(text, `10:20`, `010:20`),
		"a sign":        swap(text, `10:20`, `+10:20`),
	} {
		_, err := decodePosition([]byte(bad))
		require.Error(t, err, name)
	}
}

// swap replaces what must be there.
func swap(s, from, to string) string {
	out := regexp.MustCompile(regexp.QuoteMeta(from)).ReplaceAllLiteralString(s, to)
	if out == s {
		panic(fmt.Sprintf("BUG in the test: no %q in %q", from, s))
	}
	return out
}

func FuzzPosition(f *testing.F) {
	p := position{system: 1, timeline: 1, database: 5, table: 16384, old: mustSnapshot(f, "10:20:10,15"), lsn: 5, at: time.UnixMicro(9)}
	f.Add(p.encode())
	p.new = mustSnapshot(f, "30:30:")
	f.Add(p.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePosition(b)
		if err != nil {
			return
		}
		back, err := decodePosition(p.encode())
		require.NoError(t, err)
		require.Equal(t, p, back)
		require.True(t, p.newest().follows(p.old))
	})
}

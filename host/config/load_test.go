package config

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/plugin"
)

var update = flag.Bool("update", false, "write testdata/*.txt anew")

// secretForTest is what no message may show.
const secretForTest = "hunter2"

var testEnv = map[string]string{"BATCH": "500", "TOKEN": "s3cret", "HOST": "a", "SECRET": secretForTest, "NAME": "Bad " + secretForTest, "A": "x"}

// Each testdata/NAME.bad.yaml gives the diagnostics in NAME.bad.txt, as they are printed.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.bad.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			t.Parallel()
			_, faults := loadForTest(t, testEnv, f)
			require.NotEmpty(t, faults)
			var b bytes.Buffer
			require.NoError(t, faults.Print(&b, false))
			require.NotContains(t, b.String(), secretForTest)
			require.NotContains(t, faults.Error(), secretForTest)
			golden := strings.TrimSuffix(f, ".yaml") + ".txt"
			if *update {
				require.NoError(t, os.WriteFile(golden, b.Bytes(), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), b.String())
		})
	}
}

func TestGoodFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.good.yaml")
	require.NoError(t, err)
	for _, f := range files {
		ps, faults := loadForTest(t, testEnv, f)
		require.NoError(t, faults.Err(), f)
		require.NotEmpty(t, ps)
	}
}

func TestLoadEverything(t *testing.T) {
	t.Parallel()
	p := mustLoad(t, testEnv, "testdata/orders.good.yaml")
	require.Equal(t, "orders", p.Name)
	require.Equal(t, "testdata/orders.good.yaml", p.File)
	require.Equal(t, Delivery{MaxInFlightEvents: 500, MaxInFlightBytes: 1 << 20, DrainTimeout: 10 * time.Second, StallAfter: 24 * time.Hour}, p.Delivery)
	require.Equal(t, Errors{Permanent: Discard, RetryInitial: time.Second, RetryMax: time.Minute, GiveUpAfter: 150 * time.Minute}, p.Errors)

	require.Equal(t, plugin.KindSource, p.Source.Kind)
	require.Equal(t, "/plugins/source-postgres-poll", p.Source.Path)
	require.Equal(t, time.Minute, p.Source.StartTimeout)
	require.Equal(t, map[string]string{"LEVEL": "3", "TOKEN": "s3cret"}, p.Source.Env)
	require.JSONEq(t, `{
		"dsn": "postgres://relevo@db:5432/orders", "password": "12345", "table": "public.outbox", "batch": 500, "ratio": 1000.5,
		"exec_mode": true, "poll_interval": "250ms",
		"columns": {"id": "2024-01-01", "headers": {"region": "0x1f", "on": "yes"}},
		"after_publish": {"set": {"published_at": "now()"}}
	}`, string(p.Source.Config))

	require.Len(t, p.Sinks, 3)
	require.Equal(t, []string{"events", "copies", "null"}, []string{p.Sinks[0].Name, p.Sinks[1].Name, p.Sinks[2].Name})
	require.Equal(t, "orders.{type}", p.Sinks[0].To.String())
	require.JSONEq(t, `{"servers": ["nats://a:4222", "nats://b:4222"], "auth": {"user": "relevo", "password": "a$b$c"}}`, string(p.Sinks[0].Config))
	require.JSONEq(t, `{"servers": ["nats://c"], "auth": {"user": "relevo", "password": "a$b$c"}}`, string(p.Sinks[1].Config))
	require.Nil(t, p.Sinks[2].To)
	require.JSONEq(t, `{}`, string(p.Sinks[2].Config))
	require.Equal(t, 30*time.Second, p.Sinks[2].StartTimeout)
}

func TestLoadDefaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "shop-orders.yml")
	write(t, path, "source: {plugin: postgres-poll, config: {dsn: host=db}}\nsinks: [{plugin: \"null\"}]\ndelivery:\nerrors: {transient: }\n")
	p := mustLoad(t, nil, path)
	require.Equal(t, "shop-orders", p.Name)
	require.Equal(t, DefaultDelivery(), p.Delivery)
	require.Equal(t, DefaultErrors(), p.Errors)
}

func write(t testing.TB, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestLoadDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipeline := func(table string) string {
		return "source: {plugin: postgres-poll, config: {dsn: host=db, table: " + table + "}}\nsinks: [{plugin: \"null\"}]\n"
	}
	write(t, filepath.Join(dir, "b.yaml"), pipeline("b"))
	write(t, filepath.Join(dir, "a.yml"), pipeline("a"))
	for _, ignored := range []string{".hidden.yaml", "relevo.yaml", "relevo.yml", "notes.txt", "a.yaml.bak"} {
		write(t, filepath.Join(dir, ignored), "not: a pipeline\n")
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub.yaml"), 0o700))
	write(t, filepath.Join(dir, "sub.yaml", "c.yaml"), "not: a pipeline\n")
	require.NoError(t, os.Symlink(filepath.Join(dir, "notes.txt"), filepath.Join(dir, "link.yaml")))
	write(t, filepath.Join(dir, "notes.txt"), pipeline("c"))

	ps, faults := loadForTest(t, nil, dir, filepath.Join(dir, "a.yml")) // named twice, loaded once
	require.NoError(t, faults.Err())
	require.Len(t, ps, 3)
	require.Equal(t, []string{"a", "b", "link"}, []string{ps[0].Name, ps[1].Name, ps[2].Name})

	_, faults = loadForTest(t, nil, t.TempDir(), filepath.Join(dir, "nowhere.yaml"))
	require.Len(t, faults, 2)
	require.Equal(t, CodeNoPipelines, faults[0].Code)
	require.Equal(t, CodeFileUnreadable, faults[1].Code)
	require.Contains(t, faults[1].Error(), "nowhere.yaml: error: cannot read: no such file or directory [file_unreadable]")
}

func TestFaultsAcrossFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "name: orders\nsource: {plugin: postgres-poll, config: {dsn: \"${DSN}\", pending: \"a  is null\"}}\nsinks: [{plugin: \"null\"}]\n")
	write(t, filepath.Join(dir, "b.yaml"), "name: orders\nsource: {plugin: postgres-poll, config: {dsn: postgres://db/x, pending: a is null}}\nsinks: [{plugin: \"null\"}]\n")
	write(t, filepath.Join(dir, "c.yaml"), "source: {plugin: postgres-poll, config: {dsn: postgres://db/x, pending: b is null}}\nsinks: [{plugin: \"null\"}]\n")
	ps, faults := loadForTest(t, map[string]string{"DSN": "postgres://u:hunter2@db:5432/x?sslmode=disable"}, dir)
	require.Len(t, faults, 2)
	require.Equal(t, CodeDuplicatePipeline, faults[0].Code)
	require.Equal(t, CodeSameTable, faults[1].Code)
	require.Contains(t, faults[1].Message, "a.yaml line 1")
	require.NotContains(t, faults.Error(), secretForTest)
	require.Len(t, ps, 2, "those without a fault")
}

func TestAllowMissingEnv(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, `name: ${N}
source: {plugin: "${P}", config: {whatever: 1}}
sinks:
  - plugin: nats
    to: "${TO}"
    config: {servers: ["${S}"], auth: "${A}", tls: {}, typo: 1}
  - plugin: nats
    name: b
    to: x
    config: {servers: ["${file:/nonexistent}"], stream: "${X:?needed}"}
delivery: {max_in_flight: {events: "${E}", bytes: "${B}"}, drain_timeout: "${D}"}
`)
	_, faults := Load(t.Context(), []string{path}, Options{LookupEnv: lookupIn(nil), Describe: describeForTest, AllowMissingEnv: true})
	require.Len(t, faults, 1, "%v", faults)
	require.Equal(t, CodeUnknownKey, faults[0].Code)
	_, faults = loadForTest(t, nil, path)
	require.Len(t, faults, 11, "%v", faults)
}

func TestEnvironmentFaults(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, "source: {plugin: postgres-poll, config: {dsn: host=db}}\nsinks: [{plugin: kafka, to: x}]\n")
	_, faults := loadForTest(t, nil, path)
	require.True(t, faults.Environment(), "%v", faults)
	write(t, path, "source: {plugin: postgres-poll, config: {dsn: host=db}}\nsinks: [{plugin: kafka, to: x}]\nx: 1")
	_, faults = loadForTest(t, nil, path)
	require.False(t, faults.Environment())
	require.False(t, Diagnostics{}.Environment())
}

package config

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

func editorSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	var all []*pluginv1.DescribeResponse
	for _, p := range plugins {
		if p.GetName() != "curious" && p.GetName() != "nonsense" && p.GetName() != "twisted" {
			all = append(all, p)
		}
	}
	text, err := Schema(all)
	require.NoError(t, err)
	again, err := Schema(all)
	require.NoError(t, err)
	require.Equal(t, string(text), string(again), "the order of plugins does not matter")
	s, err := compileSchema(string(text))
	require.NoError(t, err)
	return s
}

// asEditor reads YAML as an editor does: without substitution, types as YAML says.
func asEditor(t *testing.T, content string) any {
	t.Helper()
	var x any
	require.NoError(t, yaml.Load([]byte(content), &x))
	return x
}

func TestSchemaForEditors(t *testing.T) {
	t.Parallel()
	s := editorSchema(t)
	const head = "source: {plugin: postgres-poll, config: {dsn: a}}\nsinks: "
	for _, good := range []string{
		head + `[{plugin: nats, to: "{type}", config: {servers: [a]}}]`,
		head + `[{plugin: "null"}]`,
		head + `[{plugin: kafka, to: x, config: {anything: 1}}]`, // not installed here
		head + "[{plugin: \"null\"}]\ndelivery: {max_in_flight: {events: \"${N}\", bytes: \"${B}\"}, drain_timeout: 5s}\nerrors: {permanent: \"${P}\"}",
		`{source: {plugin: postgres-poll, config: {dsn: a, batch: "${N}", poll_interval: "${P}", exec_mode: true, after_publish: {set: {}}}}, sinks: [{plugin: "null"}]}`,
	} {
		require.NoError(t, s.Validate(asEditor(t, good)), good)
	}
	for _, bad := range []string{
		head + `[{plugin: nats, config: {servers: [a]}}]`,
		head + `[{plugin: nats, to: x}]`,
		head + `[{plugin: nats, to: x, config: {server: a}}]`,
		head + `[{plugin: "null", to: x}]`,
		head + "[{plugin: \"null\"}]\ndelivery: {drain_timeout: 5 s}",
		`{source: {plugin: postgres-poll, config: {dsn: a, batch: "12"}}, sinks: [{plugin: "null"}]}`,
		`{source: {plugin: postgres-poll}, sinks: [{plugin: "null"}]}`,
	} {
		require.Error(t, s.Validate(asEditor(t, bad)), bad)
	}
}

func TestSchemaRefusesBrokenPlugin(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"curious", "nonsense"} {
		for found, p := range plugins {
			if found.Name == name {
				_, err := Schema([]*pluginv1.DescribeResponse{p})
				require.ErrorContains(t, err, name)
			}
		}
	}
}

func TestMasked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`source: {plugin: postgres-poll, config: {dsn: "postgres://u:hunter2@db/a?x=1", password: "${SECRET}", batch: 5}}
sinks: [{plugin: nats, to: x, config: {servers: ["nats://u:hunter2@a:1"], auth: {user: u, token: "${SECRET}"}}}]
`), 0o600))
	p := mustLoad(t, testEnv, path)
	require.JSONEq(t, `{"dsn": "postgres://u:***@db/a?x=1", "password": "***", "batch": 5}`, string(p.Source.Masked()))
	require.JSONEq(t, `{"servers": ["nats://u:***@a:1"], "auth": {"user": "u", "token": "***"}}`, string(p.Sinks[0].Masked()))
	require.False(t, bytes.Contains(p.Source.Masked(), []byte(secretForTest)))
	require.Equal(t, []string{secretForTest}, slices.Compact(p.Source.Secrets()))
	require.Equal(t, []string{secretForTest}, slices.Compact(p.Sinks[0].Secrets()))
}

func TestMaskText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"postgres://u:p@h/d": "postgres://u:***@h/d", "amqps://:p@h": "amqps://:***@h", "nats://h:4222": "nats://h:4222",
		"  password: abc": "  password: ***", `Token = "abc"`: "Token = ***", "password: ${P}": "password: ${P}", "password: ${P:-abc}": "password: ***",
		"host=db password=abc dbname=x": "host=db password=***", "table: outbox": "table: outbox", `{"nkey":"S"}`: `{"nkey":***`,
	} {
		require.Equal(t, want, MaskText(in), in)
	}
}

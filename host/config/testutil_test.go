package config

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/plugin"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// The plugins of these tests: schemas with each construct that plugins use.
var plugins = map[plugin.Found]*pluginv1.DescribeResponse{
	{Kind: plugin.KindSource, Name: "postgres-poll"}: {
		Name: "postgres-poll", Kind: pluginv1.PluginKind_PLUGIN_KIND_SOURCE, ConfigSchema: `{
			"$schema": "https://json-schema.org/draft/2020-12/schema",
			"$id": "https://example.test/config",
			"$ref": "#/$defs/Config",
			"$defs": {
				"Config": {
					"type": "object", "additionalProperties": false, "required": ["dsn"],
					"properties": {
						"dsn": {"type": "string", "minLength": 1, "description": "Where the database is. A URL or keywords."},
						"password": {"type": "string", "writeOnly": true},
						"table": {"type": "string", "default": "public.outbox"},
						"preset": {"enum": ["debezium"]},
						"columns": {"type": "object", "additionalProperties": false, "properties": {
							"id": {"type": "string"}, "key": {"type": "string"},
							"headers": {"oneOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]}
						}},
						"pending": {"type": "string"},
						"after_publish": {"oneOf": [
							{"enum": ["delete", "keep"]},
							{"type": "object", "additionalProperties": false, "required": ["set"], "properties": {"set": {"type": "object"}}}
						]},
						"batch": {"type": "integer", "minimum": 1, "maximum": 10000, "default": 1000},
						"ratio": {"type": "number", "exclusiveMinimum": 0},
						"exec_mode": {"type": ["boolean", "string"]},
						"poll_interval": {"$ref": "#/$defs/Duration"}
					}
				},
				"Duration": {"type": "string", "title": "a duration", "examples": ["250ms"], "pattern": "^[0-9]+(ms|s|m|h|d)$"}
			}
		}`,
	},
	{Kind: plugin.KindSource, Name: "postgres-cdc"}: {
		Name: "postgres-cdc", Kind: pluginv1.PluginKind_PLUGIN_KIND_SOURCE,
		ConfigSchema: `{"type": "object", "properties": {"dsn": {"type": "string"}, "slot": {"type": "string"}}, "required": ["dsn", "slot"], "additionalProperties": false}`,
	},
	{Kind: plugin.KindSink, Name: "nats"}: {
		Name: "nats", Kind: pluginv1.PluginKind_PLUGIN_KIND_SINK,
		Destination: &pluginv1.Destination{Noun: "subject", MaxBytes: 20, Forbidden: `[\s*>]`},
		ConfigSchema: `{
			"type": "object", "additionalProperties": false, "required": ["servers"],
			"properties": {
				"servers": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string"}},
				"stream": {"type": "string"},
				"auth": {"type": "object", "additionalProperties": false, "properties": {
					"user": {"type": "string"}, "password": {"type": "string", "writeOnly": true}, "token": {"type": "string", "writeOnly": true}
				}},
				"tls": {"type": "object"}
			}
		}`,
	},
	{Kind: plugin.KindSink, Name: "null"}: {
		Name: "null", Kind: pluginv1.PluginKind_PLUGIN_KIND_SINK, ConfigSchema: `{"type": "object", "additionalProperties": false}`,
	},
	{Kind: plugin.KindSink, Name: "twisted"}:  {Name: "twisted", Kind: pluginv1.PluginKind_PLUGIN_KIND_SOURCE},
	{Kind: plugin.KindSink, Name: "curious"}:  {Name: "curious", Kind: pluginv1.PluginKind_PLUGIN_KIND_SINK, ConfigSchema: `{"$ref": "file:///etc/passwd"}`},
	{Kind: plugin.KindSink, Name: "nonsense"}: {Name: "nonsense", Kind: pluginv1.PluginKind_PLUGIN_KIND_SINK, ConfigSchema: `{`},
}

func describeForTest(_ context.Context, kind plugin.Kind, name string) (plugin.Found, *pluginv1.DescribeResponse, error) {
	found := plugin.Found{Kind: kind, Name: name}
	d, ok := plugins[found]
	if !ok {
		return plugin.Found{}, nil, fmt.Errorf("plugin %s-%s not found", kind, name)
	}
	found.Path = fmt.Sprintf("/plugins/%s-%s", kind, name)
	return found, d, nil
}

func lookupIn(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func loadForTest(t testing.TB, env map[string]string, paths ...string) ([]*Pipeline, Diagnostics) {
	t.Helper()
	return Load(t.Context(), paths, Options{LookupEnv: lookupIn(env), Describe: describeForTest})
}

func mustLoad(t testing.TB, env map[string]string, path string) *Pipeline {
	t.Helper()
	ps, faults := loadForTest(t, env, path)
	require.NoError(t, faults.Err())
	require.Len(t, ps, 1)
	return ps[0]
}

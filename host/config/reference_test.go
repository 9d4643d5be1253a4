package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/plugin"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	keys, err := Keys(plugins[plugin.Found{Kind: plugin.KindSource, Name: "postgres-poll"}].GetConfigSchema())
	require.NoError(t, err)
	byPath := map[string]Key{}
	for _, k := range keys {
		byPath[k.Path] = k
	}
	require.Equal(t, "dsn", keys[0].Path, "required ones first")
	require.Equal(t, Key{Path: "dsn", Type: "text", Required: true, Description: "Where the database is. A URL or keywords."}, byPath["dsn"])
	require.Equal(t, Key{Path: "password", Type: "text", Secret: true}, byPath["password"])
	require.Equal(t, Key{Path: "batch", Type: "whole number", Default: "1000"}, byPath["batch"])
	require.Equal(t, Key{Path: "columns.headers", Type: "text, or mapping"}, byPath["columns.headers"])
	require.Equal(t, Key{Path: "after_publish", Type: "delete, keep, or mapping"}, byPath["after_publish"])
	require.Equal(t, Key{Path: "after_publish.set", Type: "mapping", Required: true}, byPath["after_publish.set"])

	keys, err = Keys(`{"$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}}, "$ref": "#/$defs/N"}`)
	require.NoError(t, err)
	require.Len(t, keys, maxKeyDepth+1, "a schema that contains itself has an end")
	keys, err = Keys(`{"type": "object", "required": ["c"], "properties": {"b": {}, "a": {}, "c": {}}}`)
	require.NoError(t, err)
	require.Equal(t, []string{"c", "b", "a"}, []string{keys[0].Path, keys[1].Path, keys[2].Path}, "as the author ordered them")
	_, err = Keys("{")
	require.Error(t, err)
}

func TestReference(t *testing.T) {
	t.Parallel()
	var all []*pluginv1.DescribeResponse
	for _, p := range plugins {
		if p.GetName() == "nats" || p.GetName() == "postgres-poll" {
			all = append(all, p)
		}
	}
	text, err := Reference(all)
	require.NoError(t, err)
	for _, want := range []string{
		"| **`source.plugin`** |", "| `sinks[].to` |", "| `delivery.max_in_flight.bytes` | size |", "## Source `postgres-poll`", "## Sink `nats`",
		"`to` is the subject.", "| **`servers`** | list of text |", "| `auth.password` | text, secret |", "| `log.level` | debug, info, warn, error |",
	} {
		require.Contains(t, string(text), want)
	}
}

package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relevo-io/relevo/host/plugin"
)

// later are keys and values of pipeline files that are planned, by where they stand; * is any item of a list.
var later = map[string]bool{
	"when": true, "dead_letter": true, "dead_letters": true, "envelope": true, "filter": true,
	"sinks.*.when": true, "sinks.*.envelope": true, "sinks.*.format": true, "sinks.*.errors": true, "sinks.*.dead_letter": true,
	"errors.dead_letter": true, "errors.dead_letters": true, "errors.permanent=dead_letter": true,
}

// misplaced are keys that belong elsewhere, with what to say.
var misplaced = map[string]string{
	"errors.give_up_after": `it stands under "transient"`,
	"errors.initial":       `it stands under "transient"`,
	"errors.max":           `it stands under "transient"`,
	"delivery.events":      `it stands under "max_in_flight"`,
	"delivery.bytes":       `it stands under "max_in_flight"`,
	"max_in_flight":        `it stands under "delivery"`,
	"drain_timeout":        `it stands under "delivery"`,
	"stall_after":          `it stands under "delivery"`,
	"sink":                 `did you mean "sinks", with a list of them?`,
	"sources":              `a pipeline has one "source"`,
}

// unknownKey explains keys that the pipeline's schema does not have.
func (d *document) unknownKey(plugins map[plugin.Found]*described) func(path []string, key string) (code, message, hint string) {
	return func(path []string, key string) (code, message, hint string) {
		at := slices.Clone(path)
		if len(at) > 1 && at[0] == "sinks" {
			at[1] = "*"
		}
		full := strings.Join(append(at, key), ".")
		full = strings.Replace(full, ".=", "=", 1)
		shown := strings.TrimPrefix(key, "=")
		if later[full] {
			return CodeNotInThisVersion, fmt.Sprintf("%q is not in this version of relevo", shown), ""
		}
		if strings.HasPrefix(key, "=") {
			return "", "", ""
		}
		if hint, ok := misplaced[full]; ok {
			return CodeUnknownKey, fmt.Sprintf("unknown key %q", key), hint
		}
		if kind, ok := kindAt(at); ok {
			v := d.value.at(path)
			if p := plugins[plugin.Found{Kind: kind, Name: pluginName(v.get("plugin"))}]; p != nil && p.err == nil {
				if s, err := compileSchema(p.describe.GetConfigSchema()); err == nil && slices.Contains(expand(s).names(), key) {
					return CodeUnknownKey, fmt.Sprintf("unknown key %q", key), fmt.Sprintf("%q is configuration of the plugin: it stands under \"config\"", key)
				}
			}
		}
		return "", "", ""
	}
}

// kindAt tells whether a path is that of a source or a sink.
func kindAt(path []string) (plugin.Kind, bool) {
	switch {
	case len(path) == 1 && path[0] == "source":
		return plugin.KindSource, true
	case len(path) == 2 && path[0] == "sinks":
		return plugin.KindSink, true
	}
	return "", false
}

// unknownConfigKey explains keys in a plugin's config that belong beside it.
func (d *document) unknownConfigKey(kind plugin.Kind) func(path []string, key string) (code, message, hint string) {
	beside := expand(pipelineSchema().Properties[string(kind)])
	if kind == plugin.KindSink {
		beside = expand(pipelineSchema()).property("sinks").item(0)
	}
	names := beside.names()
	return func(path []string, key string) (code, message, hint string) {
		if len(path) == 0 && slices.Contains(names, key) {
			return CodeUnknownKey, fmt.Sprintf("unknown key %q in config", key), fmt.Sprintf("%q stands beside \"config\", not in it", key)
		}
		return "", "", ""
	}
}

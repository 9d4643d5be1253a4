package conformance

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

func TestEveryCheckPointsToItsRule(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../" + Page)
	require.NoError(t, err)
	anchors := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			anchors[strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ", "-")] = true
		}
	}
	sinks, sources := (&suite{described: &pluginv1.DescribeResponse{Kind: pluginv1.PluginKind_PLUGIN_KIND_SINK}}).kindChecks(),
		(&suite{described: &pluginv1.DescribeResponse{Kind: pluginv1.PluginKind_PLUGIN_KIND_SOURCE}}).kindChecks()
	for _, kind := range [][]check{sinks, sources} {
		names := map[string]bool{}
		for _, c := range slices.Concat(everyPlugin, kind, []check{nobodyConnects}) {
			require.False(t, names[c.name], c.name)
			names[c.name] = true
			require.True(t, anchors[c.anchor], "%s: %s#%s", c.name, Page, c.anchor)
			require.NotEmpty(t, c.rule, c.name)
		}
	}
	for _, r := range streamRules {
		require.True(t, anchors[r.anchor], "%s: %s#%s", r.text, Page, r.anchor)
	}
}

// The page explains every key of conformance.yaml, those of `event` included, and Help every key that a check may need.
func TestThePageHasEveryKeyOfTheSpec(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../" + Page)
	require.NoError(t, err)
	_, testing, ok := strings.Cut(string(page), "\n## Testing\n")
	require.True(t, ok)
	explained := map[string]bool{} // what stands in backquotes
	for i, part := range strings.Split(testing, "`") {
		if i%2 == 1 {
			explained[part] = true
		}
	}
	known := map[string]bool{}
	for _, typ := range []reflect.Type{reflect.TypeFor[Spec](), reflect.TypeFor[EventSpec]()} {
		for f := range typ.Fields() {
			if key := f.Tag.Get("yaml"); key != "" && key != "-" {
				known[key] = true
				require.True(t, explained[key], "the page does not explain `%s`", key)
			}
		}
	}
	require.Greater(t, len(known), 15)
	for key, text := range help {
		require.True(t, known[key], key)
		require.NotEmpty(t, text, key)
	}
}

// The examples of the page can be used as they are.
func TestTheSpecsOfThePageCanBeRead(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../" + Page)
	require.NoError(t, err)
	_, testing, _ := strings.Cut(string(page), "\n## Testing\n")
	blocks := strings.Split(testing, "```yaml\n")[1:]
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		file := filepath.Join(t.TempDir(), "conformance.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := Load(file)
		require.NoError(t, err, text)
	}
}

func TestMessagesOfLaterVersionsArePassedOver(t *testing.T) {
	t.Parallel()
	later := protowire.AppendString(protowire.AppendTag(nil, 100, protowire.BytesType), "later")
	w, r := &pluginv1.WriteResponse{}, &pluginv1.ReadResponse{}
	require.NoError(t, proto.Unmarshal(later, w))
	require.NoError(t, proto.Unmarshal(later, r))
	require.NoError(t, newSinkLedger().received(w))
	require.NoError(t, newSourceLedger(&pluginv1.Window{}).received(r))
	require.Error(t, newSinkLedger().received(&pluginv1.WriteResponse{}))
	require.Error(t, newSourceLedger(&pluginv1.Window{}).received(&pluginv1.ReadResponse{}))
}

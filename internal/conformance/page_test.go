package conformance

import (
	"os"
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
	names := map[string]bool{}
	for _, c := range append(append(everyPlugin[:len(everyPlugin):len(everyPlugin)], nobodyConnects), sinkChecks...) {
		require.False(t, names[c.name], c.name)
		names[c.name] = true
		require.True(t, anchors[c.anchor], "%s: %s#%s", c.name, Page, c.anchor)
	}
	for _, c := range sourceChecks {
		require.True(t, anchors[c.anchor], "%s: %s#%s", c.name, Page, c.anchor)
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

package plugin

import (
	"context"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// buildPlugin builds one of test/plugins under the name that it has as a plugin.
func buildPlugin(t *testing.T, folder, file string) string {
	path := filepath.Join(t.TempDir(), file)
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = filepath.Join("../../test/plugins", folder)
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// Plugins made with the SDK, and events that go from one to the other as they came.
func TestRelayBetweenSDKPlugins(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds two plugins")
	}
	const events = 20_000
	source := sdkProcess(t, KindSource, buildPlugin(t, "nullsource", "source-null"))
	sink := sdkProcess(t, KindSink, buildPlugin(t, "nullsink", "sink-null"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	window := &pluginv1.Window{Events: events, Bytes: 64 << 20}
	r, err := source.Read(ctx, &pluginv1.SourceOpen{Config: []byte(`{"count": 20000, "positions": true}`), Window: window})
	require.NoError(t, err)
	w, err := sink.Write(ctx, &pluginv1.SinkOpen{Config: []byte(`{"keeps_order": true}`), Window: window})
	require.NoError(t, err)

	for sent := 0; sent < events; {
		b, _, err := r.Recv()
		require.NoError(t, err)
		if b == nil {
			continue // Opened, Status
		}
		require.Equal(t, uint64(sent+1), b.FirstSeq)
		out := wire.SinkBatch{
			FirstSeq: b.FirstSeq, Count: b.Count, Destinations: []string{"d"}, Events: [][]byte{b.Framed(0, b.Len())},
		}
		require.NoError(t, w.SendFrame(out.Request()))
		sent += b.Count
	}
	for acked := uint64(0); acked < events; {
		res, err := w.Recv()
		require.NoError(t, err)
		require.Nil(t, res.GetFault())
		acked = max(acked, res.GetAck().GetThroughSeq())
	}

	require.NoError(t, w.Send(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Stop{Stop: &pluginv1.Stop{}}}))
	stopped := false
	for err == nil {
		var res *pluginv1.WriteResponse
		res, err = w.Recv()
		stopped = stopped || res.GetStopped() != nil
	}
	require.Equal(t, io.EOF, err)
	require.True(t, stopped)
	for _, p := range []*Process{sink, source} {
		start := time.Now()
		p.Close(t.Context())
		require.NoError(t, p.Exit().Err)
		require.Less(t, time.Since(start), 3*time.Second, "it exits by itself, also with an open stream")
	}
}

func sdkProcess(t *testing.T, kind Kind, path string) *Process {
	d, err := Describe(t.Context(), path)
	require.NoError(t, err)
	p := mustLaunch(t, Settings{
		Kind: kind, Name: d.GetName(), Path: path, RuntimeDir: shortDir(t), MaxMessageBytes: int(d.GetMaxMessageBytes()),
		Log: slog.New(&logs{}),
	})
	live, err := p.Describe(t.Context())
	require.NoError(t, err)
	require.Equal(t, d.GetName(), live.GetName())
	return p
}

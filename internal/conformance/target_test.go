package conformance_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/conformance"
	"github.com/relevo-io/relevo/sdk/sdktest"
)

func TestRunNeedsAPlugin(t *testing.T) {
	t.Parallel()
	none := func(conformance.Result) { t.Error("nothing can be checked") }
	err := conformance.Run(t.Context(), conformance.Target{Path: filepath.Join(t.TempDir(), "none")}, none)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAnExecutableThatIsNoPluginFails(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"it ends":        "#!/bin/sh\necho not a plugin >&2\nexit 3\n",
		"it talks":       "#!/bin/sh\necho hello\ncat\n",
		"not executable": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exe := filepath.Join(t.TempDir(), "plugin")
			require.NoError(t, os.WriteFile(exe, []byte(script), 0o600))
			if script != "" {
				require.NoError(t, os.Chmod(exe, 0o700)) //nolint:gosec // to be run
			}
			var results []conformance.Result
			target := conformance.Target{Path: exe, Only: []string{"handshake"}}
			require.NoError(t, conformance.Run(t.Context(), target, func(r conformance.Result) { results = append(results, r) }))
			require.Equal(t, "handshake", results[0].Name)
			require.Equal(t, conformance.Fail, results[0].Outcome)
			require.NotEmpty(t, results[0].Seen)
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	exe := sdktest.Build(t, brokenPackage)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := conformance.Run(ctx, conformance.Target{Path: exe, Spec: new(simpleBrokenSink("")), Only: []string{"nobody-connects", "describe"}},
		func(r conformance.Result) { cancel(enough) })
	require.ErrorIs(t, err, enough)
}

func TestSpecIsReadBesideThePlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "conformance.yaml"), []byte(text), 0o600))
	}
	s, err := conformance.LoadBeside(filepath.Join(dir, "plugin"))
	require.NoError(t, err, "no file is an empty one")
	require.Nil(t, s.Config)

	write("config:\n  url: nats://127.0.0.1\n  tls: {insecure: true}\ndestination: orders\nrefused:\n  payload_bytes: 2000000\nbreak: [sh, -c, stop]\nmend: [sh, -c, start]\n")
	s, err = conformance.LoadBeside(filepath.Join(dir, "plugin"))
	require.NoError(t, err)
	require.Equal(t, map[string]any{"url": "nats://127.0.0.1", "tls": map[string]any{"insecure": true}}, s.Config)
	require.Equal(t, "orders", s.Destination)
	require.Equal(t, 2_000_000, s.Refused.PayloadBytes)
	require.Equal(t, []string{"sh", "-c", "start"}, s.Mend)

	for text, says := range map[string]string{
		"destinaton: orders\n":         "destinaton",
		"break: [sh]\n":                "break and mend",
		"start_timeout: soon\n":        "start_timeout",
		"config: {1: a}\nconfig: {}\n": "config",
	} {
		write(text)
		_, err = conformance.LoadBeside(filepath.Join(dir, "plugin"))
		require.ErrorContains(t, err, says)
	}
}

package config

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever bytes a file holds, Load ends with pipelines or faults, each fault at a place in the file.
// (Run it with -fuzzminimizetime=10x: plugins are described side by side, so coverage varies and minimizing never ends.)
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(f, err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "a.yaml")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		ps, faults := loadForTest(t, testEnv, path)
		require.True(t, len(ps) > 0 || len(faults) > 0)
		var b bytes.Buffer
		require.NoError(t, faults.Print(&b, false))
		require.NotContains(t, b.String(), "\x1b")
		lines := len(newFile(path, data).lines) + 1
		for _, d := range faults {
			require.LessOrEqual(t, d.Line, lines, "%v", d)
			require.NotEmpty(t, d.Message)
			require.NotEmpty(t, d.Code)
		}
		for _, p := range ps {
			require.NotEmpty(t, p.Sinks)
			require.Regexp(t, nameForm, p.Name)
			require.True(t, bytes.HasPrefix(p.Source.Config, []byte("{")))
			require.Positive(t, p.Delivery.MaxInFlightEvents)
			require.Positive(t, p.Delivery.MaxInFlightBytes)
		}
	})
}

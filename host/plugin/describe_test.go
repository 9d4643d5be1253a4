package plugin

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// named is the hostile plugin under another name, which is what its describe goes by.
func named(t *testing.T, name string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.Symlink(hostileExe, path))
	return path
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	d, err := Describe(t.Context(), named(t, "sink-good"))
	require.NoError(t, err)
	require.Equal(t, "good", d.GetName())
	require.True(t, d.GetCapabilities().GetKeepsOrder())
}

func TestDescribeErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, code, says string }{
		{"sink-junk", CodeNotAPlugin, `"hello world, this is no plugin"`},
		{"sink-exit", CodeNotAPlugin, "unknown command: describe"},
		{"sink-nameless", CodeNotAPlugin, "no name"},
		{"sink-huge", CodeNotAPlugin, "printed more than"},
		{"source-good", CodeWrongKind, "it is called a source and says that it is a sink"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Describe(t.Context(), named(t, c.name))
			requireCode(t, err, c.code)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := Describe(t.Context(), script(t, "notexecutable.sh"))
	requireCode(t, err, CodeNotExecutable)
	_, err = Describe(t.Context(), "/bin/true")
	requireCode(t, err, CodeNotAPlugin)
	require.ErrorContains(t, err, "nothing")
}

func TestDescribeEnds(t *testing.T) {
	t.Parallel()
	_, err := describe(t.Context(), named(t, "sink-hang"), 200*time.Millisecond)
	requireCode(t, err, CodeNotAPlugin)
	require.ErrorContains(t, err, "within 200ms")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Describe(ctx, named(t, "sink-good"))
	require.ErrorIs(t, err, context.Canceled)

	// A child that keeps stdout open does not keep Describe.
	start := time.Now()
	path := named(t, "sink-escape")
	d, err := Describe(t.Context(), path)
	require.NoError(t, err)
	require.Equal(t, "good", d.GetName())
	require.Less(t, time.Since(start), 8*time.Second)
	pid, err := os.ReadFile(path + ".pid")
	require.NoError(t, err)
	escaped, err := strconv.Atoi(string(pid))
	require.NoError(t, err)
	require.False(t, gone(escaped), "the test is about one that lives on")
	require.NoError(t, syscall.Kill(escaped, syscall.SIGKILL))
}

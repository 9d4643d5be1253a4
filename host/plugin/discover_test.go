package plugin

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func put(t *testing.T, dir, name string, mode os.FileMode) string {
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), mode))
	return path
}

func TestFindAndList(t *testing.T) {
	t.Parallel()
	a, b := t.TempDir(), t.TempDir()
	first := put(t, a, "sink-nats", 0o755)
	put(t, b, "sink-nats", 0o755)
	source := put(t, b, "source-postgres-poll", 0o755)
	linked := filepath.Join(b, "sink-linked")
	require.NoError(t, os.Symlink(first, linked))
	plain := put(t, a, "sink-plain", 0o644)
	put(t, a, "sink-UPPER", 0o755)
	put(t, a, "other", 0o755)
	require.NoError(t, os.Mkdir(filepath.Join(a, "sink-directory"), 0o755))
	dirs := []string{a, filepath.Join(a, "absent"), b}

	require.Equal(t, []Found{
		{KindSource, "postgres-poll", source},
		{KindSink, "linked", linked},
		{KindSink, "nats", first},
	}, List(dirs))

	f, err := Find(dirs, KindSink, "nats")
	require.NoError(t, err)
	require.Equal(t, Found{KindSink, "nats", first}, f)

	_, err = Find(dirs, KindSink, "plain")
	requireCode(t, err, CodeNotExecutable)
	require.ErrorContains(t, err, "chmod +x "+plain)

	_, err = Find(dirs, KindSink, "natz")
	requireCode(t, err, CodeNotFound)
	require.ErrorContains(t, err, `did you mean "nats"?`)
	for _, d := range dirs {
		require.ErrorContains(t, err, d)
	}
	_, err = Find(dirs, KindSink, "postgres-poll")
	require.ErrorContains(t, err, "there is a source of that name, but no sink")
	_, err = Find(dirs, KindSink, "kafka")
	require.ErrorContains(t, err, "--plugin-dir")

	// A pipeline file must not choose what is executed.
	for _, name := range []string{"", "../nats", "/bin/sh", "a/b", "Nats", "nats\n", "nats;id", "ñ"} {
		_, err = Find(dirs, KindSink, name)
		requireCode(t, err, CodeBadName)
	}
}

func TestDirs(t *testing.T) {
	t.Setenv("RELEVO_PLUGIN_PATH", "/b:/c:")
	exe, err := os.Executable()
	require.NoError(t, err)
	exe, err = filepath.EvalSymlinks(exe)
	require.NoError(t, err)
	dir := filepath.Dir(exe)
	require.Equal(t, []string{"/a", "/b", "/c", dir, dir + "/plugins", "/usr/lib/relevo/plugins"}, Dirs([]string{"/a", "/b/"}))
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"nats", "nats", 0}, {"natz", "nats", 1}, {"nast", "nats", 2}, {"kitten", "sitting", 3}} {
		require.Equal(t, c.want, distance(c.a, c.b), "%s %s", c.a, c.b)
		require.Equal(t, c.want, distance(c.b, c.a), "%s %s", c.b, c.a)
	}
}

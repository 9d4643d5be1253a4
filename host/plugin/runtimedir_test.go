package plugin

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRuntimeDir(t *testing.T) {
	check := func(t *testing.T, parent string) {
		dir, remove, err := RuntimeDir()
		require.NoError(t, err)
		require.Equal(t, parent, filepath.Dir(dir))
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, os.ModeDir|0o700, info.Mode())
		other, removeOther, err := RuntimeDir()
		require.NoError(t, err)
		require.NotEqual(t, dir, other, "two hosts do not share one")
		removeOther()
		require.DirExists(t, dir)
		remove()
		require.NoDirExists(t, dir)
		require.DirExists(t, parent)
	}
	t.Run("service manager's", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("RUNTIME_DIRECTORY", dir+":/nowhere")
		check(t, dir)
	})
	t.Run("session's", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("RUNTIME_DIRECTORY", "")
		t.Setenv("XDG_RUNTIME_DIR", dir)
		check(t, filepath.Join(dir, "relevo"))
		require.NoError(t, os.Chmod(filepath.Join(dir, "relevo"), 0o755))
		_, _, err := RuntimeDir()
		require.ErrorContains(t, err, "chmod 0700")
	})
	t.Run("temporary", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("RUNTIME_DIRECTORY", "")
		t.Setenv("TMPDIR", dir)
		t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "absent"))
		check(t, dir)
		t.Setenv("XDG_RUNTIME_DIR", "")
		check(t, dir)
	})
}

// A host that is killed leaves its directory to the next one; one that lives keeps it.
func TestRuntimeDirIsSwept(t *testing.T) {
	base := t.TempDir()
	t.Setenv("RUNTIME_DIRECTORY", base)
	stranger := filepath.Join(base, "00000000") // no host's: it has no lock
	require.NoError(t, os.Mkdir(stranger, 0o700))

	host := exec.Command(os.Args[0])
	host.Env = append(os.Environ(), "RELEVO_TEST_AS_HOST=runtime-dir")
	host.Stderr = os.Stderr
	out, err := host.StdoutPipe()
	require.NoError(t, err)
	in, err := host.StdinPipe()
	require.NoError(t, err)
	defer func() { _ = in.Close() }()
	require.NoError(t, host.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	other := strings.TrimSpace(line)
	require.DirExists(t, other)

	_, remove, err := RuntimeDir()
	require.NoError(t, err)
	remove()
	require.DirExists(t, other, "its host lives")

	require.NoError(t, host.Process.Kill())
	_ = host.Wait()
	require.DirExists(t, other)
	_, remove, err = RuntimeDir()
	require.NoError(t, err)
	remove()
	require.NoDirExists(t, other)
	require.DirExists(t, stranger)
}

func TestSocketDirIsPrivate(t *testing.T) {
	t.Parallel()
	base := shortDir(t)
	dir, err := socketDir(base)
	require.NoError(t, err)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, info.Mode())
	require.Len(t, filepath.Base(dir), 8)
	_, err = socketDir(filepath.Join(base, "absent"))
	require.ErrorContains(t, err, "make socket directory")
}

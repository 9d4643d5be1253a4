package state

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSettingsInEffect(t *testing.T) {
	t.Parallel()
	d := open(t, newPath(t))
	for _, p := range pragmas {
		var got string
		require.NoError(t, d.conn.QueryRowContext(t.Context(), "PRAGMA "+p.name).Scan(&got))
		require.Equal(t, p.want, got, p.name)
	}
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := open(t, path)
	require.NoError(t, d.StorePosition(t.Context(), "p", "s", nil))

	files, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode(), f.Name())
		names = append(names, f.Name())
	}
	require.Equal(t, []string{"relevo.db", "relevo.db-wal"}, names, "no -shm: the index is in memory")
}

func TestPathIsTakenLiterally(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a b?mode=memory#x%41&ü.db", ":memory:", "file:x.db"} {
		path := filepath.Join(t.TempDir(), name)
		d := open(t, path)
		require.NoError(t, d.StorePosition(t.Context(), "p", "s", []byte("1")))
		require.NoError(t, d.Close())
		files, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, files, 1)
		require.Equal(t, name, files[0].Name())
		p, err := open(t, path).Position(t.Context(), "p", "s")
		require.NoError(t, err)
		require.Equal(t, "1", string(p.Value))
	}
}

func TestPlacesWhereNoDatabaseCanBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{
		filepath.Join(dir, "missing", "relevo.db"): "missing\" does not exist: make it",
		filepath.Join(file, "relevo.db"):           "file\" is not a directory",
		dir:                                        "is not a regular file",
	} {
		_, err := Open(t.Context(), path)
		require.ErrorContains(t, err, fmt.Sprintf("open state database %q: ", path))
		require.ErrorContains(t, err, want)
	}
}

func TestLocked(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := open(t, path)

	_, err := Open(t.Context(), path)
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, path)

	if runtime.GOOS == "linux" {
		// Some other code of the process looks at the file: with POSIX locks its close would drop ours.
		_, err = os.ReadFile(path)
		require.NoError(t, err)
	}
	out, err := role(t, "open", path).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), ErrLocked.Error())

	require.NoError(t, d.StorePosition(t.Context(), "p", "s", nil), "the first goes on")
	require.NoError(t, d.Close())
	out, err = role(t, "open", path).CombinedOutput()
	require.NoError(t, err, "released: %s", out)
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := open(t, path)
	for i := range 200 {
		require.NoError(t, d.StoreDiscard(t.Context(), "orders", Discard{"kafka", fmt.Sprint("event-", i)}, bytes.Repeat([]byte("p"), 100)))
	}
	require.NoError(t, d.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	const page = 4096
	require.Greater(t, len(whole), 6*page)

	for name, damage := range map[string]func([]byte) []byte{
		"header":    func(b []byte) []byte { copy(b, "not a database"); return b },
		"a page":    func(b []byte) []byte { copy(b[5*page:], bytes.Repeat([]byte{0xa5}, page)); return b },
		"truncated": func(b []byte) []byte { return b[:3*page] },
		"text file": func([]byte) []byte { return []byte("name: orders\n") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			require.NoError(t, os.WriteFile(path, damage(bytes.Clone(whole)), 0o600))
			_, err := Open(t.Context(), path)
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, "move it and its -wal file away")
		})
	}
}

func TestLeftoverWALOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	require.NoError(t, os.WriteFile(path+"-wal", bytes.Repeat([]byte("old"), 5000), 0o600))
	d := open(t, path)
	require.NoError(t, d.StorePosition(t.Context(), "p", "s", []byte("1")))
}

func TestReadOnlyFile(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	require.NoError(t, open(t, path).Close())
	require.NoError(t, os.Chmod(path, 0o400))
	out, err := role(t, "open-unprivileged", path).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "must be readable and writable for the user that runs relevo")
}

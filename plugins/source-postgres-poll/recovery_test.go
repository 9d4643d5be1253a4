package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/pgserver"
)

// A standby is read-only: the doctor says so, a source waits for it to be promoted, and then goes on by itself.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	d, pg := privateDB(t, nil, seqDDL)
	var dir string
	require.NoError(t, d.conn.QueryRow(context.Background(), `SHOW data_directory`).Scan(&dir))
	require.Nil(t, find(examine(t, map[string]any{"dsn": d.dsn}), "read_only_server"))
	require.NoError(t, d.conn.Close(context.Background()))
	pg.Stop(pgserver.Fast)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o644))
	pg.Restart()

	f := find(examine(t, map[string]any{"dsn": d.dsn}), "read_only_server")
	require.NotNil(t, f)
	require.Equal(t, severityError, f.GetSeverity())
	require.Contains(t, f.GetHint(), "point dsn at the primary")
	r := startRelay(t, d.dsn, relayOptions{})
	s := d.session()
	_, err := s.Exec(context.Background(), `SELECT pg_promote()`)
	require.NoError(t, err)
	r.awaitOpened()
	require.Nil(t, find(examine(t, map[string]any{"dsn": d.dsn}), "read_only_server"))
	r.drain()
}

// Versions outside the supported ones are found, without a server of each.
func TestDoctorVersions(t *testing.T) {
	t.Parallel()
	for major, code := range map[int]string{
		oldestVersion - 1: "version_unsupported", oldestVersion: "reachable", newestVersion: "reachable", newestVersion + 1: "version_untested",
	} {
		var d doctor
		d.version(major)
		require.Len(t, d.findings, 1)
		require.Equal(t, code, d.findings[0].Code, major)
	}
}

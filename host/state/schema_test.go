package state

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := open(t, path)
	_, err := d.conn.ExecContext(t.Context(), "UPDATE meta SET schema_version = 7")
	require.NoError(t, err)
	require.NoError(t, d.Close())

	_, err = Open(t.Context(), path)
	require.ErrorContains(t, err, "schema version 7 is newer than this relevo knows (1)")
}

func TestMigrationKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := open(t, path)
	require.NoError(t, d.StorePosition(t.Context(), "p", "s", []byte("1")))
	id := d.HostID()

	steps := append(migrations[:len(migrations):len(migrations)], "CREATE TABLE later (x INTEGER)")
	require.NoError(t, migrate(t.Context(), d.conn, steps))
	require.NoError(t, migrate(t.Context(), d.conn, steps), "again")
	version, err := schemaVersion(t.Context(), d.conn)
	require.NoError(t, err)
	require.Equal(t, len(migrations)+1, version)
	p, err := d.Position(t.Context(), "p", "s")
	require.NoError(t, err)
	require.Equal(t, "1", string(p.Value))
	require.Equal(t, id, d.HostID())
}

// A step that fails in the middle leaves the schema as it was.
func TestMigrationIsAllOrNothing(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := open(t, path)
	steps := append(migrations[:len(migrations):len(migrations)], "CREATE TABLE later (x INTEGER); CREATE TABLE meta (x INTEGER)")
	require.Error(t, migrate(t.Context(), d.conn, steps))
	require.NoError(t, d.Close())

	d = open(t, path)
	var n int
	require.NoError(t, d.conn.QueryRowContext(t.Context(), "SELECT count(*) FROM sqlite_schema WHERE name = 'later'").Scan(&n))
	require.Zero(t, n)
}

func TestDatabaseOfAnotherProgram(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	other, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	_, err = other.ExecContext(t.Context(), "CREATE TABLE meta (schema_version INTEGER, host_id TEXT)")
	require.NoError(t, err)
	require.NoError(t, other.Close())

	_, err = Open(t.Context(), path)
	require.ErrorContains(t, err, "database of another program")
}

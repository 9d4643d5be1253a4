package bring

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/pgserver"
)

// TestFetch fetches PostgreSQL with every package client that is here, and starts it.
func TestFetch(t *testing.T) {
	t.Parallel()
	if os.Getenv("RELEVO_TEST_FETCH") == "" {
		t.Skip("downloads 45 MB: set RELEVO_TEST_FETCH=1")
	}
	for _, c := range clients {
		t.Run(c.program, func(t *testing.T) {
			if !have(c.program) {
				t.Skipf("no %s here", c.program)
			}
			parent, err := os.MkdirTemp("/tmp", "relevo-fetch-") // t.TempDir lets no other user in
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(parent)) })
			require.NoError(t, os.Chmod(parent, 0o755))
			dir := filepath.Join(parent, "pg")
			require.NoError(t, fetch(t.Context(), c, dir))
			bin, err := pgserver.Probe(filepath.Join(dir, c.bin))
			require.NoError(t, err)
			s, err := pgserver.Start(t.Context(), pgserver.Options{Binaries: bin})
			require.NoError(t, err)
			require.NoError(t, s.Close())
		})
	}
}

func TestArchivesStayInside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"../x", "/x", "a/../../x", ""} {
		require.ErrorContains(t, place(dir, name, nil), "leads out", "%q", name)
	}
}

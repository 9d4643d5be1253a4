package state

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(runRole(role))
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, path string) *DB {
	t.Helper()
	d, err := Open(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func newPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "relevo.db")
}

func TestPositionRoundTrip(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := open(t, path)

	p, err := d.Position(t.Context(), "orders", "postgres-cdc")
	require.NoError(t, err)
	require.Nil(t, p)

	before := time.Now().Truncate(time.Microsecond)
	for _, value := range [][]byte{[]byte("0/16B3748"), {0, 0xff, '\n'}, {}, nil, []byte("0/16B3750")} {
		require.NoError(t, d.StorePosition(t.Context(), "orders", "postgres-cdc", value))
		p, err = d.Position(t.Context(), "orders", "postgres-cdc")
		require.NoError(t, err)
		require.Equal(t, string(value), string(p.Value))
		require.WithinRange(t, p.UpdatedAt, before, time.Now())
		require.Zero(t, p.OwnerEpoch)
	}

	for _, other := range [][2]string{{"orders", "postgres-poll"}, {"invoices", "postgres-cdc"}} {
		p, err = d.Position(t.Context(), other[0], other[1])
		require.NoError(t, err)
		require.Nil(t, p, "of %v", other)
	}

	id := d.HostID()
	require.Len(t, id, 32)
	require.NoError(t, d.Close())
	d = open(t, path)
	require.Equal(t, id, d.HostID())
	p, err = d.Position(t.Context(), "orders", "postgres-cdc")
	require.NoError(t, err)
	require.Equal(t, "0/16B3750", string(p.Value))
}

func TestHostIDIsOfTheDatabase(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, open(t, newPath(t)).HostID(), open(t, newPath(t)).HostID())
}

func TestDiscards(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := open(t, path)
	ctx := t.Context()
	a, b, c := Discard{"kafka", "e1"}, Discard{"kafka", "e2"}, Discard{"nats", "e1"}

	for _, x := range []Discard{c, a, b} {
		require.NoError(t, d.StoreDiscard(ctx, "orders", x, []byte("p")))
	}
	require.NoError(t, d.StoreDiscard(ctx, "orders", a, nil), "once more")
	require.NoError(t, d.StoreDiscard(ctx, "invoices", a, nil))
	require.Equal(t, []Discard{a, b, c}, discards(t, d, "orders"))

	require.NoError(t, d.Close())
	d = open(t, path)
	require.Equal(t, []Discard{a, b, c}, discards(t, d, "orders"))

	require.NoError(t, d.ForgetDiscards(ctx, "orders", []Discard{a, {"kafka", "unknown"}}, time.Time{}))
	require.Equal(t, []Discard{b, c}, discards(t, d, "orders"))
	require.Equal(t, []Discard{a}, discards(t, d, "invoices"), "another pipeline's stays")

	mark := tick()
	require.NoError(t, d.SeenDiscards(ctx, "orders", []Discard{c, {"nats", "unknown"}}))
	require.NoError(t, d.ForgetDiscards(ctx, "orders", nil, mark))
	require.Equal(t, []Discard{c}, discards(t, d, "orders"), "seen again, so kept")
	require.Equal(t, []Discard{a}, discards(t, d, "invoices"))

	require.NoError(t, d.SeenDiscards(ctx, "orders", nil))
	require.NoError(t, d.ForgetDiscards(ctx, "orders", []Discard{c}, time.Time{}))
	require.Empty(t, discards(t, d, "orders"))
}

func discards(t *testing.T, d *DB, pipeline string) []Discard {
	t.Helper()
	xs, err := d.Discards(t.Context(), pipeline)
	require.NoError(t, err)
	return xs
}

// tick returns a time later than anything stored so far, in the database's microseconds.
func tick() time.Time {
	start := time.Now().UnixMicro()
	for time.Now().UnixMicro() == start {
	}
	return time.UnixMicro(start + 1)
}

func TestClosed(t *testing.T) {
	t.Parallel()
	d := open(t, newPath(t))
	require.NoError(t, d.Close())
	require.NoError(t, d.Close(), "again")

	ctx := t.Context()
	require.ErrorIs(t, d.StorePosition(ctx, "p", "s", nil), ErrClosed)
	require.ErrorIs(t, d.StoreDiscard(ctx, "p", Discard{}, nil), ErrClosed)
	_, err := d.Position(ctx, "p", "s")
	require.ErrorIs(t, err, ErrClosed)
	_, err = d.Discards(ctx, "p")
	require.ErrorIs(t, err, ErrClosed)
}

func TestContextEndsTheWait(t *testing.T) {
	t.Parallel()
	d := open(t, newPath(t))
	d.turn <- struct{}{} // a commit that hangs in the disk

	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() { errs <- d.StorePosition(ctx, "p", "s", []byte("1")) }()
	require.Eventually(t, func() bool { return d.waiting() == 1 }, 10*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-errs, context.Canceled)
	require.Zero(t, d.waiting(), "withdrawn")
	_, err := d.Position(ctx, "p", "s")
	require.ErrorIs(t, err, context.Canceled)

	<-d.turn
	p, err := d.Position(t.Context(), "p", "s")
	require.NoError(t, err)
	require.Nil(t, p)
}

func (d *DB) waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.pending)
}

func BenchmarkStorePosition(b *testing.B) {
	for name, parallel := range map[string]int{"one": 0, "sixteen": 16} {
		b.Run(name, func(b *testing.B) {
			d, err := Open(b.Context(), filepath.Join(b.TempDir(), "relevo.db"))
			require.NoError(b, err)
			defer d.Close()
			value := []byte("0/16B3748")
			b.ResetTimer()
			if parallel == 0 {
				for b.Loop() {
					require.NoError(b, d.StorePosition(b.Context(), "orders", "postgres-cdc", value))
				}
				return
			}
			b.SetParallelism(parallel / 2)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := d.StorePosition(b.Context(), "orders", "postgres-cdc", value); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

package state

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func TestWaitingWritesShareACommit(t *testing.T) {
	t.Parallel()
	d := open(t, newPath(t))
	d.turn <- struct{}{}
	commits := d.commits

	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error {
			return d.StorePosition(t.Context(), fmt.Sprint("p", i), "s", fmt.Append(nil, i))
		})
	}
	require.Eventually(t, func() bool { return d.waiting() == 20 }, 10*time.Second, time.Millisecond)
	<-d.turn
	require.NoError(t, g.Wait())

	for i := range 20 {
		p, err := d.Position(t.Context(), fmt.Sprint("p", i), "s")
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), string(p.Value))
	}
	require.Equal(t, commits+1, d.commits)
}

func TestALaterPositionStays(t *testing.T) {
	t.Parallel()
	d := open(t, newPath(t))
	d.turn <- struct{}{}

	var g errgroup.Group
	for i := range 5 {
		g.Go(func() error { return d.StorePosition(t.Context(), "p", "s", fmt.Append(nil, i)) })
		require.Eventually(t, func() bool { return d.waiting() == i+1 }, 10*time.Second, time.Millisecond)
	}
	<-d.turn
	require.NoError(t, g.Wait())
	p, err := d.Position(t.Context(), "p", "s")
	require.NoError(t, err)
	require.Equal(t, "4", string(p.Value))
}

// One write of a shared commit that cannot be applied fails by itself.
func TestAFailedWriteFailsAlone(t *testing.T) {
	t.Parallel()
	d := open(t, newPath(t))
	d.turn <- struct{}{}
	broken := errors.New("broken")

	var g errgroup.Group
	g.Go(func() error { return d.StorePosition(t.Context(), "a", "s", []byte("1")) })
	require.Eventually(t, func() bool { return d.waiting() == 1 }, 10*time.Second, time.Millisecond)
	failed := make(chan error, 1)
	g.Go(func() error {
		failed <- d.commit(t.Context(), func(context.Context) error { return broken })
		return nil
	})
	require.Eventually(t, func() bool { return d.waiting() == 2 }, 10*time.Second, time.Millisecond)
	g.Go(func() error { return d.StorePosition(t.Context(), "b", "s", []byte("2")) })
	require.Eventually(t, func() bool { return d.waiting() == 3 }, 10*time.Second, time.Millisecond)
	<-d.turn

	require.NoError(t, g.Wait())
	require.ErrorIs(t, <-failed, broken)
	for pipeline, want := range map[string]string{"a": "1", "b": "2"} {
		p, err := d.Position(t.Context(), pipeline, "s")
		require.NoError(t, err)
		require.Equal(t, want, string(p.Value))
	}
}

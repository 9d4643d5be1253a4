package sdk

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestQueueIsBounded: a host that ignores the window waits, one that keeps to it never does (I7).
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q := newQueue(Window{Events: 10, Bytes: 100})
		go q.run(ctx)
		size := Window{Events: 5, Bytes: 50}
		for i := range 2 { // the window
			require.NoError(t, q.room(ctx, size))
			q.add(&Events{Items: make([]Item, i+1)}, size)
		}
		require.NoError(t, q.room(ctx, Window{Events: 1}), "there is room for what is no event")
		q.add(Window{Events: 1, Bytes: 1}, Window{Events: 1}) // smaller: what is on its way still has room

		got := make(chan error)
		go func() { got <- q.room(ctx, size) }()
		synctest.Wait()
		select {
		case err := <-got:
			require.Fail(t, "there was room beyond the window", "%v", err)
		default:
		}
		require.Len(t, (<-q.out).(*Events).Items, 1)
		require.NoError(t, <-got)
		q.add(&Events{Items: make([]Item, 3)}, size)

		go func() { got <- q.room(ctx, size) }()
		synctest.Wait()
		cancel() // the stream has ended
		require.ErrorIs(t, <-got, context.Canceled)
		synctest.Wait()
		_, more := <-q.out
		require.False(t, more)
	})
}

func TestQueueAdmitsOne(t *testing.T) {
	t.Parallel()
	q := newQueue(Window{Events: 1, Bytes: 1})
	require.NoError(t, q.room(t.Context(), Window{Events: 100, Bytes: 16 << 20}))
}

func TestQueueKeepsOrderAndCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		q := newQueue(Window{Events: 7, Bytes: 1 << 20})
		go q.run(t.Context())
		go func() {
			for i := range n {
				if q.room(t.Context(), Window{Events: 1}) != nil {
					return
				}
				q.add(Ack{ThroughSeq: uint64(i)}, Window{Events: 1})
			}
			q.add(Stop{}, Window{Events: 1})
			q.close()
		}()
		next := uint64(0)
		for r := range q.out {
			if a, ok := r.(Ack); ok {
				require.Equal(t, next, a.ThroughSeq)
				next++
			}
		}
		require.Equal(t, uint64(n), next)
	})
}

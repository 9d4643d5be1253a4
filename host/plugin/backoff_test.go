package plugin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	b := &Backoff{rand: func() float64 { return 0.5 }} // no jitter
	now := time.Unix(1e9, 0)
	crash := func(ran time.Duration) (time.Duration, bool) {
		now = now.Add(ran)
		d, failed := b.Next(now, ran)
		require.Equal(t, failed, b.Failed())
		now = now.Add(d)
		return d, failed
	}

	for _, want := range []time.Duration{
		200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond,
		3200 * time.Millisecond, 6400 * time.Millisecond, 12800 * time.Millisecond, 25600 * time.Millisecond, 30 * time.Second,
	} {
		d, failed := crash(0)
		require.False(t, failed)
		require.Equal(t, want, d)
	}
	for range 5 { // the tenth within ten minutes, and the ones after it
		d, failed := crash(time.Second)
		require.True(t, failed)
		require.Equal(t, 5*time.Minute, d)
	}
	d, failed := crash(time.Minute)
	require.False(t, failed, "a run of a minute resets")
	require.Equal(t, 200*time.Millisecond, d)
	d, _ = crash(59 * time.Second)
	require.Equal(t, 400*time.Millisecond, d, "a shorter one does not")
}

// Ten crashes that are spread over more than ten minutes are no failure.
func TestBackoffCountsAWindow(t *testing.T) {
	t.Parallel()
	b := &Backoff{}
	now := time.Unix(1e9, 0)
	for i := range 30 {
		_, failed := b.Next(now, time.Second)
		require.False(t, failed, "crash %d", i)
		now = now.Add(67 * time.Second)
	}
}

func TestBackoffJitter(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for range 100 {
		d, _ := (&Backoff{}).Next(time.Unix(1e9, 0), 0)
		require.GreaterOrEqual(t, d, 160*time.Millisecond)
		require.LessOrEqual(t, d, 240*time.Millisecond)
		seen[d] = true
	}
	require.Greater(t, len(seen), 50)
}

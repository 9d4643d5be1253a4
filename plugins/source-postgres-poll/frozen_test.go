package main

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/netproxy"
	"github.com/relevo-io/relevo/sdk"
)

// A leader that freezes, or that the network leaves in silence, in the middle of a read: the server must end its session
// then, too, or the lock stays with it for ever.
func TestLockIsLostInTheMiddleOfARead(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	u, err := url.Parse(d.dsn)
	require.NoError(t, err)
	proxy := netproxy.Start(t, u.Host)
	u.Host = proxy.Addr()

	// The reader's own time-outs, shorter.
	var own [][2]string
	for _, kv := range readerSettings {
		own = append(own, [2]string{kv[0], "300ms"})
	}
	s, err := connect(t.Context(), config{DSN: sdk.Secret(u.String())}, "p", "source", own)
	require.NoError(t, err)
	defer s.close()
	const key = 4711
	ok, err := s.tryLock(t.Context(), key)
	require.NoError(t, err)
	require.True(t, ok)

	reading := make(chan error, 1)
	stalled := make(chan struct{})
	go func() {
		rows := 0
		_, _, err := s.read(t.Context(), statement{sql: "SELECT generate_series(1, 1000)"}, func() int { return 10 }, func([][]byte) bool {
			if rows++; rows == 10 { // the end of the first step: the server waits for what comes next
				proxy.Stall(netproxy.Both)
				close(stalled)
			}
			return true
		})
		reading <- err
	}()
	<-stalled
	other, err := connect(t.Context(), config{DSN: sdk.Secret(d.dsn)}, "p", "source", nil)
	require.NoError(t, err)
	defer other.close()
	eventually(t, "another session has the lock", func() bool {
		ok, err := other.tryLock(t.Context(), key)
		require.NoError(t, err)
		return ok
	})
	proxy.Cut()
	require.Error(t, <-reading)
}

package sdk

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Health checks, and nothing else, are signs of life of the host: a stream is open for as long as its process exists.
func TestHealthChecksAreSeen(t *testing.T) {
	t.Parallel()
	seen := 0
	l := newLifeline(func() {}, func() { seen++ })
	defer l.timer.Stop()
	l.TagRPC(t.Context(), &stats.RPCTagInfo{FullMethodName: pluginv1.SourceService_Read_FullMethodName})
	require.Zero(t, seen)
	l.TagRPC(t.Context(), &stats.RPCTagInfo{FullMethodName: grpc_health_v1.Health_Check_FullMethodName})
	require.Equal(t, 1, seen)
}

func TestHostSeen(t *testing.T) {
	t.Parallel()
	s := &SourceStream{seen: new(atomic.Int64)}
	require.WithinDuration(t, time.Now(), s.HostSeen(), time.Minute, "no check was ever made")
	at := time.Now().Add(-time.Hour)
	s.seen.Store(at.UnixNano())
	require.True(t, at.Equal(s.HostSeen()))
}

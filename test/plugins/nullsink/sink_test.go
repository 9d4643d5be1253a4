package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/relevo-io/relevo/sdk"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

const patience = 20 * time.Second

type stream struct {
	pluginv1.SinkService_WriteClient
	t    *testing.T
	next uint64
}

// open opens a stream of a null sink with this configuration.
func open(t *testing.T, c map[string]any) *stream {
	t.Helper()
	p := plugin()
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(sdk.ServerOptions(p)...)
	sdk.Register(srv, p)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis)
	}()
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		srv.Stop()
		<-served
	})
	s, err := pluginv1.NewSinkServiceClient(conn).Write(ctx)
	require.NoError(t, err)
	config, err := json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, s.Send(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Open{Open: &pluginv1.SinkOpen{Config: config}}}))
	return &stream{SinkService_WriteClient: s, t: t, next: 1}
}

func (s *stream) batch(keys ...string) {
	s.t.Helper()
	b := &pluginv1.Batch{FirstSeq: s.next, Count: uint32(len(keys)), Destinations: []string{"topic"}}
	for i, k := range keys {
		e := &pluginv1.Event{Id: fmt.Sprint("id-", s.next+uint64(i))}
		if k != "" {
			e.Key = []byte(k)
		}
		b.Events = append(b.Events, e)
	}
	s.next += uint64(len(keys))
	require.NoError(s.t, s.Send(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Batch{Batch: b}}))
}

// outcomes receives until Stopped or a Fault, and returns what became of each number.
func (s *stream) outcomes() (map[uint64]string, *pluginv1.Fault) {
	s.t.Helper()
	got := map[uint64]string{}
	ranges := func(rs []*pluginv1.SeqRange, what string) {
		for _, r := range rs {
			for n := r.GetFirst(); n <= r.GetLast(); n++ {
				got[n] = what
			}
		}
	}
	for {
		m, err := s.Recv()
		require.NoError(s.t, err)
		for n := uint64(1); n <= m.GetAck().GetThroughSeq(); n++ {
			if got[n] == "" {
				got[n] = "acked"
			}
		}
		ranges(m.GetAck().GetRanges(), "acked")
		ranges(m.GetReturned().GetRanges(), "returned")
		if f := m.GetFailure(); f != nil {
			got[f.GetSeq()] = "failed " + f.GetCode()
		}
		if m.GetFault() != nil || m.GetStopped() != nil {
			return got, m.GetFault()
		}
	}
}

func (s *stream) stop() {
	s.t.Helper()
	require.NoError(s.t, s.Send(&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Stop{Stop: &pluginv1.Stop{}}}))
}

func TestRecordsAndRefuses(t *testing.T) {
	t.Parallel()
	record := filepath.Join(t.TempDir(), "record")
	s := open(t, map[string]any{
		"keeps_order": true, "record": record, "fail_keys": []string{"b"}, "fail_ids": []string{"id-5"},
	})
	s.batch("a", "b", "b", "")
	s.batch("c", "d", "b")
	s.stop()
	got, fault := s.outcomes()
	require.Nil(t, fault)
	require.Equal(t, map[uint64]string{
		1: "acked", 2: "failed null_refused", 3: "returned", 4: "acked", 5: "failed null_refused", 6: "acked", 7: "returned",
	}, got)
	b, err := os.ReadFile(record)
	require.NoError(t, err)
	require.Equal(t, "1 id-1 a topic\n4 id-4 - topic\n6 id-6 d topic\n", string(b))
}

func TestFailTimes(t *testing.T) {
	t.Parallel()
	s := open(t, map[string]any{"fail_keys": []string{"f"}, "fail_times": 2, "fail_class": "transient"})
	for range 3 {
		s.batch("f")
	}
	s.stop()
	got, _ := s.outcomes()
	require.Equal(t, map[uint64]string{1: "failed null_refused", 2: "failed null_refused", 3: "acked"}, got)
}

func TestOpenFault(t *testing.T) {
	t.Parallel()
	for class, want := range map[string]pluginv1.ErrorClass{
		"transient": pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT,
		"permanent": pluginv1.ErrorClass_ERROR_CLASS_PERMANENT,
		"config":    pluginv1.ErrorClass_ERROR_CLASS_CONFIG,
	} {
		_, fault := open(t, map[string]any{"open_fault": class}).outcomes()
		require.Equal(t, want, fault.GetClass())
	}
	_, fault := open(t, map[string]any{"open_fault": "other"}).outcomes()
	require.Equal(t, "config_invalid", fault.GetCode())
}

func TestDownUntil(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "up")
	s := open(t, map[string]any{"down_until": file})
	m, err := s.Recv()
	require.NoError(t, err)
	require.NotNil(t, m.GetOpened())
	m, err = s.Recv()
	require.NoError(t, err)
	require.Equal(t, pluginv1.SinkState_SINK_STATE_DOWN, m.GetStatus().GetState())
	s.batch("a")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	m, err = s.Recv()
	require.NoError(t, err)
	require.Equal(t, pluginv1.SinkState_SINK_STATE_OK, m.GetStatus().GetState())
	s.stop()
	got, _ := s.outcomes()
	require.Equal(t, map[uint64]string{1: "acked"}, got)
}

package natstest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
)

func TestMain(m *testing.M) {
	natstest.RunChild()
	os.Exit(m.Run())
}

func TestRestartKeepsPortAndStreams(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	url := s.URL()
	js := s.JetStream()
	natstest.Stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	_, err := js.Publish(t.Context(), "s", []byte("x"))
	require.NoError(t, err)
	s.Stop()
	s.Start()
	require.Equal(t, url, s.URL())
	require.Len(t, natstest.Messages(t, js, "S"), 1)
}

func TestChildSurvivesSIGKILL(t *testing.T) {
	t.Parallel()
	c := natstest.StartChild(t, "")
	js := natstest.JetStream(t, c.URL())
	natstest.Stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	_, err := js.Publish(t.Context(), "s", []byte("x"))
	require.NoError(t, err)
	c.Kill()
	c.Start()
	require.Len(t, natstest.Messages(t, js, "S"), 1)
}

func TestAuthenticationIsDemanded(t *testing.T) {
	t.Parallel()
	seed, public := natstest.NewNkey(t)
	require.NotEmpty(t, seed)
	ca := natstest.NewCA(t)
	for name, option := range map[string]natstest.Option{
		"users": natstest.Users(&server.User{Username: "u", Password: "p"}),
		"token": natstest.Token("t"),
		"nkey":  natstest.Nkeys(public),
		"creds": natstest.NewOperator(t).Option(),
		"tls":   ca.TLS(false),
		"mtls":  ca.TLS(true),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t, option)
			_, err := nats.Connect(s.URL(), nats.Timeout(5*time.Second))
			require.Error(t, err)
		})
	}
}

func TestClusterHasALeader(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	js := natstest.JetStream(t, c.URL())
	natstest.Stream(t, js, jetstream.StreamConfig{Name: "R", Subjects: []string{"r"}, Replicas: 3})
	c.Leader(js, "R").Kill()
	natstest.Eventually(t, "publish after the leader's death", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		_, err := js.Publish(ctx, "r", nil, jetstream.WithMsgID("1"), jetstream.WithRetryAttempts(0))
		return err
	})
	require.Len(t, natstest.Messages(t, js, "R"), 1)
}

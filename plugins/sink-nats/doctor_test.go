package main

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/sdk"
)

func codes(t *testing.T, c Config, to string) map[string]sdk.Finding {
	t.Helper()
	require.NoError(t, c.Validate())
	found, err := check(t.Context(), c, sdk.CheckRequest{Instance: sdk.Instance{Pipeline: "p", Name: "s"}, ConstantDestination: to})
	require.NoError(t, err)
	all := map[string]sdk.Finding{}
	for _, f := range found {
		all[f.Code] = f
		require.NotEmpty(t, f.Message)
		if f.Severity != sdk.OK {
			require.NotEmpty(t, f.Hint, f.Code)
		}
	}
	return all
}

// Each finding is made, and gone when its cause is.
func TestDoctorFindings(t *testing.T) {
	t.Parallel()
	good := func() jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: "ORDERS", Subjects: []string{"orders.>"}, AllowAtomicPublish: true, Duplicates: 2 * time.Minute, Discard: jetstream.DiscardNew,
		}
	}
	for code, c := range map[string]struct {
		change   func(*jetstream.StreamConfig)
		config   func(*Config)
		severity sdk.Severity
	}{
		"memory_storage":         {func(s *jetstream.StreamConfig) { s.Storage = jetstream.MemoryStorage }, nil, sdk.Warning},
		"duplicate_window_short": {func(s *jetstream.StreamConfig) { s.Duplicates = 10 * time.Second }, nil, sdk.Warning},
		"discard_old":            {func(s *jetstream.StreamConfig) { s.Discard, s.MaxMsgs = jetstream.DiscardOld, 10 }, nil, sdk.Warning},
		"no_interest":            {func(s *jetstream.StreamConfig) { s.Retention = jetstream.InterestPolicy }, nil, sdk.Warning},
		"max_msg_size_small":     {func(s *jetstream.StreamConfig) { s.MaxMsgSize = 1000 }, nil, sdk.Warning},
		"batches_off":            {func(s *jetstream.StreamConfig) { s.AllowAtomicPublish = false }, nil, sdk.OK},
		"batches_disabled":       {func(s *jetstream.StreamConfig) { s.AllowAtomicPublish = false }, func(c *Config) { c.Publish = publishBatch }, sdk.Problem},
		"subject_not_captured":   {func(s *jetstream.StreamConfig) { s.Subjects = []string{"elsewhere"} }, nil, sdk.Problem},
		"stream_no_ack":          {func(s *jetstream.StreamConfig) { s.NoAck, s.AllowAtomicPublish = true, false }, nil, sdk.Problem},
		"stream_missing":         {func(s *jetstream.StreamConfig) { s.Name = "OTHER" }, nil, sdk.Problem},
		"stream_to_create": {
			func(s *jetstream.StreamConfig) { s.Name, s.Subjects = "OTHER", []string{"other"} },
			func(c *Config) { c.CreateStream = &CreateStream{Subjects: []string{"orders.>"}} }, sdk.OK,
		},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t)
			js := s.JetStream()
			stream := good()
			c.change(&stream)
			natstest.Stream(t, js, stream)
			conf := config(s.URL(), func(c *Config) { c.Stream = "ORDERS" })
			if c.config != nil {
				c.config(&conf)
			}
			found := codes(t, conf, "orders.created")
			require.Contains(t, found, code)
			require.Equal(t, c.severity, found[code].Severity)

			require.NoError(t, js.DeleteStream(t.Context(), stream.Name))
			natstest.Stream(t, js, good())
			require.NotContains(t, codes(t, conf, "orders.created"), code)
		})
	}
}

func TestDoctorOfAGoodStream(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js := s.JetStream()
	orders(t, js)
	var heard []*nats.Msg
	sub, err := js.Conn().Subscribe("orders.>", func(m *nats.Msg) { heard = append(heard, m) })
	require.NoError(t, err)
	require.NoError(t, js.Conn().Flush())
	found := codes(t, config(s.URL()), "orders.created")
	for _, code := range []string{"connected", "max_payload", "stream", "batches", "may_publish", "one_replica"} {
		require.Contains(t, found, code)
	}
	require.Equal(t, sdk.Warning, found["one_replica"].Severity)
	require.Contains(t, found["one_replica"].Message, "two minutes")
	// Nothing was published: not to the stream, and not to a plain subscriber.
	require.NoError(t, js.Conn().Flush())
	require.NoError(t, sub.Drain())
	require.Empty(t, natstest.Messages(t, js, "ORDERS"))
	require.Empty(t, heard)
}

func TestDoctorOfPermissions(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.Users(&server.User{
		Username: "u", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"orders.secret"}},
		},
	}, &server.User{
		Username: "narrow", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{"orders.>"}},
		},
	}, &server.User{Username: "admin", Password: "p"}))
	orders(t, s.JetStream(natsUser("admin", "p")))
	login := func(user, password sdk.Secret) Config {
		return config(s.URL(), func(c *Config) { c.Auth = &Auth{User: string(user), Password: password} })
	}
	require.Contains(t, codes(t, login("u", "p"), "orders.created"), "may_publish")
	denied := codes(t, login("u", "p"), "orders.secret")
	require.Equal(t, sdk.Problem, denied["publish_denied"].Severity)
	require.Contains(t, codes(t, login("u", "p"), ""), "publish_unchecked")

	wrong := codes(t, login("u", "x"), "orders.created")
	require.Equal(t, "/auth", wrong["auth_failed"].Path)
	narrow := codes(t, login("narrow", "p"), "orders.created")
	require.Equal(t, sdk.Warning, narrow["api_denied"].Severity)
	require.Contains(t, narrow, "may_publish")
}

func TestDoctorOfServers(t *testing.T) {
	t.Parallel()
	small := natstest.Start(t, natstest.With(func(o *server.Options) { o.MaxPayload = 5000 }))
	require.Contains(t, codes(t, config(small.URL()), ""), "max_payload_small")
	require.Contains(t, codes(t, config(small.URL()), "orders.created"), "no_stream")
	off := natstest.Start(t, natstest.With(func(o *server.Options) { o.JetStream = false }))
	require.Contains(t, codes(t, config(off.URL()), "orders.created"), "jetstream_unavailable")
	url := off.URL()
	off.Stop()
	require.Equal(t, "/servers", codes(t, config(url), "")["unreachable"].Path)
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/sdk"
)

func file(t *testing.T, content string) sdk.Secret {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(content+"\n"), 0o600))
	return sdk.Secret(path)
}

// damage changes one letter of a seed, so that its checksum can never hold.
func damage(seed string) string {
	other := "A"
	if seed[10] == 'A' {
		other = "B"
	}
	return seed[:10] + other + seed[11:]
}

// Every way to log in, at a server that demands it, and with a wrong secret.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	seed, public := natstest.NewNkey(t)
	otherSeed, _ := natstest.NewNkey(t)
	op, otherOp := natstest.NewOperator(t), natstest.NewOperator(t)
	creds := string(op.Creds(0))
	ca, otherCA := natstest.NewCA(t), natstest.NewCA(t)
	client, stranger := ca.Issue("client"), otherCA.Issue("client")
	certFile, keyFile := client.Files(t)

	users := natstest.Users(&server.User{Username: "u", Password: "p"})
	token := natstest.Token("tok")
	nkey := natstest.Nkeys(public)
	kinds := map[string]struct {
		server natstest.Option
		auth   *Auth
		tls    *TLS
		code   string // "": it works
		hint   string
	}{
		"password":              {users, &Auth{User: "u", Password: "p"}, nil, "", ""},
		"password wrong":        {users, &Auth{User: "u", Password: "x"}, nil, "auth_failed", "auth.password"},
		"password missing":      {users, nil, nil, "auth_failed", "set auth"},
		"token":                 {token, &Auth{Token: "tok"}, nil, "", ""},
		"token wrong":           {token, &Auth{Token: "x"}, nil, "auth_failed", "auth.token"},
		"nkey":                  {nkey, &Auth{Nkey: sdk.Secret(seed)}, nil, "", ""},
		"nkey file":             {nkey, &Auth{Nkey: file(t, seed)}, nil, "", ""},
		"nkey wrong":            {nkey, &Auth{Nkey: sdk.Secret(otherSeed)}, nil, "auth_failed", "auth.nkey"},
		"nkey damaged":          {nkey, &Auth{Nkey: sdk.Secret(damage(seed))}, nil, "credentials_unreadable", "auth.nkey"},
		"nkey file missing":     {nkey, &Auth{Nkey: "/nowhere/nkey"}, nil, "credentials_unreadable", "auth.nkey"},
		"creds":                 {op.Option(), &Auth{Creds: sdk.Secret(creds)}, nil, "", ""},
		"creds file":            {op.Option(), &Auth{Creds: file(t, creds)}, nil, "", ""},
		"creds of other":        {op.Option(), &Auth{Creds: sdk.Secret(otherOp.Creds(0))}, nil, "auth_failed", "auth.creds"},
		"creds file missing":    {op.Option(), &Auth{Creds: "/nowhere/creds"}, nil, "credentials_unreadable", "auth.creds"},
		"tls":                   {ca.TLS(false), nil, &TLS{CA: string(ca.PEM())}, "", ""},
		"tls system roots":      {ca.TLS(false), nil, &TLS{}, "tls_unknown_ca", "tls.ca"},
		"tls other ca":          {ca.TLS(false), nil, &TLS{CA: string(otherCA.PEM())}, "tls_unknown_ca", "tls.ca"},
		"tls server name":       {ca.TLS(false), nil, &TLS{CA: string(ca.PEM()), ServerName: "localhost"}, "", ""},
		"tls wrong server name": {ca.TLS(false), nil, &TLS{CA: string(ca.PEM()), ServerName: "example.org"}, "tls_server_name", "tls.server_name"},
		"tls unverified":        {ca.TLS(false), nil, &TLS{InsecureSkipVerify: true}, "", ""},
		"tls at a plain server": {users, &Auth{User: "u", Password: "p"}, &TLS{}, "tls_not_offered", "remove tls"},
		"mtls":                  {ca.TLS(true), nil, &TLS{CA: string(ca.PEM()), Cert: string(client.CertPEM), Key: sdk.Secret(client.KeyPEM)}, "", ""},
		"mtls files":            {ca.TLS(true), nil, &TLS{CA: string(ca.PEM()), Cert: certFile, Key: sdk.Secret(keyFile)}, "", ""},
		"mtls without cert":     {ca.TLS(true), nil, &TLS{CA: string(ca.PEM())}, "tls_refused", "tls.cert"},
		"mtls stranger":         {ca.TLS(true), nil, &TLS{CA: string(ca.PEM()), Cert: string(stranger.CertPEM), Key: sdk.Secret(stranger.KeyPEM)}, "tls_refused", "tls.cert"},
	}
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t, k.server)
			c := config(s.URL(), func(c *Config) {
				c.Auth, c.TLS = k.auth, k.tls
				c.Stream, c.CreateStream = "ORDERS", &CreateStream{Subjects: []string{"orders.>"}}
			})
			if k.code == "" {
				h := openSink(t, c, "orders.created")
				h.add(event("k", 1, "orders.created"))
				h.waitAcked(1)
				require.NoError(t, h.stop())
				return
			}
			e := requireClass(t, startSink(t, c, "orders.created").ended(), sdk.ClassConfig, k.code)
			require.Contains(t, e.Hint, k.hint)
			for _, secret := range secrets(k.auth) {
				require.NotContains(t, e.Error()+e.Hint, secret, "I9")
			}
		})
	}
}

func secrets(a *Auth) []string {
	if a == nil {
		return nil
	}
	var all []string
	for _, s := range []sdk.Secret{a.Password, a.Token, a.Nkey, a.Creds} {
		if len(s) > 1 { // a password of one letter occurs in any text
			all = append(all, s.Reveal())
		}
	}
	return all
}

// The user is revoked while the sink runs: it says so, keeps everything, and goes on when the user is back.
func TestRevokedUserComesBack(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.Users(&server.User{Username: "u", Password: "p"}, &server.User{Username: "admin", Password: "a"}))
	js := s.JetStream(nats.UserInfo("admin", "a"))
	orders(t, js)
	h := openSink(t, config(s.URL(), func(c *Config) { c.Auth = &Auth{User: "u", Password: "p"} }), "orders.created")
	all := events(3, 10, "orders.created")
	h.add(all[:15]...)
	h.waitAcked(15)
	s.Reload(natstest.Users(&server.User{Username: "admin", Password: "a"}))
	h.wait("the reason", func() bool {
		st := h.statusLocked()
		return st.State == sdk.SinkDown && strings.Contains(st.Text, "auth.password")
	})
	h.add(all[15:]...)
	s.Reload(natstest.Users(&server.User{Username: "u", Password: "p"}, &server.User{Username: "admin", Password: "a"}))
	h.waitAcked(len(all))
	require.NoError(t, h.stop())
	require.Empty(t, h.failed())
	require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))
}

// A credentials file is read again at each connect: a new one takes over when the old one runs out.
func TestRotatedCredentials(t *testing.T) {
	t.Parallel()
	op := natstest.NewOperator(t)
	s := natstest.Start(t, op.Option())
	path := string(file(t, string(op.Creds(3*time.Second))))
	h := openSink(t, config(s.URL(), func(c *Config) {
		c.Auth = &Auth{Creds: sdk.Secret(path)}
		c.Stream, c.CreateStream = "ORDERS", &CreateStream{Subjects: []string{"orders.>"}}
	}), "orders.created")
	h.add(event("k", 1, "orders.created"))
	h.waitAcked(1)
	require.NoError(t, os.WriteFile(path, op.Creds(0), 0o600))
	h.wait("a reconnect", func() bool {
		for _, m := range h.statusLocked().Metrics {
			if m.Name == "reconnects_total" {
				return m.Value > 0
			}
		}
		return false
	})
	h.add(event("k", 2, "orders.created"))
	h.waitAcked(2)
	require.NoError(t, h.stop())
}

// The server is not there yet: the sink says so, and opens when it is.
func TestServerComesLate(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	url := s.URL()
	orders(t, s.JetStream())
	s.Stop()
	h := startSink(t, config(url), "orders.created")
	h.waitState(sdk.SinkDown)
	require.Contains(t, h.lastStatus().Text, "check servers")
	s.Start()
	<-h.opened
}

func TestStopWhileConnecting(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	url := s.URL()
	s.Stop()
	h := startSink(t, config(url), "orders.created")
	h.waitState(sdk.SinkDown)
	require.NoError(t, h.stop())
}

// JetStream that is off is an outage, not a fault of the configuration: servers start that way.
func TestJetStreamNotThere(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, natstest.With(func(o *server.Options) { o.JetStream = false }))
	h := startSink(t, config(s.URL()), "orders.created")
	h.waitState(sdk.SinkDown)
	require.Contains(t, h.lastStatus().Text, "JetStream")
}

// A user who may publish to the subject and nothing else: no API, single messages, and acks all the same.
func TestUserWithoutTheAPI(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"orders.created", ""} {
		t.Run("to="+to, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t, natstest.Users(&server.User{Username: "admin", Password: "a"}, &server.User{
				Username: "u", Password: "p", Permissions: &server.Permissions{
					Publish:   &server.SubjectPermission{Allow: []string{"orders.>"}},
					Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_u.>"}},
				},
			}))
			js := s.JetStream(nats.UserInfo("admin", "a"))
			orders(t, js)
			c := config(s.URL(), func(c *Config) { c.Auth, c.InboxPrefix = &Auth{User: "u", Password: "p"}, "_INBOX_u" })
			h := openSink(t, c, to)
			all := events(5, 20, "orders.created")
			h.add(all...)
			h.waitAcked(len(all))
			require.NoError(t, h.stop())
			require.Equal(t, len(all), requireStream(t, js, "ORDERS", all))

			c.InboxPrefix = "_INBOX"
			requireClass(t, startSink(t, c, to).ended(), sdk.ClassConfig, "inbox_denied")
		})
	}
}

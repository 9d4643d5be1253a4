package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/sdk"
)

func encodePEM(w io.Writer, c *x509.Certificate) error {
	return pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ config, fault string }{
		{`{}`, "/url: is required"},
		{`{"url": "s3cret"}`, "/url: neither http:// nor https://"},
		{`{"url": "http://s3cret\u0000"}`, "/url: not an address"},
		{`{"url": "http:///s3cret"}`, "/url: no host"},
		{`{"url": "http://user:s3cret@host/"}`, "/url: user and password go under auth"},
		{`{"url": "http://host/#s3cret"}`, "/url: a fragment (#…) is never sent"},
		{`{"url": "http://h", "timeout": "1ms"}`, "/timeout: 1ms is less than 10ms"},
		{`{"url": "http://h", "concurrency": 0}`, "/concurrency: 0 is not between 1 and 256"},
		{`{"url": "http://h", "concurrency": 257}`, "/concurrency: 257 is not between 1 and 256"},
		{`{"url": "http://h", "auth": {}}`, "/auth: one of user and token is needed"},
		{`{"url": "http://h", "auth": {"user": "u", "token": "s3cret"}}`, "/auth: one of user and token is needed"},
		{`{"url": "http://h", "auth": {"token": "t", "password": "s3cret"}}`, "/auth: password needs user"},
		{`{"url": "http://h", "auth": {"user": "u:v"}}`, "/auth/user: a user name for basic authentication has no colon"},
		{`{"url": "http://h", "auth": {"token": "s3\ncret"}}`, "/auth/token: has a character that no header can carry"},
		{`{"url": "http://h", "headers": {"a b": "s3cret"}}`, `/headers: "a b": no name of a header`},
		{`{"url": "http://h", "headers": {"host": "s3cret"}}`, `/headers: "host": belongs to HTTP itself`},
		{`{"url": "http://h", "headers": {"x": "s3\ncret"}}`, `/headers: "x": its value has a character that no header can carry`},
		{`{"url": "http://h", "token": "s3cret"}`, `/token: unknown key`},
	} {
		_, err := sdk.DecodeConfig([]byte(c.config), DefaultConfig)
		require.EqualError(t, err, c.fault, c.config)
		require.NotContains(t, err.Error(), "s3cret")
	}
	c, err := sdk.DecodeConfig([]byte(`{"url": "https://h/x?y=1", "timeout": "2s"}`), DefaultConfig)
	require.NoError(t, err)
	require.Equal(t, 16, c.Concurrency)
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	got := post(t, item(), func(c *Config) { c.Auth = &Auth{User: "Aladdin", Password: "open sesame"} })
	require.Equal(t, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", got.header.Get("Authorization"), "the example of RFC 7617")
}

func TestCA(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.pem")
	for _, ca := range []string{file, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		_, err := newWriter(Config{URL: "https://h", TLS: &TLS{CA: ca}}, sdk.Instance{})
		requireClass(t, err, sdk.ClassConfig, "tls_ca_unreadable")
	}
	require.NoError(t, os.WriteFile(file, []byte("no certificate"), 0o600))
	_, err := newWriter(Config{URL: "https://h", TLS: &TLS{CA: file}}, sdk.Instance{})
	requireClass(t, err, sdk.ClassConfig, "tls_ca_unreadable")
}

// I9: what a configuration prints as.
func TestSecretsAreMasked(t *testing.T) {
	t.Parallel()
	c := Config{URL: "http://h/s3cret", Headers: map[string]sdk.Secret{"X": "s3cret"}, Auth: &Auth{Password: "s3cret", Token: "s3cret"}}
	b, err := json.Marshal(c)
	require.NoError(t, err)
	require.NotContains(t, string(b), "s3cret")
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	var method string
	for code, want := range map[int]sdk.Finding{
		200: {Severity: sdk.OK, Code: "receiver_answers", Path: "/url"},
		404: {Severity: sdk.OK, Code: "receiver_answers", Path: "/url"},
		405: {Severity: sdk.OK, Code: "receiver_answers", Path: "/url"},
		401: {Severity: sdk.Problem, Code: "auth_failed", Path: "/auth"},
		308: {Severity: sdk.Problem, Code: "redirected", Path: "/url"},
	} {
		rc := startReceiver(t, func(_ int, w http.ResponseWriter, r received) { method = r.method; w.WriteHeader(code) })
		c := DefaultConfig()
		c.URL = sdk.Secret(rc.URL)
		f, err := check(t.Context(), c, sdk.CheckRequest{ConstantDestination: "/events"})
		require.NoError(t, err)
		require.Len(t, f, 1)
		require.NotEmpty(t, f[0].Message)
		f[0].Message, f[0].Hint = "", ""
		require.Equal(t, want, f[0], "%d", code)
		require.Equal(t, http.MethodHead, method, "nothing is published")
		require.Equal(t, "/events", rc.requests()[0].uri)

		rc.Close()
		f, err = check(t.Context(), c, sdk.CheckRequest{})
		require.NoError(t, err)
		require.Equal(t, "unreachable", f[0].Code)
	}
}

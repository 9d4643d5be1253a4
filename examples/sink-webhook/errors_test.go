package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/sdk"
)

// Every status there is, and some that are none.
func TestStatuses(t *testing.T) {
	t.Parallel()
	rc := startReceiver(t, func(_ int, w http.ResponseWriter, r received) {
		var code int
		_, _ = fmt.Sscanf(r.uri, "/%d", &code)
		w.WriteHeader(code)
	})
	special := map[int]struct {
		class sdk.Class
		code  string
	}{
		401: {sdk.ClassConfig, "auth_failed"}, 402: {sdk.ClassConfig, "auth_failed"}, 403: {sdk.ClassConfig, "auth_failed"},
		404: {sdk.ClassConfig, "not_found"}, 405: {sdk.ClassConfig, "method_not_allowed"}, 407: {sdk.ClassConfig, "proxy_auth_failed"},
		408: {sdk.ClassTransient, "try_again"}, 409: {sdk.ClassTransient, "conflict"}, 410: {sdk.ClassConfig, "gone"},
		421: {sdk.ClassTransient, "try_again"}, 425: {sdk.ClassTransient, "try_again"}, 426: {sdk.ClassConfig, "method_not_allowed"},
		429: {sdk.ClassTransient, "throttled"},
	}
	w := newTestWriter(t, rc.URL)
	for code := 200; code < 700; code++ {
		err := w.Write(t.Context(), item(func(it *sdk.Item) { it.Destination = fmt.Sprintf("/%d", code) }))
		switch want, ok := special[code]; {
		case ok:
			requireClass(t, err, want.class, want.code)
		case code < 300:
			require.NoError(t, err)
		case code < 400:
			requireClass(t, err, sdk.ClassConfig, "redirected")
		case code < 500:
			requireClass(t, err, sdk.ClassPermanent, "refused")
		case code < 600:
			requireClass(t, err, sdk.ClassTransient, "server_error")
		default:
			requireClass(t, err, sdk.ClassTransient, "status_unknown")
		}
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	other := startReceiver(t, nil)
	for _, code := range []int{301, 302, 303, 307, 308} {
		rc := startReceiver(t, func(_ int, w http.ResponseWriter, r received) {
			w.Header().Set("Location", other.URL+r.uri+"/?token=t0ken-of-another")
			w.WriteHeader(code)
		})
		err := newTestWriter(t, rc.URL+"/s3cret-path").Write(t.Context(), item())
		e := requireClass(t, err, sdk.ClassConfig, "redirected")
		require.Contains(t, e.Hint, other.URL+"***/events/ directly", "where to, without what may be secret")
		require.NotContains(t, e.Hint, "s3cret")
		require.NotContains(t, e.Hint, "t0ken")
	}
	require.Empty(t, other.requests())
}

// The receiver's words help a person; its control characters, what is secret, and its length do not.
func TestAnswerInTheMessage(t *testing.T) {
	t.Parallel()
	rc := startReceiver(t, func(_ int, w http.ResponseWriter, r received) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = fmt.Fprintf(w, "quantity\r\n\x1b[31m\x00 is negative; you sent %s to %s%s",
			r.header.Get("Authorization"), r.uri, strings.Repeat("x", 500))
	})
	w := newTestWriter(t, rc.URL+"/s3cret-path", func(c *Config) { c.Auth = &Auth{Token: "t0ken"} })
	e := requireClass(t, w.Write(t.Context(), item()), sdk.ClassPermanent, "refused")
	require.Contains(t, e.Error(), `the receiver answers 422 Unprocessable Entity: "quantity [31m is negative; you sent *** to ***/eventsxxx`)
	require.Less(t, len(e.Error()), excerptBytes+100)
}

// An address may be the secret: no error of the client repeats it.
func TestErrorsDoNotRepeatTheAddress(t *testing.T) {
	t.Parallel()
	rc := startReceiver(t, nil)
	url := rc.URL
	rc.Close()
	err := newTestWriter(t, url+"/s3cret-path?key=s3cret-key").Write(t.Context(), item())
	e := requireClass(t, err, sdk.ClassTransient, "unreachable")
	require.Contains(t, e.Error(), "connection refused")
	require.NotContains(t, e.Error(), "s3cret")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	rc := &receiver{}
	rc.Server = httptest.NewUnstartedServer(rc)
	rc.Config.ErrorLog = quiet
	rc.StartTLS()
	t.Cleanup(rc.Close)
	trusted := func(c *Config) { c.TLS = &TLS{CA: pemOf(t, rc.Server)} }

	require.NoError(t, newTestWriter(t, rc.URL, trusted).Write(t.Context(), item()))
	require.NoError(t, newTestWriter(t, rc.URL, func(c *Config) { c.TLS = &TLS{InsecureSkipVerify: true} }).Write(t.Context(), item()))
	requireClass(t, newTestWriter(t, rc.URL).Write(t.Context(), item()), sdk.ClassConfig, "tls_unknown_ca")
	// The certificate of httptest is for 127.0.0.1 and example.com.
	name := strings.Replace(rc.URL, "127.0.0.1", "localhost", 1)
	requireClass(t, newTestWriter(t, name, trusted).Write(t.Context(), item()), sdk.ClassConfig, "tls_server_name")
	plain := startReceiver(t, nil)
	noTLS := strings.Replace(plain.URL, "http://", "https://", 1)
	requireClass(t, newTestWriter(t, noTLS).Write(t.Context(), item()), sdk.ClassConfig, "tls_not_offered")
	require.Len(t, rc.requests(), 2)
}

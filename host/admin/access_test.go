package admin

import (
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
)

func TestWhoMayReadTheAPI(t *testing.T) {
	t.Parallel()
	const good = "s3cret"
	for name, c := range map[string]struct {
		token, from, host, auth string
		header                  [2]string
		status                  int
		code                    string
	}{
		"this machine":                        {from: "127.0.0.1:5", host: "localhost:7070", status: 200},
		"this machine, any 127 address":       {from: "127.8.9.1:5", host: "127.8.9.1:7070", status: 200},
		"this machine, IPv6":                  {from: "[::1]:5", host: "[::1]:7070", status: 200},
		"this machine, IPv4 in IPv6":          {from: "[::ffff:127.0.0.1]:5", host: "127.0.0.1", status: 200},
		"this machine, IPv6 host, no port":    {from: "[::1]:5", host: "[::1]", status: 200},
		"this machine, sub-domain":            {from: "127.0.0.1:5", host: "relevo.localhost:7070", status: 200},
		"this machine, token configured":      {token: good, from: "127.0.0.1:5", host: "LOCALHOST.", status: 200},
		"this machine, wrong token all same":  {token: good, from: "127.0.0.1:5", host: "localhost", auth: "Bearer x", status: 200},
		"rebound name":                        {from: "127.0.0.1:5", host: "evil.example:7070", status: 403, code: "host_not_allowed"},
		"rebound name that looks right":       {from: "127.0.0.1:5", host: "localhost.evil.example", status: 403, code: "host_not_allowed"},
		"rebound name, address in front":      {from: "127.0.0.1:5", host: "127.0.0.1.nip.io", status: 403, code: "host_not_allowed"},
		"any name, token configured":          {token: good, from: "127.0.0.1:5", host: "relay.internal", status: 401, code: "token_missing"},
		"any name with the token":             {token: good, from: "127.0.0.1:5", host: "relay.internal", auth: "Bearer " + good, status: 200},
		"afar, none configured":               {from: "10.0.0.7:5", host: "10.0.0.1:7070", status: 403, code: "token_not_configured"},
		"afar, none configured, empty bearer": {from: "10.0.0.7:5", host: "10.0.0.1", auth: "Bearer ", status: 403, code: "token_not_configured"},
		"afar, claims to be localhost":        {from: "10.0.0.7:5", host: "localhost", status: 403, code: "token_not_configured"},
		"afar without":                        {token: good, from: "10.0.0.7:5", host: "relay", status: 401, code: "token_missing"},
		"afar with a wrong one":               {token: good, from: "10.0.0.7:5", host: "relay", auth: "Bearer s3cre", status: 401, code: "token_wrong"},
		"afar with an empty one":              {token: good, from: "10.0.0.7:5", host: "relay", auth: "Bearer ", status: 401, code: "token_wrong"},
		"afar with another scheme":            {token: good, from: "10.0.0.7:5", host: "relay", auth: "Basic " + good, status: 401, code: "token_missing"},
		"afar with it":                        {token: good, from: "10.0.0.7:5", host: "relay", auth: "Bearer " + good, status: 200},
		"afar with it, other case":            {token: good, from: "[fd00::1%eth0]:5", host: "relay", auth: "bearer  " + good, status: 200},
		"through a proxy here":                {from: "127.0.0.1:5", host: "localhost", header: [2]string{"X-Forwarded-For", "10.0.0.7"}, status: 403, code: "token_not_configured"},
		"through a standard proxy here":       {token: good, from: "127.0.0.1:5", host: "localhost", header: [2]string{"Forwarded", "for=10.0.0.7"}, status: 401, code: "token_missing"},
		"through a proxy here with it":        {token: good, from: "127.0.0.1:5", host: "x", header: [2]string{"Via", "1.1 p"}, auth: "Bearer " + good, status: 200},
		"no address":                          {from: "@", host: "localhost", status: 403, code: "token_not_configured"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := &stubSource{pipelines: []pipeline.Status{{Name: "orders"}}}
			h := routes(settings(src, c.token))
			for path, open := range map[string]bool{
				"/api/v1/pipelines": false, "/api/v1/pipelines/orders": false,
				"/": true, "/page.js": true, "/livez": true, "/metrics": true,
			} {
				r := httptest.NewRequest("GET", path, nil)
				r.RemoteAddr, r.Host = c.from, c.host
				if c.auth != "" {
					r.Header.Set("Authorization", c.auth)
				}
				if c.header[0] != "" {
					r.Header.Set(c.header[0], c.header[1])
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if open {
					require.Equal(t, 200, w.Code, path)
					continue
				}
				require.Equal(t, c.status, w.Code, "%s: %s", path, w.Body)
				require.Equal(t, c.status == 401, w.Header().Get("WWW-Authenticate") != "")
				if c.code == "" {
					continue
				}
				e := readError(t, w)
				require.Equal(t, c.code, e.Code)
				require.NotEmpty(t, e.Hint)
				require.NotContains(t, w.Body.String(), good, "I9")
				require.NotContains(t, w.Body.String(), "orders")
			}
		})
	}
}

func readError(t *testing.T, w *httptest.ResponseRecorder) apiError {
	t.Helper()
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	var body struct{ Error apiError }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body), w.Body.String())
	return body.Error
}

func TestWhatTheAPIDoesNotHave(t *testing.T) {
	t.Parallel()
	h := routes(settings(&stubSource{}, ""))
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/api/v1/pipelines/none", 404, "no_such_pipeline"},
		{"GET", "/api/v2/pipelines", 404, "no_such_path"},
		{"POST", "/api/v1/pipelines", 405, "method_not_allowed"},
		{"DELETE", "/api/v1/pipelines/none", 405, "method_not_allowed"},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		r.RemoteAddr, r.Host = "127.0.0.1:5", "localhost"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, c.status, w.Code, c.path)
		require.Equal(t, c.code, readError(t, w).Code)
	}
}

func TestNoPipelinesIsAnEmptyList(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest("GET", "/api/v1/pipelines", nil)
	r.RemoteAddr, r.Host = "127.0.0.1:5", "localhost"
	w := httptest.NewRecorder()
	routes(settings(&stubSource{}, "")).ServeHTTP(w, r)
	require.Equal(t, "[]\n", w.Body.String())
}

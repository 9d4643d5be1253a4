package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// guard lets requests from this machine through, and others that bring the token.
func guard(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, bears := bearer(r)
		switch {
		case token != "" && bears && equal(given, token):
			next.ServeHTTP(w, r)
		case fromThisMachine(r) && hostIsUs(r.Host):
			next.ServeHTTP(w, r)
		case token == "" && fromThisMachine(r):
			writeError(w, http.StatusForbidden, apiError{
				Code:    "host_not_allowed",
				Message: "without a token the API answers requests for an IP address or localhost only",
				Hint:    "use http://localhost or http://127.0.0.1",
			})
		case token == "":
			writeError(w, http.StatusForbidden, apiError{
				Code:    "token_not_configured",
				Message: "without a token the API answers this machine only",
				Hint:    "set token in relevo.yaml or RELEVO_TOKEN, and send it as \"Authorization: Bearer TOKEN\"",
			})
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="relevo"`)
			e := apiError{Code: "token_missing", Message: "the API needs the token", Hint: "send \"Authorization: Bearer TOKEN\""}
			if bears {
				e = apiError{Code: "token_wrong", Message: "this is not the token", Hint: "see token in relevo.yaml or RELEVO_TOKEN"}
			}
			writeError(w, http.StatusUnauthorized, e)
		}
	})
}

func bearer(r *http.Request) (token string, ok bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "Bearer")
}

// equal takes the same time whatever the two have in common, their length included.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// fromThisMachine reports whether the client is here. A reverse proxy on this machine also is, but whoever it speaks
// for is not: such a request counts as one from afar.
func fromThisMachine(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// hostIsUs defends against DNS rebinding: a web page anywhere can have its own name resolve to 127.0.0.1 and then read
// our answers in the browser of a person on this machine. Its requests carry that name.
func hostIsUs(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true // no name: HTTP/1.0, which no browser speaks
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// secureHeaders keeps browsers from showing our answers inside other pages, and our page from loading anything but
// itself.
func secureHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
			"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/relevo-io/relevo/sdk"
)

// maxConcurrency bounds `concurrency`.
const maxConcurrency = 256

// Config is what a user writes under `config` of a webhook sink.
type Config struct {
	// URL is a secret: many a webhook has no other.
	URL         sdk.Secret            `json:"url" jsonschema:"required" doc:"http:// or https:// address that the path in the sink's to is put behind. It may have a query, which goes with every request, and is never shown."`
	Headers     map[string]sdk.Secret `json:"headers,omitempty" doc:"Headers of every request. Defaults to none."`
	Auth        *Auth                 `json:"auth,omitempty" doc:"Who we are, in the header Authorization: user and password, or token. Absent: not said."`
	TLS         *TLS                  `json:"tls,omitempty" doc:"How to speak TLS with an https:// address. Absent: with the system's roots."`
	Timeout     sdk.Duration          `json:"timeout,omitempty" doc:"How long one request may take, its answer included; then the outcome is unknown and the event is posted again. At least 10ms. Defaults to 10s."`
	Concurrency int                   `json:"concurrency,omitempty" jsonschema:"minimum=1,maximum=256" doc:"Most requests at once. Two events of one key are never under way together. Defaults to 16."`
}

// Auth is one of the ways to log in.
type Auth struct {
	User     string     `json:"user,omitempty" doc:"User name, for basic authentication; with password."`
	Password sdk.Secret `json:"password,omitempty" doc:"Password of user."`
	Token    sdk.Secret `json:"token,omitempty" doc:"Bearer token."`
}

// TLS is whom to trust.
type TLS struct {
	CA                 string `json:"ca,omitempty" doc:"Certificates to trust instead of the system's: a file or PEM text."`
	InsecureSkipVerify bool   `json:"insecure_skip_verify,omitempty" doc:"Accept any certificate. For tests only: anybody in between can read and change everything."`
}

// DefaultConfig is a Config with every default set.
func DefaultConfig() Config {
	return Config{Timeout: sdk.Duration(10 * time.Second), Concurrency: 16}
}

// Validate reports every fault that a schema cannot express.
func (c Config) Validate() error {
	var faults []error
	fault := func(path, format string, a ...any) {
		faults = append(faults, &sdk.ConfigError{Path: path, Message: fmt.Sprintf(format, a...)})
	}
	if _, err := c.base(); err != nil {
		fault("/url", "%v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if err := validHeader(name, c.Headers[name].Reveal()); err != nil {
			fault("/headers", "%q: %v", name, err)
		}
	}
	if a := c.Auth; a != nil {
		if (a.User == "") == (a.Token == "") {
			fault("/auth", "one of user and token is needed")
		}
		if a.User == "" && a.Password != "" {
			fault("/auth", "password needs user")
		}
		if strings.Contains(a.User, ":") {
			fault("/auth/user", "a user name for basic authentication has no colon")
		}
		if !visible(a.Token.Reveal()) {
			fault("/auth/token", "has a character that no header can carry")
		}
	}
	if c.Timeout.Duration() < 10*time.Millisecond {
		fault("/timeout", "%v is less than 10ms", c.Timeout)
	}
	if c.Concurrency < 1 || c.Concurrency > maxConcurrency {
		fault("/concurrency", "%d is not between 1 and %d", c.Concurrency, maxConcurrency)
	}
	return errors.Join(faults...)
}

// base is the address that paths are put behind. I9: its errors say nothing of what was written.
func (c Config) base() (*url.URL, error) {
	u, err := url.Parse(c.URL.Reveal())
	switch {
	case err != nil:
		return nil, errors.New("not an address")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("neither http:// nor https://")
	case u.Host == "":
		return nil, errors.New("no host")
	case u.User != nil:
		return nil, errors.New("user and password go under auth")
	case u.Fragment != "":
		return nil, errors.New("a fragment (#…) is never sent")
	}
	return u, nil
}

// validHeader refuses what is no header, and what is HTTP's own.
func validHeader(name, value string) error {
	switch {
	case !token(name):
		return errors.New("no name of a header")
	case slices.Contains([]string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Trailer", "Te", "Upgrade"},
		http.CanonicalHeaderKey(name)):
		return errors.New("belongs to HTTP itself")
	case !visible(value):
		return errors.New("its value has a character that no header can carry")
	}
	return nil
}

// header is what every request has.
func (c Config) header() http.Header {
	h := http.Header{"User-Agent": {"relevo"}}
	if a := c.Auth; a != nil && a.Token != "" {
		h.Set("Authorization", "Bearer "+a.Token.Reveal())
	} else if a != nil {
		h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(a.User+":"+a.Password.Reveal())))
	}
	for name, value := range c.Headers {
		h.Set(name, value.Reveal())
	}
	return h
}

// mask replaces what is secret in the words of others: a receiver may repeat what it was sent (I9).
func (c Config) mask(base *url.URL) *strings.Replacer {
	secrets := []string{base.Path, base.EscapedPath(), base.RawQuery}
	if c.Auth != nil {
		secrets = append(secrets, c.Auth.Token.Reveal(), c.Auth.Password.Reveal())
	}
	for _, values := range c.header() {
		secrets = append(secrets, values...)
	}
	var pairs []string
	for _, s := range secrets {
		if len(s) >= 4 { // nothing shorter is a secret, and a path of "/" is in every answer
			pairs = append(pairs, s, "***")
		}
	}
	return strings.NewReplacer(pairs...)
}

// tlsConfig is nil for the defaults.
func (t *TLS) tlsConfig() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	c := &tls.Config{InsecureSkipVerify: t.InsecureSkipVerify} //nolint:gosec // the user asks for it by its name
	if t.CA == "" {
		return c, nil
	}
	text := []byte(t.CA)
	if block, _ := pem.Decode(text); block == nil {
		var err error
		if text, err = os.ReadFile(t.CA); err != nil {
			return nil, sdk.Config(fmt.Errorf("read tls.ca: %w", err)).WithCode("tls_ca_unreadable")
		}
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, sdk.Config(errors.New("tls.ca has no certificate")).WithCode("tls_ca_unreadable")
	}
	return c, nil
}

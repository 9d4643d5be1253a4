package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/relevo-io/relevo/sdk"
)

// Ways to publish.
const (
	publishAuto      = "auto"
	publishBatch     = "batch"
	publishKeySerial = "key_serial"
)

// Config is what a user writes under `config` of a nats sink.
type Config struct {
	// Servers are tried in random order.
	Servers []string `json:"servers" jsonschema:"required,minItems=1" jsonschema_description:"Addresses of the servers: nats://host:4222, tls://host:4222, or host:4222. Credentials go under auth, never here."`
	// Stream is the stream that must take every event.
	Stream string `json:"stream,omitempty" jsonschema_description:"Name of the stream that must take every event; checked against each confirmation of the server. Absent: whichever stream captures the subject."`
	// Auth says who we are.
	Auth *Auth `json:"auth,omitempty" jsonschema_description:"How to log in: user and password, or one of token, nkey, creds. Absent: not at all, or by the TLS certificate."`
	// TLS turns TLS on.
	TLS *TLS `json:"tls,omitempty" jsonschema_description:"Absent: off, or as the server's URL and the server itself say. {}: on, with the system's roots."`
	// CreateStream makes the stream where it is missing.
	CreateStream *CreateStream `json:"create_stream,omitempty" jsonschema_description:"Create the stream named by stream when it does not exist. An existing one is never changed. Absent: never create."`
	// Publish chooses between batches and single messages.
	Publish string `json:"publish,omitempty" jsonschema:"enum=auto,enum=batch,enum=key_serial" jsonschema_description:"auto: atomic batches where the stream allows them (allow_atomic, server 2.12 or later), else key_serial. batch: only atomic batches. key_serial: one message per key at a time, many keys side by side. Defaults to auto."`
	// AckTimeout is how long one confirmation may take.
	AckTimeout sdk.Duration `json:"ack_timeout,omitempty" jsonschema_description:"How long the server's confirmation of a message or batch may take before its outcome counts as unknown and it is sent again. At least 100ms. Defaults to 5s."`
	// InboxPrefix is where confirmations arrive.
	InboxPrefix string `json:"inbox_prefix,omitempty" jsonschema_description:"Subject prefix for the server's answers, for users who may not subscribe to _INBOX.>. Defaults to _INBOX."`
}

// Auth is one of the ways to log in.
type Auth struct {
	User     string     `json:"user,omitempty" jsonschema_description:"User name; with password."`
	Password sdk.Secret `json:"password,omitempty" jsonschema_description:"Password of user."`
	Token    sdk.Secret `json:"token,omitempty" jsonschema_description:"A token."`
	// Nkey and Creds take the secret itself, as ${file:…} and ${VAR} give it, or a path. Both are useful: text keeps every
	// secret under one mechanism, a path is read again at each connect, so that a rotated file is picked up. They cannot
	// be confused: a seed has a checksum, a credentials file its BEGIN line, and a path has neither.
	Nkey  sdk.Secret `json:"nkey,omitempty" jsonschema_description:"Seed of a user nkey (SU…), or the path of a file with it, which is read at each connect."`
	Creds sdk.Secret `json:"creds,omitempty" jsonschema_description:"Content of a credentials file (user JWT and seed), or its path, which is read at each connect."`
}

// TLS is how to speak TLS. Each of the three files may also be PEM text.
type TLS struct {
	CA                 string     `json:"ca,omitempty" jsonschema_description:"Certificates to trust instead of the system's: a file or PEM text."`
	Cert               string     `json:"cert,omitempty" jsonschema_description:"Client certificate: a file or PEM text; a file is read at each connect."`
	Key                sdk.Secret `json:"key,omitempty" jsonschema_description:"Key of the client certificate: a file or PEM text; a file is read at each connect."`
	ServerName         string     `json:"server_name,omitempty" jsonschema_description:"Name to expect in the server's certificate. Defaults to the host of its URL."`
	InsecureSkipVerify bool       `json:"insecure_skip_verify,omitempty" jsonschema_description:"Accept any server certificate. For tests only: anybody in between can read and change everything."`
}

// CreateStream is what a created stream looks like.
type CreateStream struct {
	Subjects        []string     `json:"subjects" jsonschema:"required,minItems=1" jsonschema_description:"Subjects that the stream captures, for example orders.>"`
	Replicas        int          `json:"replicas,omitempty" jsonschema:"minimum=1,maximum=5" jsonschema_description:"Copies in a cluster: 1, 3 or 5. Defaults to 1."`
	DuplicateWindow sdk.Duration `json:"duplicate_window,omitempty" jsonschema_description:"How long the stream remembers ids to drop repeats. Defaults to 2m."`
	AllowAtomic     *bool        `json:"allow_atomic,omitempty" jsonschema_description:"Allow atomic batches; needs server 2.12 or later. Defaults to true where the server has them."`
	MaxAge          sdk.Duration `json:"max_age,omitempty" jsonschema_description:"How long messages are kept. 0: for ever. Defaults to 0."`
	MaxBytes        sdk.Size     `json:"max_bytes,omitempty" jsonschema_description:"Most bytes that the stream keeps; when full it refuses new messages rather than losing old ones. 0: no limit. Defaults to 0."`
}

// DefaultConfig is a Config with every default set.
func DefaultConfig() Config {
	return Config{Publish: publishAuto, AckTimeout: sdk.Duration(5 * time.Second), InboxPrefix: "_INBOX"}
}

// Validate reports every fault that a schema cannot express.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, a ...any) { faults = append(faults, fmt.Errorf(format, a...)) }
	if len(c.Servers) == 0 {
		fault("servers: at least one is needed")
	}
	for i, s := range c.Servers {
		if err := validateServer(s); err != nil {
			fault("servers[%d]: %w", i, err)
		}
	}
	if strings.ContainsAny(c.Stream, " \t\r\n.*>/\\") {
		fault("stream: %q is not a stream name: no space, dot, wildcard or slash may be in it", c.Stream)
	}
	switch c.Publish {
	case publishAuto, publishBatch, publishKeySerial:
	default:
		fault("publish: %q is none of auto, batch, key_serial", c.Publish)
	}
	if time.Duration(c.AckTimeout) < 100*time.Millisecond {
		fault("ack_timeout: %v is less than 100ms", time.Duration(c.AckTimeout))
	}
	if err := validSubject(c.InboxPrefix); err != nil {
		fault("inbox_prefix: %w", err)
	}
	if c.CreateStream != nil && c.Stream == "" {
		fault("create_stream: needs stream, the name to create")
	}
	faults = append(faults, c.Auth.validate()...)
	if t := c.TLS; t != nil && (t.Cert == "") != (t.Key == "") {
		fault("tls: cert and key belong together")
	}
	return errors.Join(faults...)
}

func validateServer(s string) error {
	if strings.Contains(s, ",") {
		return errors.New("one address an entry, no commas")
	}
	if !strings.Contains(s, "://") {
		s = "nats://" + s
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		// Not the error itself: it repeats the text, and that may carry a password.
		return errors.New("not an address")
	case u.User != nil:
		return errors.New("credentials go under auth, where they are kept out of logs")
	case u.Host == "":
		return errors.New("no host")
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
		return nil
	}
	return fmt.Errorf("scheme %q is none of nats, tls, ws, wss", u.Scheme)
}

func (a *Auth) validate() []error {
	if a == nil {
		return nil
	}
	var faults []error
	kinds := 0
	for _, set := range []bool{a.User != "", a.Token != "", a.Nkey != "", a.Creds != ""} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds == 0 && a.Password != "":
		faults = append(faults, errors.New("auth: password needs user"))
	case kinds == 0:
		faults = append(faults, errors.New("auth: one of user, token, nkey, creds is needed"))
	case kinds > 1:
		faults = append(faults, errors.New("auth: user, token, nkey and creds exclude each other"))
	}
	return faults
}

// kind names the key of auth that is in use, for hints; "" where there is none.
func (a *Auth) kind() string {
	switch {
	case a == nil:
		return ""
	case a.User != "":
		return "auth.user and auth.password"
	case a.Token != "":
		return "auth.token"
	case a.Nkey != "":
		return "auth.nkey"
	case a.Creds != "":
		return "auth.creds"
	}
	return ""
}

// seed is the nkey's seed, read from its file where a path was given.
func (a *Auth) seed() ([]byte, error) {
	text := strings.TrimSpace(a.Nkey.Reveal())
	if _, err := nkeys.FromSeed([]byte(text)); err == nil {
		return []byte(text), nil
	}
	if strings.HasPrefix(text, "SU") && !strings.ContainsAny(text, "/.\\") {
		return nil, errors.New("nkey is damaged: its checksum does not fit")
	}
	b, err := readSecretFile(text)
	if err != nil {
		return nil, fmt.Errorf("read nkey: %w", err)
	}
	return []byte(strings.TrimSpace(string(b))), nil
}

// credentials is the content of the credentials file.
func (a *Auth) credentials() ([]byte, error) {
	text := a.Creds.Reveal()
	if strings.Contains(text, "-----BEGIN ") {
		return []byte(text), nil
	}
	b, err := readSecretFile(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("read creds: %w", err)
	}
	return b, nil
}

// pemOrFile returns PEM text as it is, and otherwise what is in the file of that name.
func pemOrFile(s string) ([]byte, error) {
	if block, _ := pem.Decode([]byte(s)); block != nil {
		return []byte(s), nil
	}
	return readSecretFile(s)
}

// readSecretFile keeps what may be a mistyped secret rather than a path out of the error (I9).
func readSecretFile(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return nil, fmt.Errorf("%s the file: %w", pe.Op, pe.Err)
	}
	return b, err
}

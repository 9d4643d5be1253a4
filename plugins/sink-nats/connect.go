package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/relevo-io/relevo/sdk"
)

const (
	// pingInterval and maxPings bound how long a connection that went silent is believed to be alive.
	pingInterval = 5 * time.Second
	maxPings     = 2
	// dialTimeout bounds one server's answer.
	dialTimeout = 5 * time.Second

	reconnectFirst = 50 * time.Millisecond
	reconnectMost  = 5 * time.Second
)

// link is a connection and what it reports by callbacks, collected for the engine, which looks when notify has something.
type link struct {
	nc     *nats.Conn
	notify chan struct{} // capacity 1: something below has changed

	mu          sync.Mutex
	disconnects uint64   // how often the connection was lost
	reconnects  uint64   // how often it came back
	denied      []string // subjects that we may not publish to, since the last look
	lastErr     error    // of the newest attempt to reconnect, or reported by the server
	closed      bool     // for good
}

// linkNews is what a link has to tell since the last look.
type linkNews struct {
	disconnects, reconnects uint64
	denied                  []string
	lastErr                 error
	closed                  bool
}

// dial connects to one of the servers, once. Its error has a class: what a person must change is CONFIG.
func dial(ctx context.Context, c Config, name string) (*link, error) {
	l := &link{notify: make(chan struct{}, 1)}
	options, err := c.options(ctx, l, name)
	if err != nil {
		return nil, err
	}
	l.nc, err = nats.Connect(strings.Join(c.Servers, ","), options...)
	if err != nil {
		return nil, connectError(err, c)
	}
	return l, nil
}

// Close closes the connection and waits until its goroutines have ended. Confirmations that have not come stay away:
// nats.go leaves its futures unresolved too, so nothing may wait for them after Close.
func (l *link) Close() { l.nc.Close() }

func (l *link) look() linkNews {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := linkNews{disconnects: l.disconnects, reconnects: l.reconnects, denied: l.denied, lastErr: l.lastErr, closed: l.closed}
	l.denied = nil
	return n
}

func (l *link) changed(f func()) {
	l.mu.Lock()
	f()
	l.mu.Unlock()
	select {
	case l.notify <- struct{}{}:
	default: // the engine has not looked yet; it will see this too
	}
}

// maxDenied bounds what the server can make us remember between two looks.
const maxDenied = 1024

// onError takes what the server reports beside its answers. A violation of permissions arrives nowhere else: the message
// is dropped without an answer.
func (l *link) onError(_ *nats.Conn, _ *nats.Subscription, err error) {
	subject, denied := deniedSubject(err)
	l.changed(func() {
		if denied && len(l.denied) < maxDenied {
			l.denied = append(l.denied, subject)
		}
		if !denied {
			l.lastErr = err
		}
	})
}

func (c Config) options(ctx context.Context, l *link, name string) ([]nats.Option, error) {
	options := []nats.Option{
		nats.Name(name),
		nats.Timeout(dialTimeout),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(maxPings),
		// A write to a server that does not read must end: the engine is the one who writes.
		nats.FlusherTimeout(min(time.Duration(c.AckTimeout), dialTimeout)), nats.ReconnectOnFlusherError(),
		// What is published while the connection is down must fail: a buffer would send it later, behind our back.
		nats.ReconnectBufSize(-1),
		nats.MaxReconnects(-1),
		// A revoked user may come back; the status says what is wrong meanwhile.
		nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.CustomInboxPrefix(c.InboxPrefix),
		nats.ErrorHandler(l.onError),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			l.changed(func() { l.disconnects++; l.lastErr = err })
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.changed(func() { l.lastErr = err }) }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			slog.InfoContext(ctx, "reconnected", "server", nc.ConnectedUrlRedacted())
			l.changed(func() { l.reconnects++; l.lastErr = nil })
		}),
		// Reconnecting has no end, but some errors of the server end a connection: a protocol error, a message over a limit
		// that was lowered.
		nats.ClosedHandler(func(nc *nats.Conn) {
			l.changed(func() { l.closed, l.lastErr = true, cmp.Or(nc.LastError(), l.lastErr) })
		}),
		nats.SetCustomDialer(dialer{ctx}),
	}
	auth, err := c.Auth.option()
	if err != nil {
		return nil, sdk.Config(err).WithCode("credentials_unreadable").WithHint("check " + c.Auth.kind())
	}
	if auth != nil {
		options = append(options, auth)
	}
	if c.TLS != nil {
		config, err := c.TLS.config()
		if err != nil {
			return nil, sdk.Config(err).WithCode("tls_unreadable").WithHint("check tls.ca, tls.cert and tls.key")
		}
		options = append(options, nats.Secure(config))
	}
	return options, nil
}

// reconnectDelay is asked after all servers of the list were tried.
func reconnectDelay(attempts int) time.Duration {
	d := reconnectMost
	if attempts < 8 {
		d = min(reconnectMost, reconnectFirst<<attempts)
	}
	return d/2 + rand.N(d/2+1)
}

func (a *Auth) option() (nats.Option, error) {
	switch {
	case a == nil:
		return nil, nil
	case a.User != "":
		return nats.UserInfo(a.User, a.Password.Reveal()), nil
	case a.Token != "":
		return nats.Token(a.Token.Reveal()), nil
	case a.Nkey != "":
		return a.nkeyOption()
	case a.Creds != "":
		return a.credsOption()
	}
	return nil, nil
}

func (a *Auth) nkeyOption() (nats.Option, error) {
	seed, err := a.seed()
	if err != nil {
		return nil, err
	}
	kp, err := nkeys.FromSeed(seed)
	if err != nil {
		return nil, fmt.Errorf("parse nkey: %w", err)
	}
	defer kp.Wipe()
	public, err := kp.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("parse nkey: %w", err)
	}
	return nats.Nkey(public, func(nonce []byte) ([]byte, error) {
		seed, err := a.seed()
		if err != nil {
			return nil, err
		}
		return sign(seed, nonce)
	}), nil
}

func (a *Auth) credsOption() (nats.Option, error) {
	creds, err := a.credentials()
	if err != nil {
		return nil, err
	}
	if _, err := nkeys.ParseDecoratedJWT(creds); err != nil {
		return nil, fmt.Errorf("parse creds: %w", err)
	}
	if _, err := nkeys.ParseDecoratedNKey(creds); err != nil {
		return nil, fmt.Errorf("parse creds: %w", err)
	}
	return nats.UserJWT(func() (string, error) {
		creds, err := a.credentials()
		if err != nil {
			return "", err
		}
		return nkeys.ParseDecoratedJWT(creds)
	}, func(nonce []byte) ([]byte, error) {
		creds, err := a.credentials()
		if err != nil {
			return nil, err
		}
		kp, err := nkeys.ParseDecoratedNKey(creds)
		if err != nil {
			return nil, err
		}
		defer kp.Wipe()
		return kp.Sign(nonce)
	}), nil
}

func sign(seed, nonce []byte) ([]byte, error) {
	kp, err := nkeys.FromSeed(seed)
	if err != nil {
		return nil, err
	}
	defer kp.Wipe()
	return kp.Sign(nonce)
}

func (t *TLS) config() (*tls.Config, error) {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify, // the user's explicit wish
	}
	if t.CA != "" {
		ca, err := pemOrFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("read tls.ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("tls.ca has no certificate")
		}
	}
	if t.Cert != "" {
		if _, err := t.pair(); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return t.pair() }
	}
	return config, nil
}

func (t *TLS) pair() (*tls.Certificate, error) {
	cert, err := pemOrFile(t.Cert)
	if err != nil {
		return nil, fmt.Errorf("read tls.cert: %w", err)
	}
	key, err := pemOrFile(t.Key.Reveal())
	if err != nil {
		return nil, fmt.Errorf("read tls.key: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("load the client certificate: %w", err)
	}
	return &pair, nil
}

package natstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// Users has the server demand a user and password.
func Users(users ...*server.User) Option { return func(o *server.Options) { o.Users = users } }

// Token has the server demand a token.
func Token(token string) Option { return func(o *server.Options) { o.Authorization = token } }

// Nkeys has the server demand one of these nkeys (their public halves).
func Nkeys(public ...string) Option {
	return func(o *server.Options) {
		for _, p := range public {
			o.Nkeys = append(o.Nkeys, &server.NkeyUser{Nkey: p})
		}
	}
}

// NewNkey makes the seed of a user and its public half.
func NewNkey(t TB) (seed, public string) {
	t.Helper()
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatalf("make an nkey: %v", err)
	}
	return seedOf(t, kp), publicOf(t, kp)
}

// Operator signs accounts and users, as decentralised authentication wants it: one account APP with JetStream.
type Operator struct {
	t       TB
	account nkeys.KeyPair
	option  Option
}

// NewOperator makes an operator with its account.
func NewOperator(t TB) *Operator {
	t.Helper()
	op, app, sys := pair(t, nkeys.CreateOperator), pair(t, nkeys.CreateAccount), pair(t, nkeys.CreateAccount)
	oc := jwt.NewOperatorClaims(publicOf(t, op))
	oc.Name, oc.SystemAccount = "OP", publicOf(t, sys)
	ojwt, err := oc.Encode(op)
	if err != nil {
		t.Fatalf("sign the operator: %v", err)
	}
	trusted, err := jwt.DecodeOperatorClaims(ojwt)
	if err != nil {
		t.Fatalf("read the operator: %v", err)
	}
	ac := jwt.NewAccountClaims(publicOf(t, app))
	ac.Name = "APP"
	ac.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	sc := jwt.NewAccountClaims(publicOf(t, sys))
	sc.Name = "SYS"
	resolver := &server.MemAccResolver{}
	for _, c := range []*jwt.AccountClaims{ac, sc} {
		token, err := c.Encode(op)
		if err != nil {
			t.Fatalf("sign account %s: %v", c.Name, err)
		}
		if err := resolver.Store(c.Subject, token); err != nil {
			t.Fatalf("store account %s: %v", c.Name, err)
		}
	}
	return &Operator{t: t, account: app, option: func(o *server.Options) {
		o.TrustedOperators = []*jwt.OperatorClaims{trusted}
		o.AccountResolver, o.SystemAccount = resolver, publicOf(t, sys)
	}}
}

// Option has the server trust this operator and nobody else.
func (o *Operator) Option() Option { return o.option }

// Creds makes the content of a credentials file for a new user. Zero lifetime: it does not expire.
func (o *Operator) Creds(lifetime time.Duration) []byte {
	o.t.Helper()
	user := pair(o.t, nkeys.CreateUser)
	c := jwt.NewUserClaims(publicOf(o.t, user))
	if lifetime > 0 {
		c.Expires = time.Now().Add(lifetime).Unix()
	}
	token, err := c.Encode(o.account)
	if err != nil {
		o.t.Fatalf("sign a user: %v", err)
	}
	creds, err := jwt.FormatUserConfig(token, []byte(seedOf(o.t, user)))
	if err != nil {
		o.t.Fatalf("format credentials: %v", err)
	}
	return creds
}

// CA is a certificate authority that nobody but the test trusts.
type CA struct {
	t    TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	next int64
}

// Cert is a certificate with its key, as PEM text.
type Cert struct{ CertPEM, KeyPEM []byte }

// NewCA makes an authority.
func NewCA(t TB) *CA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("make a key: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "natstest CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatalf("make the CA: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("parse the CA: %v", err)
	}
	return &CA{t: t, cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), next: 2}
}

// PEM is the authority's own certificate.
func (c *CA) PEM() []byte { return c.pem }

// Issue makes a certificate for servers and clients at once. Names that parse as IP addresses become such.
func (c *CA) Issue(names ...string) Cert {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatalf("make a key: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(c.next), Subject: pkix.Name{CommonName: names[0]},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	c.next++
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, key.Public(), c.key)
	if err != nil {
		c.t.Fatalf("make a certificate: %v", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatalf("encode a key: %v", err)
	}
	return Cert{
		CertPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
}

// Files writes the certificate and its key and returns their paths.
func (c Cert) Files(t TB) (cert, key string) {
	t.Helper()
	dir := Dir(t)
	return write(t, dir, "cert.pem", c.CertPEM), write(t, dir, "key.pem", c.KeyPEM)
}

// TLS has the server speak TLS with a certificate for 127.0.0.1 and localhost; verify demands a client's certificate of
// the same authority.
func (c *CA) TLS(verify bool) Option {
	c.t.Helper()
	issued := c.Issue("localhost", "127.0.0.1")
	pair, err := tls.X509KeyPair(issued.CertPEM, issued.KeyPEM)
	if err != nil {
		c.t.Fatalf("load a certificate: %v", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if verify {
		config.ClientCAs, config.ClientAuth = c.Pool(), tls.RequireAndVerifyClientCert
	}
	return func(o *server.Options) { o.TLS, o.TLSConfig, o.TLSTimeout = true, config, patience.Seconds() }
}

// Pool is the authority as roots of trust.
func (c *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.cert)
	return pool
}

func pair(t TB, create func() (nkeys.KeyPair, error)) nkeys.KeyPair {
	t.Helper()
	kp, err := create()
	if err != nil {
		t.Fatalf("make an nkey: %v", err)
	}
	return kp
}

func publicOf(t TB, kp nkeys.KeyPair) string {
	t.Helper()
	p, err := kp.PublicKey()
	if err != nil {
		t.Fatalf("read a public nkey: %v", err)
	}
	return p
}

func seedOf(t TB, kp nkeys.KeyPair) string {
	t.Helper()
	s, err := kp.Seed()
	if err != nil {
		t.Fatalf("read an nkey's seed: %v", err)
	}
	return string(s)
}

func port(n int) string { return strconv.Itoa(n) }

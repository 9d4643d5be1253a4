package pgtest

import (
	"context"
	"testing"

	"github.com/relevo-io/relevo/internal/pgserver"
)

// Options of a private server.
type Options struct {
	Settings map[string]string // of postgresql.conf, over the defaults of pgserver
	HBA      []string          // lines of pg_hba.conf before the one that trusts everybody
	Version  int               // major; 0: whatever is there
}

// Shutdown modes for Postgres.Stop.
const (
	Smart     = pgserver.Smart
	Fast      = pgserver.Fast
	Immediate = pgserver.Immediate
)

// Postgres is a private server. Its methods fail the test rather than return errors.
type Postgres struct {
	t testing.TB
	s *pgserver.Server
}

// Start starts a server for this test alone, which ends with it. It takes some 80 ms, the first one of a test binary half
// a second more.
func Start(t testing.TB, o Options) *Postgres {
	t.Helper()
	skipShort(t)
	bin, err := pgserver.Find(o.Version)
	if err != nil {
		unavailable(t, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	s, err := pgserver.Start(ctx, pgserver.Options{Binaries: bin, Settings: o.Settings, HBA: o.HBA})
	if err != nil {
		t.Fatalf("start a private server: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the private server:\n%s", s.Log())
		}
		if err := s.Close(); err != nil {
			t.Errorf("close the private server: %v", err)
		}
	})
	return &Postgres{t: t, s: s}
}

// DSN of the superuser, in database postgres. It stays the same over restarts.
func (p *Postgres) DSN() string { return p.s.DSN() }

// Addr is host:port, for a proxy in front of it.
func (p *Postgres) Addr() string { return p.s.Addr() }

// Version is the major version of the server.
func (p *Postgres) Version() int { return p.s.Version() }

// PID is the postmaster's; 0 when it is stopped.
func (p *Postgres) PID() int { return p.s.PID() }

// Log is what the server has written.
func (p *Postgres) Log() string { return p.s.Log() }

// Stop shuts the server down and waits for its end.
func (p *Postgres) Stop(mode pgserver.StopMode) {
	p.t.Helper()
	p.must("stop", p.s.Stop(mode))
}

// Crash kills all its processes at once.
func (p *Postgres) Crash() {
	p.t.Helper()
	p.must("crash", p.s.Crash())
}

// Freeze stops all its processes where they are: it is there and answers nothing. New sessions are not answered either.
func (p *Postgres) Freeze() {
	p.t.Helper()
	p.must("freeze", p.s.Freeze())
}

// Thaw undoes Freeze.
func (p *Postgres) Thaw() {
	p.t.Helper()
	p.must("thaw", p.s.Thaw())
}

// Restart starts it again, on the same port and data; a running one is stopped first (Fast).
func (p *Postgres) Restart() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	p.must("restart", p.s.Restart(ctx))
}

func (p *Postgres) must(what string, err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%s the private server: %v", what, err)
	}
}

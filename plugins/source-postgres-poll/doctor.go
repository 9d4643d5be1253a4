package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// checkTimeout bounds one look at the server.
const checkTimeout = 20 * time.Second

// doctorSettings are those of the session that looks: it can change nothing, waits for nobody, and one expensive look
// does not take the time of all others.
var doctorSettings = [][2]string{
	{"default_transaction_read_only", "on"},
	{"statement_timeout", "4s"},
	{"lock_timeout", "1s"},
	{"idle_session_timeout", "30s"},
}

// check looks at the server and the table for relevo doctor. It changes nothing, and takes no lock that anybody waits for.
func check(ctx context.Context, c config, r sdk.CheckRequest) ([]sdk.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	d := doctor{c: c, longOpen: longOpen, stored: r.Position}
	if err := d.look(ctx, r.Instance.Pipeline); err != nil {
		e := classify(err)
		d.add(sdk.Finding{Severity: sdk.Problem, Code: e.Code, Path: "/dsn", Message: e.Error(), Hint: e.Hint})
	}
	return d.findings, nil
}

// doctor collects findings. What is as it should be is told once for each look, what is wrong with the SQL that mends it.
type doctor struct {
	c         config
	longOpen  time.Duration // see horizon
	stored    []byte        // the position; nil: none
	s         *session
	t         *outbox.Table
	m         outbox.Mapping
	l         *outbox.Layout // nil: the columns could not be bound
	unordered bool           // no index yields rows in order
	findings  []sdk.Finding
}

func (d *doctor) add(f sdk.Finding) { d.findings = append(d.findings, f) }

func (d *doctor) ok(code, format string, a ...any) {
	d.add(sdk.Finding{Severity: sdk.OK, Code: code, Message: fmt.Sprintf(format, a...)})
}

// aspect is one thing to look at.
type aspect struct {
	what string
	look func(context.Context) error
}

// look goes from the outside in. An error ends it: what comes behind cannot be seen.
func (d *doctor) look(ctx context.Context, pipeline string) error {
	var err error
	if d.s, err = dial(ctx, d.c, pipeline, "doctor"); err != nil {
		return err
	}
	defer d.s.close()
	d.version(d.s.version)
	if d.s.standby {
		return errStandbyServer
	}
	if err := d.sessions(ctx, pipeline); err != nil {
		return err
	}
	if err := d.s.setUp(ctx, doctorSettings); err != nil {
		return err
	}
	d.encryption()
	if err := d.each(ctx, []aspect{
		{"synchronous_commit", d.durability},
		{"the standbys", d.standbys},
		{"the connections", d.connections},
	}); err != nil {
		return err
	}
	if ok, err := d.table(ctx); err != nil || !ok {
		return err
	}
	if err := d.each(ctx, []aspect{
		{"autovacuum", d.vacuum},
		{"triggers and rules", d.hooks},
		{"foreign keys", d.foreignKeys},
		{"publications", d.publications},
		{"partitions", d.partitions},
		{"open transactions", d.horizon},
	}); err != nil {
		return err
	}
	if ok, err := d.layout(ctx); err != nil || !ok {
		return err
	}
	return d.each(ctx, []aspect{
		{"the order column", d.order},
		{"the plans", d.plans},
		{"the indexes", d.indexes},
		{"retention", d.retention},
		{"the backlog", d.backlog},
		{"the leader", d.leader},
	})
}

// each looks at one thing after the other. What the server refuses to show, or does not show in time, is a finding of
// its own; without the server there is nothing more to see.
func (d *doctor) each(ctx context.Context, aspects []aspect) error {
	for _, a := range aspects {
		err := a.look(ctx)
		switch _, reported := errors.AsType[*pgconn.PgError](err); {
		case err == nil:
		case reported && !d.s.conn.IsClosed():
			d.add(sdk.Finding{
				Severity: sdk.Warning, Code: "not_looked_at", Message: fmt.Sprintf("could not look at %s: %s", a.what, err),
				Hint: "run relevo doctor again, with another role or when the server has less to do",
			})
		default:
			return err
		}
	}
	return nil
}

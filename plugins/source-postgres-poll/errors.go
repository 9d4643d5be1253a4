package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// codeCanceled is the SQLSTATE of a statement that was stopped: by statement_timeout, or on request.
const codeCanceled = "57014"

var (
	errUnlockedElsewhere = errors.New("the advisory lock was not ours when it was given back")
	errHostSilent        = fmt.Errorf("the host has given no sign of life for %s", hostSilence)
	errStandbyServer     = errors.New("the server is a read-only standby")
	errStillPending      = errors.New("published rows are still pending after they were marked")
)

// again reports whether a statement may simply be tried once more in the same session: it met somebody else, and nothing
// of it took effect.
func again(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch e.Code {
	case "40P01", // deadlock: with the service's own work on the table; one of the two had to give way
		"55P03",      // lock_timeout: DDL or LOCK TABLE holds the table, for longer than 5 s
		codeCanceled: // statement_timeout, or somebody's pg_cancel_backend
		return true
	}
	return false
}

func isCode(err error, code string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == code
}

// classify turns an error of the driver into what the host is told: one branch for each cause.
func classify(err error) *sdk.Error {
	if e, ok := errors.AsType[*sdk.Error](err); ok {
		return e
	}
	if p, ok := errors.AsType[*outbox.Problem](err); ok {
		return p.Config()
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return classifyState(err, e)
	}
	switch {
	case errors.Is(err, errPooled):
		// Advisory locks belong to a session. Behind a transaction pooler the lock stays with a process that serves others,
		// and everybody waits for it, or nobody does.
		return sdk.Config(err).WithCode("pooler_transaction_mode").
			WithHint("point dsn at the server itself, or at a pool in session mode")
	case errors.Is(err, errUnlockedElsewhere):
		return sdk.Config(err).WithCode("pooler_transaction_mode").
			WithHint("point dsn at the server itself, or at a pool in session mode")
	case errors.Is(err, errHostSilent):
		// It is frozen, or its machine is. The lock is free; another relay may have it.
		return sdk.Transient(err).WithCode("host_silent")
	case errors.Is(err, errStandbyServer):
		// After a fail-over the name may point here for a while; a multi-host DSN finds the primary by itself.
		return sdk.Transient(err).WithCode("read_only_server").
			WithHint("point dsn at the primary; with several hosts in it the writable one is chosen")
	case errors.Is(err, errStillPending):
		// They would be read and published again and again.
		return sdk.Config(err).WithCode("set_keeps_pending").
			WithHint("what after_publish sets must make the condition in pending false, for example published_at: now() with pending: published_at IS NULL")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return sdk.Transient(err).WithCode("canceled")
	}
	// Everything else is the network: refused, reset, timed out, name not found. All of it may pass.
	return sdk.Transient(err).WithCode("connection_lost").WithHint("check that the server runs, and host and port in dsn")
}

// classifyState decides by SQLSTATE. err is what was being done.
func classifyState(err error, e *pgconn.PgError) *sdk.Error {
	switch e.Code {
	case "28P01", "28000":
		// Wrong password, or pg_hba.conf has no line for us. Only a person can mend either.
		return sdk.Config(err).WithCode("login_refused").WithHint("check user and password, and the server's pg_hba.conf")
	case "3D000":
		// The database in the DSN is not there.
		return sdk.Config(err).WithCode("database_missing").WithHint("check the database name in dsn")
	case "42501":
		// A right is missing: on the schema, the table, or to set a parameter; or row security would hide rows.
		return sdk.Config(err).WithCode("privilege_missing").WithHint("run relevo doctor: it prints the GRANT")
	case "42P01", "3F000":
		// Dropped or renamed under us. The next start says what is there instead.
		return sdk.Config(err).WithCode("table_missing").WithHint("run relevo doctor")
	case "42703":
		// Renamed under us, or the condition in `pending` names a column that is not there.
		return sdk.Config(err).WithCode("column_missing").WithHint("check columns and pending; run relevo doctor")
	case "42704", "42883", "42804", "42601", "42702", "22P02", "22007", "42P02", "42803":
		// The only SQL that is not ours is in `pending` and `after_publish`.
		return sdk.Config(err).WithCode("sql_refused").
			WithHint("check pending, which must be a condition on the columns of the table, and the expressions in after_publish")
	case "23502", "23503", "23505", "23514", "23P01", "22001", "22003", "428C9":
		// A constraint does not let published rows be marked, or deleted: a foreign key of another table, a CHECK, NOT NULL,
		// a generated column.
		return sdk.Config(err).WithCode("constraint_violated").
			WithHint("published rows cannot be marked or deleted: check after_publish and the constraints on the table")
	case "0A000":
		// A prepared statement whose result changed with the table: a new session parses it anew.
		return sdk.Transient(err).WithCode("table_changed")
	case "22023", "42602":
		// A session setting that this server does not take.
		return sdk.Config(err).WithCode("setting_refused").WithHint("PostgreSQL 14 to 18 are supported; a pooler may have changed the session")
	case "08P01", "26000", "42P05":
		// Prepared statements that are there already, or not there: a pooler gave us somebody else's process.
		return sdk.Config(err).WithCode("pooler_statements").
			WithHint("set exec_mode: exec, and use a pool in session mode")
	case "25006":
		// A standby, also one that was the primary a moment ago. Opened again, the connection may find the new one.
		return sdk.Transient(err).WithCode("read_only_server").WithHint("point dsn at the primary")
	case "40001":
		// Cannot happen in READ COMMITTED, which is set: something changed it.
		return sdk.Config(err).WithCode("isolation_changed").WithHint("a pooler or a trigger changes the isolation level: it must be read committed")
	case "53300", "53400":
		// Too many connections. They come and go.
		return sdk.Transient(err).WithCode("too_many_connections").WithHint("raise max_connections, or use a pool in session mode")
	case "53100", "53200":
		// Disk full, out of memory: the server's own trouble.
		return sdk.Transient(err).WithCode("server_out_of_resources")
	case "57P01", "57P02", "57P03", "57P04":
		// Shutting down, crashed, starting up, database dropped: it will be back.
		return sdk.Transient(err).WithCode("server_shutdown")
	case "57P05":
		// idle_session_timeout: we were frozen for 7 s. The lock is free; another relay may have it.
		return sdk.Transient(err).WithCode("lock_lost")
	}
	if strings.HasPrefix(e.Code, "08") {
		return sdk.Transient(err).WithCode("connection_lost")
	}
	return sdk.Transient(err).WithCode("sql_" + strings.ToLower(e.Code))
}

// lost marks the loss of one of the two sessions. Whatever the cause, the attempt is over: with the reader's session the
// lock is gone.
func lost(err error, code string) error {
	c := classify(err)
	if c.Class == sdk.ClassTransient && c.Code == "connection_lost" {
		c = sdk.Transient(fmt.Errorf("lost the session: %w", err)).WithCode(code)
	}
	return c
}

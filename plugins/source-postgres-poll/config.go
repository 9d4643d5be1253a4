package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// config is what a user writes under source.config.
type config struct {
	DSN          sdk.Secret          `json:"dsn" jsonschema:"required" doc:"The database: a URL (postgres://user@host/db) or keywords (host=… dbname=…), with libpq's parameters such as sslmode. Not a transaction pooler."`
	Password     sdk.Secret          `json:"password,omitempty" doc:"The password, where it is not in dsn. Taken as it is, not URL-encoded."`
	Table        string              `json:"table,omitempty" doc:"The outbox table, schema.table or table. Names are taken exactly as written; double quotes only around a name with a dot in it. Defaults to public.outbox."`
	Preset       string              `json:"preset,omitempty" jsonschema:"enum=debezium" doc:"A ready mapping of columns; columns overrides single ones. debezium: id, aggregateid, aggregatetype, type, payload. Defaults to none: id, aggregate_id, type, payload."`
	Columns      *outbox.Columns     `json:"columns,omitempty" doc:"Which column is what, where the table is not the default one. Needs after_publish."`
	Pending      string              `json:"pending,omitempty" doc:"An SQL condition on the row: only these are published. Needs after_publish. Defaults to none: every row."`
	AfterPublish outbox.AfterPublish `json:"after_publish,omitzero" doc:"What happens to a row once its event has reached every broker. delete: it is deleted. {set: {column: expression}}: it is updated, so that pending does not hold any more. keep: it stays, and the relay's position tells what was published; needs columns.tx and columns.order. Defaults to delete for the default table and for presets; must be written with columns or pending."`
	Backlog      string              `json:"backlog,omitempty" jsonschema:"enum=publish,enum=skip" doc:"With after_publish: keep, what a pipeline without a position begins with. publish: every row in the table. skip: what commits from then on. Defaults to publish."`
	AcceptGap    string              `json:"accept_gap,omitempty" doc:"With after_publish: keep, the word that the error position_gap prints: the stored position is dropped, and the pipeline begins as backlog says. It counts for that one gap only. Defaults to none."`
	Retention    *retention          `json:"retention,omitempty" doc:"Takes away what was published long ago: marked rows one by one, or whole partitions, which it also makes ahead. Defaults to none: nothing is taken away, but what after_publish says."`
	Sharing      string              `json:"sharing,omitempty" jsonschema:"enum=leader,enum=buckets" doc:"How several relays on one outbox share it. leader: one reads, the others stand by and take over. buckets: each reads a part of the keys, 64 parts in all; none of them stands by idle. All must have the same value. Defaults to leader."`
	Batch        int                 `json:"batch,omitempty" jsonschema:"minimum=1,maximum=10000" doc:"The most rows of one read and one delete. A read never waits to fill it. Defaults to 1000."`
	PollInterval sdk.Duration        `json:"poll_interval,omitempty" doc:"The longest wait between reads while nothing comes; it is 5 ms while something does. At most 10s. Defaults to 250ms."`
	ExecMode     string              `json:"exec_mode,omitempty" jsonschema:"enum=exec,enum=prepared" doc:"How statements are sent. exec: without names, which every pooler in session mode takes. prepared: parsed once for each connection, a little less work for the server. Defaults to exec."`
}

const (
	sharingLeader  = "leader"
	sharingBuckets = "buckets"
	execUnnamed    = "exec"
	execPrepared   = "prepared"
)

func defaultConfig() config {
	return config{
		Table:        "public.outbox",
		Sharing:      sharingLeader,
		Batch:        1000,
		PollInterval: sdk.Duration(250 * time.Millisecond),
		ExecMode:     execUnnamed,
	}
}

const (
	maxBatch = 10_000
	// maxPollInterval keeps the oldest event's age and the sweep honest.
	maxPollInterval = 10 * time.Second
)

// Validate says what the schema cannot, and says some of it in better words.
func (c config) Validate() error {
	var errs []error
	fail := func(path, format string, a ...any) {
		errs = append(errs, &sdk.ConfigError{Path: path, Message: fmt.Sprintf(format, a...)})
	}
	if c.DSN == "" {
		fail("/dsn", "is missing")
	} else if _, err := c.conn("", ""); err != nil {
		fail("/dsn", "%s", err)
	}
	if _, err := outbox.ParseName(c.Table); err != nil {
		fail("/table", "%s", err)
	}
	if _, err := outbox.Map(c.Preset, c.Columns); err != nil {
		if p, ok := errors.AsType[*outbox.Problem](err); ok {
			fail(p.Path, "%s: %s", p.Message, p.Hint)
		} else {
			fail("/columns", "%s", err)
		}
	}
	c.validateAfter(fail)
	c.validateKept(fail)
	c.validateRetention(fail)
	if c.Sharing != sharingLeader && c.Sharing != sharingBuckets {
		fail("/sharing", "%q is neither leader nor buckets", c.Sharing)
	}
	if c.Batch < 1 || c.Batch > maxBatch {
		fail("/batch", "%d is not within 1 and %d", c.Batch, maxBatch)
	}
	if d := time.Duration(c.PollInterval); d < pollMin || d > maxPollInterval {
		fail("/poll_interval", "%s is not within %s and %s", d, pollMin, maxPollInterval)
	}
	if c.ExecMode != execUnnamed && c.ExecMode != execPrepared {
		fail("/exec_mode", "%q is neither exec nor prepared", c.ExecMode)
	}
	return errors.Join(errs...)
}

// after is what happens to published rows: what is written, or the default.
func (c config) after() string {
	if c.AfterPublish.Do == "" {
		return outbox.AfterDelete
	}
	return c.AfterPublish.Do
}

func (c config) validateAfter(fail func(path, format string, a ...any)) {
	switch c.AfterPublish.Do {
	case "":
		if c.Columns != nil && c.Preset == "" || c.Pending != "" {
			fail("/after_publish", "must be written with columns or pending: it says what happens to published rows (delete, keep, or {set: {…}})")
		}
	case outbox.AfterDelete, outbox.AfterKeep:
	case outbox.AfterSet:
		if c.Pending == "" {
			fail("/pending", "is missing: with after_publish set it says which rows are not published yet, for example published_at IS NULL")
		}
		for _, column := range c.AfterPublish.Columns() {
			if strings.TrimSpace(c.AfterPublish.Set[column]) == "" {
				fail("/after_publish/set/"+column, "is empty; write an SQL expression, for example now()")
			}
		}
	default:
		fail("/after_publish", "%q is neither delete, keep nor {set: {…}}", c.AfterPublish.Do)
	}
}

// conn are the settings of a connection for one pipeline. role is what the database's monitoring shows behind the name.
func (c config) conn(pipeline, role string) (*pgx.ConnConfig, error) {
	cc, err := pgx.ParseConfig(c.DSN.Reveal())
	if err != nil {
		return nil, dsnError(err)
	}
	if c.Password != "" {
		cc.Password = c.Password.Reveal()
	}
	cc.RuntimeParams["application_name"] = "relevo/" + pipeline + "/" + role
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	cc.StatementCacheCapacity, cc.DescriptionCacheCapacity = 0, 0
	if cc.ConnectTimeout == 0 || cc.ConnectTimeout > connectTimeout {
		cc.ConnectTimeout = connectTimeout
	}
	if len(cc.Fallbacks) > 0 && cc.ValidateConnect == nil {
		// Several hosts are one primary and its standbys: rows can be deleted at the primary only.
		cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return cc, nil
}

// dsnError is the fault without the DSN: the driver's text quotes it, and a password that stands at the wrong place in it
// (I9).
func dsnError(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p // a certificate or a service file
	}
	return errors.New("cannot be read as a URL or as keyword=value pairs")
}

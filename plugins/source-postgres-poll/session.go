package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Time-outs of sessions.
const (
	connectTimeout   = 10 * time.Second
	statementTimeout = 30 * time.Second
	lockTimeout      = 5 * time.Second
	// answerTimeout ends a session whose server does not answer at all, where statement_timeout would have ended the
	// statement.
	answerTimeout = statementTimeout + 10*time.Second
	closeTimeout  = 2 * time.Second
)

// settings are those of both sessions. What a role or a database may have set otherwise and would change what the relay
// does is written out; so is what its statements rely on.
var settings = [][2]string{
	{"statement_timeout", "30s"},
	{"lock_timeout", "5s"},
	{"idle_in_transaction_session_timeout", "30s"},
	// A host that vanishes is noticed after 8 s: keep-alives alone leave an answer that nobody acknowledges, and the
	// advisory lock with it, for more than 45 s; by default for two hours. Without effect on unix sockets.
	{"tcp_keepalives_idle", "2"},
	{"tcp_keepalives_interval", "2"},
	{"tcp_keepalives_count", "3"},
	{"tcp_user_timeout", "8000"},
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"row_security", "off"}, // an error is better than rows that silently are not there
	{"plan_cache_mode", "force_custom_plan"},
	// Statistics of an outbox are mostly of an empty table. Plans that pass all of it, or sort all of it, must never look
	// cheap; with them disabled their price is so high that it would start the compiler.
	{"enable_seqscan", "off"},
	{"max_parallel_workers_per_gather", "0"}, // starting workers takes longer than a read
	{"enable_bitmapscan", "off"},
	{"enable_hashjoin", "off"},
	{"enable_mergejoin", "off"},
	{"jit", "off"},
	{"DateStyle", "ISO, YMD"}, // texts of values go back in deletes
	{"IntervalStyle", "postgres"},
	{"bytea_output", "hex"},
}

// readerSettings are those of the session that holds the lock and reads.
var readerSettings = [][2]string{
	// A frozen host goes on answering keep-alives. Its session ends here, and the lock goes to a standby: between two
	// reads, and between two steps of one.
	{"idle_session_timeout", "7s"},
	{"idle_in_transaction_session_timeout", "7s"},
}

// removerSettings are those of the session that deletes or marks.
var removerSettings = [][2]string{
	{"idle_session_timeout", "0"},
	// A delete that is lost is a duplicate, so nobody need wait for a replica. With off, a server that crashes in a full
	// drain would bring back more than a window; a flush for each batch costs nothing.
	{"synchronous_commit", "local"},
}

// session is one plain connection. Not safe for concurrent use.
type session struct {
	conn     *pgx.Conn
	prepared map[string]string // SQL → name; nil: nothing is prepared
	backend  int32             // pid of the server's process
	version  int               // major
	standby  bool              // in recovery
}

// connect opens a session. A pooler refuses parameters at the start that it does not know, so they are set afterwards.
func connect(ctx context.Context, c config, pipeline, role string, own [][2]string) (*session, error) {
	s, err := dial(ctx, c, pipeline, role)
	if err != nil {
		return nil, err
	}
	if err := s.setUp(ctx, own); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// dial is connect without any settings.
func dial(ctx context.Context, c config, pipeline, role string) (*session, error) {
	cc, err := c.conn(pipeline, role)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn}
	if c.ExecMode == execPrepared {
		s.prepared = map[string]string{}
	}
	if err := s.identify(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *session) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var num int
	err := s.conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('server_version_num')::pg_catalog.int4`).
		Scan(&s.backend, &s.standby, &num)
	if err != nil {
		return fmt.Errorf("look at the server: %w", err)
	}
	s.version = num / 10_000
	return nil
}

func (s *session) setUp(ctx context.Context, own [][2]string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var b pgx.Batch
	for _, list := range [][][2]string{settings, own} {
		for _, kv := range list {
			b.Queue(`SELECT pg_catalog.set_config($1, $2, false)`, kv[0], kv[1])
		}
	}
	// Whatever the search path is, functions and operators are the system's own. Conditions that a user wrote find theirs.
	b.Queue(`SELECT pg_catalog.set_config('search_path', CASE WHEN pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.=) ''
		THEN 'pg_catalog' ELSE pg_catalog.concat('pg_catalog, ', pg_catalog.current_setting('search_path')) END, false)`)
	if err := s.conn.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("set up the session: %w", err)
	}
	return nil
}

// close ends the session, and with it what it holds.
func (s *session) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = s.conn.Close(ctx) // there is nothing left to lose in it
}

// statement is one SQL statement with its parameters in text form.
type statement struct {
	sql     string
	params  [][]byte
	formats []int16 // of results
	limit   int     // the most rows it returns; 0: not known
}

// snapshot is what the server said just before a read.
type snapshot struct {
	xmin uint64    // of a snapshot taken before the read's own
	now  time.Time // the server's clock
}

var snapshotStatement = statement{
	sql:     `SELECT pg_backend_pid(), pg_snapshot_xmin(pg_current_snapshot()), clock_timestamp()`,
	formats: []int16{1, 1, 1},
}

var (
	errPooled    = errors.New("the server's process behind the connection has changed: a pooler gives each transaction another one")
	errBadAnswer = errors.New("server answered out of turn")
)

// read runs a query through a portal, in steps: it asks step how many rows to fetch next (0: enough) and calls row for
// each; once row has returned false, what is left of the step is dropped and the portal closed. So a thousand rows of
// 5 MB need not pass to find that the first one fills the window. done says that the query had no more rows.
//
// One round trip brings the snapshot, too. Its xmin is that of an earlier snapshot than the query's, which is on the
// safe side: xmin never falls.
func (s *session) read(ctx context.Context, q statement, step func() int, row func(values [][]byte) bool) (snap snapshot, done bool, err error) {
	err = s.guard(ctx, func(pc *pgconn.PgConn) error {
		n := step()
		p := portal{s: s, pc: pc, single: q.limit > 0 && n >= q.limit}
		p.begin()
		p.bind(snapshotStatement)
		p.fe().SendExecute(&pgproto3.Execute{})
		p.bind(q)
		p.execute(n)
		if err := p.first(func(values [][]byte) error {
			snap, err = s.snapshot(values)
			return err
		}); err != nil {
			return p.fail(err)
		}
		for {
			more, err := p.rows(row)
			if err != nil {
				return p.fail(err)
			}
			n = 0
			if more && !p.dropping {
				n = step()
			}
			if n == 0 {
				done = !more && !p.dropping
				return p.end()
			}
			p.execute(n)
		}
	})
	return snap, done, err
}

func (s *session) snapshot(values [][]byte) (snapshot, error) {
	if len(values) != 3 || len(values[0]) != 4 || len(values[1]) != 8 || len(values[2]) != 8 {
		return snapshot{}, errBadAnswer
	}
	if int32(binary.BigEndian.Uint32(values[0])) != s.backend {
		return snapshot{}, errPooled
	}
	const epoch = 946684800_000_000 // 2000-01-01 in microseconds since 1970
	return snapshot{
		xmin: binary.BigEndian.Uint64(values[1]),
		now:  time.UnixMicro(int64(binary.BigEndian.Uint64(values[2])) + epoch),
	}, nil
}

// guard runs f with the connection's deadline: answerTimeout from now, or the end of ctx. After anything but an error
// that the server reported and survived, the session is closed.
func (s *session) guard(ctx context.Context, f func(pc *pgconn.PgConn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	pc := s.conn.PgConn()
	nc := pc.Conn()
	if err := nc.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		s.close()
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	err := f(pc)
	if !stop() { // the deadline has been moved, or is about to be: the connection can't be used again
		s.close()
		return context.Cause(ctx)
	}
	if _, reported := errors.AsType[*pgconn.PgError](err); err != nil && (!reported || s.conn.IsClosed()) {
		s.close()
		return err
	}
	if e := nc.SetDeadline(time.Time{}); e != nil && err == nil {
		s.close()
		err = e
	}
	return err
}

// removal is what a statement that removes rows did.
type removal struct {
	rows int64  // that it found
	left int64  // of those: still pending, because what is set does not make the condition false
	xid  uint64 // of its transaction
}

// remove runs a DELETE, or an UPDATE that returns two counts. Statements between two syncs are one transaction, so its id
// costs no round trip.
func (s *session) remove(ctx context.Context, q statement) (removal, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	p := s.conn.PgConn().StartPipeline(ctx)
	p.SendQueryParams(q.sql, q.params, nil, nil, q.formats)
	p.SendQueryParams(`SELECT pg_current_xact_id()`, nil, nil, nil, []int16{1})
	if err := p.Sync(); err != nil {
		return removal{}, errors.Join(err, p.Close())
	}
	var done removal
	for i := range 2 {
		res, err := p.GetResults()
		if err != nil {
			_ = p.Close()
			return removal{}, err
		}
		r, ok := res.(*pgconn.ResultReader)
		if !ok {
			_ = p.Close()
			return removal{}, errBadAnswer
		}
		got := r.Read()
		if got.Err != nil {
			_ = p.Close()
			return removal{}, got.Err
		}
		switch n := int64s(got.Rows); {
		case i == 0 && len(n) == 2:
			done.rows, done.left = n[0], n[1]
		case i == 0:
			done.rows = got.CommandTag.RowsAffected()
		case len(n) == 1:
			done.xid = uint64(n[0])
		}
	}
	// The commit is answered by the sync: only now has the statement taken effect.
	if err := p.Close(); err != nil {
		return removal{}, err
	}
	if done.xid == 0 {
		return removal{}, errBadAnswer
	}
	return done, nil
}

// int64s are the values of a result of one row; all of them are 64-bit integers.
func int64s(rows [][][]byte) []int64 {
	if len(rows) != 1 {
		return nil
	}
	n := make([]int64, len(rows[0]))
	for i, v := range rows[0] {
		if len(v) != 8 {
			return nil
		}
		n[i] = int64(binary.BigEndian.Uint64(v))
	}
	return n
}

// ping asks the server for a sign of life.
func (s *session) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout*2)
	defer cancel()
	_, err := s.conn.Exec(ctx, `SELECT 1`)
	return err
}

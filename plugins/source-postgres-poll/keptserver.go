package main

import (
	"context"
	"fmt"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
)

// keptServer is what a position can be understood with.
type keptServer struct {
	base      position // its system, timeline, database and table
	moment             // when the session began
	started   time.Time
	recovered uint64 // up to where WAL was replayed before the server became what it is; 0: not known
}

// identify asks what a position here belongs to. The name of a WAL file begins with the timeline; what pg_control says
// is one checkpoint behind after a promotion.
func identify(ctx context.Context, s *session, t *outbox.Table) (v keptServer, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var system, timeline, database, recovered int64
	err = s.conn.QueryRow(ctx, `
		SELECT (SELECT system_identifier FROM pg_control_system()), ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
		       (SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = current_database()), pg_postmaster_start_time(),
		       coalesce(pg_last_wal_replay_lsn() - '0/0', 0)::bigint`).
		Scan(&system, &timeline, &database, &v.started, &recovered)
	if err != nil {
		return v, fmt.Errorf("identify the server: %w", err)
	}
	v.base = position{system: uint64(system), timeline: uint32(timeline), database: uint32(database), table: t.OID}
	v.recovered = uint64(recovered)
	v.moment, err = s.look(ctx)
	return v, err
}

// judge decides whether the reading can go on from a stored position. Where that is not sure it is a gap: transaction ids
// that the position counts as ended may be given to other transactions, whose events would be left out.
func (v *keptServer) judge(stored []byte) (position, *outbox.Gap) {
	gap := func(hint, format string, a ...any) (position, *outbox.Gap) {
		return position{}, &outbox.Gap{
			Position: stored, Server: fmt.Sprintf("%d %d %d %d", v.base.system, v.base.timeline, v.base.database, v.base.table),
			Reason: fmt.Sprintf(format, a...), Hint: hint,
		}
	}
	p, err := decodePosition(stored)
	switch {
	case err != nil:
		return gap("was the pipeline's source another one before?", "%s", err)
	case p.system != v.base.system:
		return gap("does dsn point at the right server?", "it is of the cluster %d, and this is %d", p.system, v.base.system)
	case p.database != v.base.database:
		return gap("does dsn point at the right database?", "it is of the database with oid %d, and this one has %d", p.database, v.base.database)
	case p.table != v.base.table:
		return gap("was the table dropped, or renamed and made anew?", "it is of the table with oid %d, and this one has %d", p.table, v.base.table)
	case p.newest().xmax > v.snap.xmax:
		return gap("was the server restored from a backup?", "it knows transactions up to %d, and this server has only reached %d", p.newest().xmax-1, v.snap.xmax-1)
	case p.lsn > v.lsn:
		return gap("was the server restored from a backup?", "it was taken when %d bytes of WAL were written, and this server has only written %d", p.lsn, v.lsn)
	case p.timeline == v.base.timeline:
		// The server may have crashed since. Everything that a position counts as ended had reached the disk before (see
		// keptReader.where), so no id of it is given twice.
		return p, nil
	case p.timeline+1 == v.base.timeline && v.started.Before(p.at) && v.recovered >= p.lsn:
		// One promotion, of a server that was running as a standby when the position was taken, and that had replayed all of
		// what the position knows before it became the primary.
		return p, nil
	}
	return gap("if the old primary had sent everything before the fail-over nothing is missing; otherwise events that are not there any more were published",
		"it is of timeline %d, and the server is on %d now: whether it had replayed everything that the position knows cannot be told", p.timeline, v.base.timeline)
}

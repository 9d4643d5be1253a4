package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
)

// A partition goes in four steps, each of them committed, and each to be seen in the catalog:
//
//  1. It is sealed: a constraint that no new row satisfies. The seal is put on under a lock that nobody who has touched the
//     partition can still be holding off, together with the look whether anything in it is not published. So from then on
//     nothing unpublished is in it or can come. Looking first and detaching then would not do: a transaction that has
//     inserted and not committed is seen by neither, and once the partition is detached, its row is lost; or it is found
//     behind, and published after later ones of its key.
//  2. DETACH CONCURRENTLY marks it as leaving, waits for the transactions that still use the table, and takes it out.
//  3. Where the wait was too long, FINALIZE takes it out in a later round.
//  4. It is dropped, after another look.
//
// Nothing here locks the table itself in a way that an INSERT would notice; a plain DROP does, and so does CREATE TABLE …
// PARTITION OF.

// partitions makes partitions ahead, and takes away old ones. What cannot be done is told; the rest is done.
func (h *housekeeper) partitions(ctx context.Context, s *session) error {
	ps, err := outbox.InspectPartitions(ctx, s.conn, h.l.Table)
	if err != nil {
		return err
	}
	if p := partitionsRefused(ps); p != nil {
		return p
	}
	// What is made belongs to the owner, and only the owner may detach.
	if _, err := s.conn.Exec(ctx, "SET ROLE "+outbox.Quote(ps.Owner)); err != nil {
		return fmt.Errorf("act as the owner of %s: %w", h.l.Table.Name, err)
	}
	// Where the table has foreign keys, attaching and detaching lock what they point at, and its writers wait with us.
	if _, err := s.conn.Exec(ctx, `SELECT set_config('lock_timeout', '100ms', false) FROM pg_catalog.pg_constraint
		WHERE conrelid = $1 AND contype = 'f' LIMIT 1`, h.l.Table.OID); err != nil {
		return fmt.Errorf("look for foreign keys of %s: %w", h.l.Table.Name, err)
	}
	faults := []error{h.ahead(ctx, s.conn, ps)}
	faults = append(faults, h.old(ctx, s.conn, ps)...)
	if ctx.Err() == nil {
		if ps, err := outbox.InspectPartitions(ctx, s.conn, h.l.Table); err == nil {
			h.figures.counted(ps, h.c.Retention.Every)
		}
	}
	return errors.Join(faults...)
}

// old takes away the partitions whose time is over, and lets those go on whose time is not over any more.
func (h *housekeeper) old(ctx context.Context, conn *pgx.Conn, ps *outbox.Partitions) (faults []error) {
	fault := func(doing string, n outbox.Name, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s the partition %s: %w", doing, n, err))
		}
	}
	blockers, err := h.blockers()
	if err != nil {
		return []error{err}
	}
	leaving := ps.Detached
	for _, p := range ps.List {
		if ctx.Err() != nil {
			return faults
		}
		past := !p.Upper.After(ps.Now.Add(-h.c.Retention.After.Duration()))
		switch {
		case p.Detaching && !p.Sealed:
			faults = append(faults, halfDetached(h.l.Table, p.Name))
		case p.Detaching:
			err := h.detach(ctx, conn, p, "FINALIZE")
			if fault("finish detaching", p.Name, err); err == nil {
				leaving = append(leaving, p.Name)
			}
		case !past && p.Sealed:
			fault("open", p.Name, h.unseal(ctx, conn, p))
		case !past:
		case !p.Plain:
			fault("drop", p.Name, errNotPlain)
		default:
			ready, err := h.ready(ctx, conn, p, blockers)
			if fault("seal", p.Name, err); !ready {
				continue
			}
			err = h.detach(ctx, conn, p, "CONCURRENTLY")
			if fault("detach", p.Name, err); err == nil {
				leaving = append(leaving, p.Name)
			}
		}
	}
	for _, name := range leaving {
		fault("drop", name, h.drop(ctx, conn, name, blockers))
	}
	return faults
}

// ready reports whether a partition is sealed and may be detached. One that was sealed in an earlier round is looked at
// again: pending may have been changed since, or a position dropped. Its rows are to be published then, and marked, so it
// is opened.
func (h *housekeeper) ready(ctx context.Context, conn *pgx.Conn, p outbox.Partition, blockers []blocker) (bool, error) {
	if !p.Sealed {
		return h.seal(ctx, conn, p, blockers)
	}
	ok, why, err := mayDrop(ctx, conn, p.Name, blockers)
	if err != nil || ok {
		return ok, err
	}
	return false, errors.Join(stays(why, nil), h.unseal(ctx, conn, p))
}

// sealTries is how often a lock is asked for that readers hold for moments.
const sealTries = 10

// seal closes a partition in which all is published; false: that is not so, or somebody works in it.
func (h *housekeeper) seal(ctx context.Context, conn *pgx.Conn, p outbox.Partition, blockers []blocker) (bool, error) {
	// The first look takes no lock. It may be a long one, but it leaves the second one little to do.
	if ok, why, err := mayDrop(ctx, conn, p.Name, blockers); err != nil || !ok {
		return false, stays(why, err)
	}
	for try := 1; ; try++ {
		var ok bool
		var why string
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if err := execAll(ctx, tx, []string{
				// Whoever reads the table waits with us.
				"SET LOCAL lock_timeout = '50ms'",
				fmt.Sprintf("LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE", p.Name),
				"SET LOCAL statement_timeout = '500ms'",
			}); err != nil {
				return err
			}
			// Now nobody is left who has inserted and not committed.
			var err error
			if ok, why, err = mayDrop(ctx, tx, p.Name, blockers); err != nil || !ok {
				return err
			}
			return execAll(ctx, tx, []string{fmt.Sprintf("ALTER TABLE %s ADD CONSTRAINT %s CHECK (false) NOT VALID", p.Name, outbox.Quote(h.l.Table.Seal()))})
		})
		switch {
		case err == nil && ok:
			h.log.Info("sealed a partition", "partition", p.Name.String())
			return true, nil
		case err == nil:
			return false, stays(why, nil)
		case isCode(err, "55P03") && try < sealTries:
			if err := pause(ctx, sealPause); err != nil {
				return false, err
			}
		case isCode(err, "55P03"):
			return false, fmt.Errorf("an open transaction uses it: %w", err)
		case isCode(err, codeCanceled):
			return false, fmt.Errorf("look for rows that are not published: an index that serves this is missing: %w", err)
		default:
			return false, err
		}
	}
}

func (h *housekeeper) unseal(ctx context.Context, conn *pgx.Conn, p outbox.Partition) error {
	h.log.Info("opening a partition again that may not go any more", "partition", p.Name.String())
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return execAll(ctx, tx, []string{
			"SET LOCAL lock_timeout = '50ms'",
			fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s", p.Name, outbox.Quote(h.l.Table.Seal())),
		})
	})
}

// detach takes a sealed partition out of the table: how is CONCURRENTLY, or FINALIZE where that was begun.
func (h *housekeeper) detach(ctx context.Context, conn *pgx.Conn, p outbox.Partition, how string) error {
	_, err := conn.Exec(ctx, fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s %s", h.l.Table.Name, p.Name, how))
	switch {
	case isCode(err, "55P03"), isCode(err, codeCanceled):
		return fmt.Errorf("it waits for transactions that were open before (%s): %w", h.oldest(ctx, conn), err)
	case err != nil:
		return err
	}
	h.log.Info("detached a partition", "partition", p.Name.String())
	return nil
}

// oldest names the session that has been using the table for longest, as far as the role may know.
func (h *housekeeper) oldest(ctx context.Context, conn *pgx.Conn) string {
	var pid int
	var name string
	err := conn.QueryRow(ctx, `
		SELECT a.pid, coalesce(a.application_name, '') FROM pg_catalog.pg_stat_activity a
		WHERE a.pid <> pg_backend_pid() AND (a.datname = current_database() AND a.backend_xmin IS NOT NULL
		      OR a.pid IN (SELECT l.pid FROM pg_catalog.pg_locks l WHERE l.relation = $1 AND l.granted))
		ORDER BY a.xact_start NULLS LAST LIMIT 1`, h.l.Table.OID).Scan(&pid, &name)
	if err != nil {
		return "they have ended now"
	}
	return fmt.Sprintf("the oldest: pid %d %s", pid, outbox.Quote(name))
}

// drop drops a table that was a partition of ours. The look before it should find nothing, for the table was sealed; it
// does where pending was changed since, and then the rows wait for a person.
func (h *housekeeper) drop(ctx context.Context, conn *pgx.Conn, name outbox.Name, blockers []blocker) error {
	var size string
	dropped := false
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := execAll(ctx, tx, []string{fmt.Sprintf("LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE", name)}); err != nil {
			return err
		}
		// Under the lock: is it still what it was?
		var ours bool
		err := tx.QueryRow(ctx, `
			SELECT NOT c.relispartition AND EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'c' AND k.conname = $2),
			       pg_size_pretty(pg_total_relation_size(c.oid))
			FROM pg_catalog.pg_class c WHERE c.oid = $1::text::regclass`, name.String(), h.l.Table.Seal()).Scan(&ours, &size)
		if err != nil || !ours {
			return err
		}
		ok, why, err := mayDrop(ctx, tx, name, blockers)
		switch {
		case err == nil && why != "":
			return rowsLeft(h.l.Table, name, why)
		case err != nil || !ok:
			return err
		}
		dropped = true
		return execAll(ctx, tx, []string{fmt.Sprintf("DROP TABLE %s", name)})
	})
	if err != nil || !dropped {
		return err
	}
	h.figures.count(&h.figures.dropped, 1)
	h.log.Info("dropped a partition", "partition", name.String(), "size", size)
	return nil
}

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func execAll(ctx context.Context, tx pgx.Tx, statements []string) error {
	for _, sql := range statements {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

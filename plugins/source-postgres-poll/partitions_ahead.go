package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
)

// ahead makes the partitions that are missing.
func (h *housekeeper) ahead(ctx context.Context, conn *pgx.Conn, ps *outbox.Partitions) error {
	for _, span := range missing(ps.List, ps.Now, h.c.Retention.Every, h.c.Retention.ahead()) {
		name, err := h.create(ctx, conn, ps, span)
		if err != nil {
			return fmt.Errorf("make a partition from %s to %s: %w", ps.Bound(span.from), ps.Bound(span.to), err)
		}
		h.figures.count(&h.figures.created, 1)
		h.log.Info("made a partition", "partition", name.String(), "from", span.from, "to", span.to)
	}
	return nil
}

// create makes one like the last: first a table, then a partition of it, for that takes a lock that INSERTs do not notice.
func (h *housekeeper) create(ctx context.Context, conn *pgx.Conn, ps *outbox.Partitions, span span) (outbox.Name, error) {
	last := ps.Last()
	name, err := h.free(ctx, conn, names(h.l.Table.Name.Table, last, h.c.Retention.Every, span))
	if err != nil {
		return name, err
	}
	return name, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		like := alike{name: name}
		if last != nil {
			if err := like.look(ctx, tx, last.OID); err != nil {
				return err
			}
		}
		statements := []string{
			fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION INCLUDING STATISTICS INCLUDING COMMENTS)%s",
				name, h.l.Table.Name, like.options),
			fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)", h.l.Table.Name, name, ps.Bound(span.from), ps.Bound(span.to)),
		}
		if err := execAll(ctx, tx, append(statements, like.grants...)); err != nil {
			return err
		}
		identity, err := like.identity(ctx, tx)
		if err != nil || identity == "" {
			return err
		}
		return execAll(ctx, tx, []string{identity})
	})
}

// free is the first of some names in the table's schema that nothing has.
func (h *housekeeper) free(ctx context.Context, conn *pgx.Conn, names []string) (outbox.Name, error) {
	name := outbox.Name{Schema: h.l.Table.Name.Schema}
	for _, name.Table = range names {
		var taken bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $1 AND c.relname = $2)`, name.Schema, name.Table).Scan(&taken)
		if err != nil || !taken {
			return name, err
		}
	}
	return name, fmt.Errorf("its name, %s, is taken", name)
}

// alike is what a partition has beside its columns, taken from the last one.
type alike struct {
	name    outbox.Name
	options string
	grants  []string
	replica string // pg_class.relreplident
	index   uint32 // with replica i: the table's index that the partition's belongs to
}

func (a *alike) look(ctx context.Context, tx pgx.Tx, like uint32) error {
	var options []string
	var space string
	err := tx.QueryRow(ctx, `
		SELECT coalesce(c.reloptions, '{}'), coalesce(t.spcname, ''), c.relreplident::text,
		       coalesce((SELECT i.inhparent FROM pg_catalog.pg_index x JOIN pg_catalog.pg_inherits i ON i.inhrelid = x.indexrelid
		                 WHERE x.indrelid = c.oid AND x.indisreplident), 0),
		       ARRAY(SELECT format('GRANT %s ON TABLE %s TO %s%s', g.privilege_type, $2::text,
		                    CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,
		                    CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
		             FROM aclexplode(c.relacl) g WHERE g.grantee <> c.relowner)
		FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = $1`, like, a.name.String()).
		Scan(&options, &space, &a.replica, &a.index, &a.grants)
	if err != nil {
		return fmt.Errorf("look at the last partition: %w", err)
	}
	for i, o := range options {
		name, value, _ := strings.Cut(o, "=")
		options[i] = fmt.Sprintf("%s = %s", outbox.Quote(name), outbox.Literal(value))
	}
	if len(options) > 0 {
		a.options = " WITH (" + strings.Join(options, ", ") + ")"
	}
	if space != "" {
		a.options += " TABLESPACE " + outbox.Quote(space)
	}
	return nil
}

// identity is the statement that gives it the last one's replica identity; "": it has that already.
func (a *alike) identity(ctx context.Context, tx pgx.Tx) (string, error) {
	alter := fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY ", a.name)
	switch a.replica {
	case "f":
		return alter + "FULL", nil
	case "n":
		return alter + "NOTHING", nil
	case "i":
		var index string
		err := tx.QueryRow(ctx, `
			SELECT c.relname FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_index x ON x.indexrelid = c.oid
			WHERE i.inhparent = $1 AND x.indrelid = $2::text::regclass`, a.index, a.name.String()).Scan(&index)
		if errors.Is(err, pgx.ErrNoRows) {
			return "", nil // an index that only the last partition had
		}
		return alter + "USING INDEX " + outbox.Quote(index), err
	}
	return "", nil
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/outbox"
)

// leader says who has the outbox now: one relay, or several that share its keys.
func (d *doctor) leader(ctx context.Context) error {
	k := newShareKeys(d.t.OID, "")
	rows, err := d.s.conn.Query(ctx, `
		SELECT format('%s from %s, pid %s', coalesce(nullif(a.application_name, ''), 'a session'), coalesce(host(a.client_addr), 'a local socket'), l.pid),
		       count(*) FILTER (WHERE l.key <> $2)
		FROM (`+advisoryLocks+`) l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		GROUP BY l.pid, a.application_name, a.client_addr ORDER BY 1`, append(slices.Clone(k.bucket[:]), k.presence), k.presence)
	if err != nil {
		return fmt.Errorf("look for the leader: %w", err)
	}
	var relays []string
	var who string
	var owned, all int
	_, err = pgx.ForEachRow(rows, []any{&who, &owned}, func() error {
		if all += owned; owned > 0 || d.c.Sharing == sharingBuckets {
			who += fmt.Sprintf(" (%d buckets)", owned)
		}
		relays = append(relays, who)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for the leader: %w", err)
	}
	switch {
	case len(relays) == 0:
		d.ok("leader", "no relay reads %s at the moment", d.t.Name)
	case all > 0 || d.c.Sharing == sharingBuckets:
		d.ok("leader", "relays share %s, %d of %d buckets are taken: %s", d.t.Name, all, outbox.Buckets, strings.Join(relays, "; "))
	default:
		d.ok("leader", "a relay reads %s: %s; another one would stand by", d.t.Name, relays[0])
	}
	return nil
}

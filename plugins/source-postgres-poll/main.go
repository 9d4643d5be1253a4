// Source-postgres-poll reads an outbox table by polling: it reads rows, hands them to the host, and deletes or marks them once
// every broker has confirmed them; or it leaves them where they are, and has a position. No transaction is open while a
// broker is slow.
//
// Two sessions do the work. The reader's holds the advisory lock that makes this relay the leader, and only on it is the
// table read: a relay that has lost the lock cannot read on. The remover's deletes or marks what was acked. The files:
//
//	source.go    one attempt: connect, stand by, lead, drain
//	engine.go    what the goroutines of a leader share, and the host's requests
//	reader.go    the reading: what, when, how much
//	ordered.go   reads by the order column; rounds.go reads without one
//	remover.go   the deleting or marking
//	flight.go, held.go, bound.go   the state, without clock or I/O
//	session.go, portal.go, query.go   connections, row-limited reads, SQL
//	kept.go, keptread.go, keptquery.go, keptflight.go, position.go   the reading of rows that stay
//	housekeeper.go   old rows and partitions; reap.go and partitions.go are what it does
//	share*.go, buckets.go, orders.go   the sharing of keys among relays, and what it asks of reads
//	leader.go    the lock; errors.go the classes; checks.go what a start needs; doctor*.go what relevo doctor looks at
package main

import (
	"context"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

func main() { sdk.Main(plugin()) }

func plugin() sdk.Plugin {
	return sdk.Source(sdk.Spec[config]{
		Name:      "postgres-poll",
		Summary:   "Reads an outbox table in PostgreSQL by polling, and deletes, marks or keeps what was published.",
		Defaults:  defaultConfig,
		HoldsKeys: true,
		// With after_publish: keep it has positions and holds no keys; otherwise it is the other way round.
		HasPositions: true,
		Check:        check,
	}, func(ctx context.Context, o sdk.SourceOpen[config], s *sdk.SourceStream) error {
		if o.Config.after() == outbox.AfterKeep {
			return runKept(ctx, o, s)
		}
		return run(ctx, o, s)
	})
}

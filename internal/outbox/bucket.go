package outbox

import (
	"fmt"
	"strings"
)

// Buckets is into how many parts keys are divided where several readers share a table. A power of two, and as many as a
// uint64 has bits. It is never to change, or two versions would divide them differently.
const Buckets = 64

// Bucket is an SQL expression for the bucket of a row: a bigint from 0 to Buckets-1. The server computes it, so that
// everybody who asks the same server agrees. All events of a key are in one; an event without a key is in that of its id.
func (l *Layout) Bucket() string {
	var hashes []string
	if l.keyColumn.sql != "" {
		hashes = append(hashes, l.keyColumn.hash())
	}
	hashes = append(hashes, l.idColumn.hash())
	if l.Nullable() {
		hashes = append(hashes, hashText(StandIn))
	}
	h := hashes[0]
	if len(hashes) > 1 {
		h = "coalesce(" + strings.Join(hashes, ", ") + ")" // each is NULL where its value is
	}
	return fmt.Sprintf("(%s & %d)", h, Buckets-1)
}

// hash is that of hash partitioning. A number is hashed as one: its text costs twice as much.
func (o operand) hash() string {
	switch o.kind {
	case kindInt:
		return fmt.Sprintf("hashint8extended(%s, 0)", o.sql)
	case kindUUID:
		return fmt.Sprintf("uuid_hash_extended(%s, 0)", o.sql)
	case kindBytea:
		return hashText("encode(" + o.sql + ", 'hex')") // bytea has a function of its own from PostgreSQL 18 on only
	}
	return hashText(o.sql)
}

func hashText(sql string) string { return fmt.Sprintf("hashtextextended(%s, 0)", sql) }

package pipeline

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sort"
	"time"
	"unicode/utf8"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// gone stands in batch.left for an event that has left the ledger.
const gone = 255

// batch is one batch from the source, until every number of it has ended.
type batch struct {
	first    uint64
	n        int
	frame    *wire.Batch
	rejected map[int]*pluginv1.Rejected // by offset; nil: none
	index    []int32                    // offset → event of the frame; nil: the same
	at       [][]place                  // sink, offset
	left     []uint8                    // offset → sinks at which it is not settled, or gone
	open     int                        // offsets that are not gone
	pending  int                        // offsets that are neither gone nor settled at every sink
	lanes    []Lane                     // nil until a key is asked for
	kept     int                        // bytes of frame that are kept alive
	live     int                        // bytes of events that are not gone
	position []byte
	arrived  time.Time
}

func (l *Ledger) newBatch(f *wire.Batch) (*batch, error) {
	b := &batch{
		first: f.FirstSeq, n: f.Count, frame: f, open: f.Count, pending: f.Count, left: make([]uint8, f.Count), at: make([][]place, len(l.sinks)),
		kept: f.Bytes(), live: f.Bytes(), position: bytes.Clone(f.Position), arrived: l.now,
	}
	if len(f.Rejected) > 0 {
		b.rejected = make(map[int]*pluginv1.Rejected, len(f.Rejected))
		b.index = make([]int32, b.n)
		for _, r := range f.Rejected {
			b.rejected[int(r.GetOffset())] = r
		}
		k := int32(0)
		for o := range b.n {
			b.index[o] = k
			if b.rejected[o] == nil {
				k++
			}
		}
	}
	places := make([]place, b.n*len(l.sinks))
	for i := range l.sinks {
		b.at[i] = places[i*b.n : (i+1)*b.n : (i+1)*b.n]
	}
	for o := range b.n {
		b.left[o] = uint8(len(l.sinks))
	}
	for o := range f.Len() { // one malformed event must not come to light when its key is asked for
		if id, _, err := wire.IDAndKey(f.Raw(o)); err != nil || len(id) == 0 || !utf8.Valid(id) {
			return nil, protocolError("event %d of the batch at %d cannot be read, or has no id of UTF-8: %v", o, b.first, err)
		}
	}
	l.filter(b)
	return b, nil
}

// filter settles what a sink does not want, and what its policy has given up before a crash.
func (l *Ledger) filter(b *batch) {
	var seen []Discard
	for i, s := range l.sinks {
		if s.Wants == nil && len(l.discarded) == 0 {
			continue
		}
		for o := range b.n {
			wanted := b.isRejected(o) || s.Wants == nil || s.Wants(b.raw(o)) // a rejected row cannot be filtered
			if wanted && len(l.discarded) > 0 {
				id, _ := b.name(o)
				d := Discard{i, id}
				if _, ok := l.discarded[d]; ok {
					wanted = false
					l.discarded[d] = b.seq(o)
					seen = append(seen, d)
				}
			}
			if !wanted {
				b.at[i][o] = settled
				b.left[o]--
				s.filtered++
			}
		}
	}
	if seen != nil {
		l.send(Source, SeenDiscards{seen})
	}
}

// find returns the batch that holds a source number, and its offset there. Nil: it has left the ledger.
func (l *Ledger) find(seq uint64) (*batch, int) {
	if b := l.hint; b != nil && seq >= b.first && seq < b.first+uint64(b.n) && b.open > 0 {
		return b, int(seq - b.first)
	}
	k := sort.Search(len(l.batches), func(k int) bool { b := l.batches[k]; return b.first+uint64(b.n) > seq })
	if k == len(l.batches) || l.batches[k].first > seq {
		return nil, 0
	}
	l.hint = l.batches[k]
	return l.hint, int(seq - l.hint.first)
}

func (b *batch) seq(o int) uint64 { return b.first + uint64(o) }

// event returns the index in the frame of the event at offset o; it is none where the row was rejected.
func (b *batch) event(o int) int {
	if b.index == nil {
		return o
	}
	return int(b.index[o])
}

func (b *batch) raw(o int) []byte { return b.frame.Raw(b.event(o)) }

func (b *batch) isRejected(o int) bool { return b.rejected != nil && b.rejected[o] != nil }

// size is what an event counts against the byte window.
func (b *batch) size(o int) int {
	if b.isRejected(o) {
		return 0
	}
	return b.frame.Size(b.event(o))
}

// laneName is what a lane is called outside: a key, or the id of an event without one.
type laneName struct {
	key []byte
	id  string
}

// name reads the id and the key of an entry. An event whose bytes cannot be read was refused when it arrived.
func (b *batch) name(o int) (id string, n laneName) {
	var key []byte
	if b.isRejected(o) {
		id, key = b.rejected[o].GetId(), b.rejected[o].GetKey()
	} else {
		raw, k, err := wire.IDAndKey(b.raw(o))
		if err != nil {
			panic("BUG: an event that was checked on arrival: " + err.Error())
		}
		id, key = string(raw), k
	}
	if len(key) == 0 {
		return id, laneName{id: id}
	}
	return id, laneName{key: key}
}

// lane of an entry; the whole batch is hashed at the first question.
func (l *Ledger) lane(b *batch, o int) Lane {
	if b.lanes == nil {
		b.lanes = make([]Lane, b.n)
		for o := range b.n {
			if b.left[o] == gone {
				continue
			}
			if _, n := b.name(o); n.key != nil {
				b.lanes[o] = Lane(maphash.Bytes(l.seeds[0], n.key))
			} else {
				b.lanes[o] = Lane(maphash.String(l.seeds[1], n.id))
			}
		}
	}
	return b.lanes[o]
}

// LaneOf hashes a key, or an id where key is empty.
func (l *Ledger) LaneOf(key []byte, id string) Lane {
	if len(key) > 0 {
		return Lane(maphash.Bytes(l.seeds[0], key))
	}
	return Lane(maphash.String(l.seeds[1], id))
}

// end takes an entry out of the ledger; the caller has told the source, or will.
func (l *Ledger) end(b *batch, o int) {
	if len(l.held) > 0 {
		if h := l.held[l.lane(b, o)]; h != nil {
			h.entries--
			if b.seq(o) == h.head {
				h.due = true // it is settled: the key goes on at once
			}
		}
	}
	if b.left[o] != 0 { // given back; what is settled was counted by done
		b.pending--
	}
	size := b.size(o)
	b.left[o] = gone
	b.open--
	b.live -= size
	l.live -= size
	l.events--
	if b.open == 0 {
		l.drop(b)
		return
	}
	// I7: a batch's memory is counted as long as it is kept. Few survivors are copied out of it.
	if b.kept > 64<<10 && b.live < b.kept/4 {
		if b.lanes == nil {
			l.lane(b, o) // names of the gone can't be read afterwards
		}
		b.frame = b.frame.Compact(func(e int) bool { return b.left[b.offset(e)] != gone })
		l.bytes -= b.kept - b.live
		b.kept = b.live
	}
}

// offset is the inverse of event.
func (b *batch) offset(e int) int {
	if b.index == nil {
		return e
	}
	return sort.Search(b.n, func(o int) bool { return int(b.index[o]) >= e && !b.isRejected(o) })
}

func (l *Ledger) drop(b *batch) {
	l.bytes -= b.kept
	l.hint = nil
	k := sort.Search(len(l.batches), func(k int) bool { return l.batches[k].first >= b.first })
	l.batches = slices.Delete(l.batches, k, k+1)
}

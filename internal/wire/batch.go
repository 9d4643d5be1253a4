package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Sizes of messages, in bytes.
const (
	MaxBatch          = 4 << 20  // where a batch is cut, envelope included; a larger event goes alone
	MaxMessage        = 17 << 20 // what the host receives
	DefaultMaxMessage = 4 << 20  // what a plugin receives that says nothing else
)

// Field numbers of Batch, and of the messages that carry one.
const (
	batchFirstSeq    protowire.Number = 1
	batchCount       protowire.Number = 2
	batchPosition    protowire.Number = 3
	batchRedelivered protowire.Number = 4
	batchRejected    protowire.Number = 5
	batchDestination protowire.Number = 6
	batchDestIndex   protowire.Number = 7
	batchEvents      protowire.Number = 15

	carrierBatch protowire.Number = 2 // ReadResponse.batch and WriteRequest.batch
)

const eventsTag = byte(batchEvents)<<3 | byte(protowire.BytesType)

// Batch is a received batch: its envelope decoded, its events as they came.
type Batch struct {
	FirstSeq         uint64
	Count            int // events and rejected rows
	Position         []byte
	Redelivered      bool
	Rejected         []*pluginv1.Rejected
	Destinations     []string
	DestinationIndex []uint32

	events []byte   // tag, length and body of each event, one after the other
	ends   []uint32 // ends[i]: where event i ends in events
}

// Len is the number of events, rejected rows not counted.
func (b *Batch) Len() int { return len(b.ends) }

// start of event i, its tag included.
func (b *Batch) start(i int) uint32 {
	if i == 0 {
		return 0
	}
	return b.ends[i-1]
}

// Raw is the encoded event i, without tag and length: what Event.Parse and IDAndKey read.
func (b *Batch) Raw(i int) []byte {
	f := b.events[b.start(i)+1 : b.ends[i]]
	_, n := protowire.ConsumeVarint(f)
	return f[n:]
}

// Framed is the run of events i to j-1 as it stands in a Batch message, tags and lengths included.
func (b *Batch) Framed(i, j int) []byte {
	if i >= j {
		return nil
	}
	return b.events[b.start(i):b.ends[j-1]:b.ends[j-1]]
}

// Size of the framed event i, in bytes.
func (b *Batch) Size(i int) int { return int(b.ends[i] - b.start(i)) }

// Bytes is the size of all framed events.
func (b *Batch) Bytes() int { return len(b.events) }

// Destination of event i. False: the index points nowhere.
func (b *Batch) Destination(i int) (string, bool) {
	k := 0
	if len(b.DestinationIndex) > 0 {
		k = int(b.DestinationIndex[i])
	}
	if k >= len(b.Destinations) {
		return "", false
	}
	return b.Destinations[k], true
}

// ParseBatch reads a Batch message. The result refers to data, which must not change any more. It checks the frame
// (I6: as many numbers as count says, rejected rows in order and within), not the events. A known field with another
// wire type is an error, as in Event.Parse.
func ParseBatch(data []byte) (*Batch, error) {
	b := &Batch{}
	rest := data
	scattered := false // events that do not stand together at the end: legal, never written by us
	first := -1
	for len(rest) > 0 {
		at := len(data) - len(rest)
		num, typ, body, next, err := field(rest)
		if err != nil {
			return nil, fmt.Errorf("batch: %w", err)
		}
		if num == batchEvents {
			if typ != protowire.BytesType {
				return nil, fmt.Errorf("batch: events: %w", errWireType)
			}
			if first < 0 {
				first = at
				b.ends = make([]uint32, 0, max(1, min(b.Count, len(rest)/2)))
			}
			// A tag longer than need be is normalised, so that Raw can count on one byte of it.
			if rest[0] != eventsTag {
				scattered = true
			}
			b.ends = append(b.ends, uint32(len(data)-len(next)-first))
		} else {
			scattered = scattered || first >= 0
			if err := b.envelope(num, typ, body); err != nil {
				return nil, fmt.Errorf("batch: field %d: %w", num, err)
			}
		}
		rest = next
	}
	switch {
	case scattered:
		b.gather(data)
	case first >= 0:
		b.events = data[first:]
	}
	return b, b.check()
}

func (b *Batch) envelope(num protowire.Number, typ protowire.Type, body []byte) error {
	want := protowire.VarintType
	switch num {
	case batchPosition, batchRejected, batchDestination:
		want = protowire.BytesType
	case batchDestIndex: // packed, or one by one
		return b.index(typ, body)
	case batchFirstSeq, batchCount, batchRedelivered:
	default:
		return nil // a later version's
	}
	if typ != want {
		return errWireType
	}
	var v uint64
	if want == protowire.VarintType {
		v, _ = protowire.ConsumeVarint(body)
	}
	switch num {
	case batchFirstSeq:
		b.FirstSeq = v
	case batchCount:
		b.Count = int(uint32(v))
	case batchRedelivered:
		b.Redelivered = v != 0
	case batchPosition:
		b.Position = present(body)
	case batchRejected:
		r := &pluginv1.Rejected{}
		if err := proto.Unmarshal(body, r); err != nil {
			return err
		}
		b.Rejected = append(b.Rejected, r)
	case batchDestination:
		s, err := viewUTF8(body)
		if err != nil {
			return err
		}
		b.Destinations = append(b.Destinations, s)
	}
	return nil
}

func (b *Batch) index(typ protowire.Type, body []byte) error {
	switch typ {
	case protowire.VarintType:
		v, _ := protowire.ConsumeVarint(body)
		b.DestinationIndex = append(b.DestinationIndex, uint32(v))
	case protowire.BytesType:
		if b.DestinationIndex == nil {
			b.DestinationIndex = make([]uint32, 0, len(body))
		}
		for len(body) > 0 {
			v, n := protowire.ConsumeVarint(body)
			if n < 0 {
				return errTruncated
			}
			b.DestinationIndex = append(b.DestinationIndex, uint32(v))
			body = body[n:]
		}
	default:
		return errWireType
	}
	return nil
}

// gather copies events that do not stand together.
func (b *Batch) gather(data []byte) {
	b.events, b.ends = make([]byte, 0, len(data)), b.ends[:0]
	for len(data) > 0 {
		num, _, body, next, _ := field(data)
		if num == batchEvents {
			b.append(body)
		}
		data = next
	}
}

func (b *Batch) append(raw []byte) {
	b.events = append(b.events, eventsTag)
	b.events = protowire.AppendBytes(b.events, raw)
	b.ends = append(b.ends, uint32(len(b.events)))
}

func (b *Batch) check() error {
	switch {
	case b.Count < 1:
		return fmt.Errorf("batch: count is %d", b.Count)
	case b.Count != len(b.ends)+len(b.Rejected):
		return fmt.Errorf("batch: count is %d, with %d events and %d rejected rows", b.Count, len(b.ends), len(b.Rejected))
	case b.FirstSeq < 1 || b.FirstSeq > 1<<53-uint64(b.Count): // a sum could wrap round
		return fmt.Errorf("batch: %d numbers from %d on are out of range", b.Count, b.FirstSeq)
	case len(b.DestinationIndex) > 0 && len(b.DestinationIndex) != len(b.ends):
		return fmt.Errorf("batch: %d destination indexes for %d events", len(b.DestinationIndex), len(b.ends))
	}
	last := -1
	for _, r := range b.Rejected {
		if int(r.GetOffset()) <= last || int(r.GetOffset()) >= b.Count {
			return fmt.Errorf("batch: rejected row at offset %d of %d, after %d", r.GetOffset(), b.Count, last)
		}
		last = int(r.GetOffset())
	}
	return nil
}

// BatchOf returns the Batch message inside an encoded ReadResponse or WriteRequest, if that is all it holds. False: it
// is some other message, for the generated code.
func BatchOf(message []byte) ([]byte, bool) {
	num, typ, body, rest, err := field(message)
	if err != nil || num != carrierBatch || typ != protowire.BytesType || len(rest) > 0 {
		return nil, false
	}
	return body, true
}

// Compact returns a copy that holds only the events to keep, under the same indexes; Raw, Framed and Size may no longer
// be asked about the others. It has neither position nor destinations, which would keep the memory of the
// original alive.
func (b *Batch) Compact(keep func(i int) bool) *Batch {
	n := 0
	for i := range b.ends {
		if keep(i) {
			n += b.Size(i)
		}
	}
	c := Batch{FirstSeq: b.FirstSeq, Count: b.Count, Redelivered: b.Redelivered, Rejected: b.Rejected}
	c.events, c.ends = make([]byte, 0, n), make([]uint32, len(b.ends))
	for i := range b.ends {
		if keep(i) {
			c.events = append(c.events, b.events[b.start(i):b.ends[i]]...)
		}
		c.ends[i] = uint32(len(c.events))
	}
	return &c
}

package wire

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Builder collects the events of one batch as encoded bytes. The zero value is ready.
type Builder struct {
	events   []byte
	n        int
	rejected []*pluginv1.Rejected
	rejects  int // encoded bytes of rejected
}

// Count is the number of events and rejected rows so far.
func (w *Builder) Count() int { return w.n + len(w.rejected) }

// Bytes is the size of the events so far.
func (w *Builder) Bytes() int { return len(w.events) }

// Fits reports whether an event of that encoded size can be added without the batch passing MaxBatch. An empty batch
// takes any.
func (w *Builder) Fits(size int) bool {
	const envelope = 16 << 10 // room for the position, and for one more rejected row in place of the event
	return w.Count() == 0 || len(w.events)+w.rejects+size+6+envelope <= MaxBatch
}

// Grow makes room for n bytes of events.
func (w *Builder) Grow(n int) {
	if cap(w.events)-len(w.events) < n {
		w.events = append(make([]byte, 0, len(w.events)+n), w.events...)
	}
}

// Add encodes an event at the end of the batch. The event has been checked (Event.Check).
func (w *Builder) Add(e *Event) {
	w.events = append(w.events, eventsTag)
	w.events = protowire.AppendVarint(w.events, uint64(e.Size()))
	w.events = e.Append(w.events)
	w.n++
}

// AddRaw adds an encoded event.
func (w *Builder) AddRaw(raw []byte) {
	w.events = append(w.events, eventsTag)
	w.events = protowire.AppendBytes(w.events, raw)
	w.n++
}

// Reject adds a rejected row; its offset is set here, what is not UTF-8 in its texts is replaced, and a long id or
// message is cut: they are for a person to read, and ten thousand of them must fit into a message.
func (w *Builder) Reject(r *pluginv1.Rejected) {
	const maxMessage = 1 << 10
	r.Offset = uint32(w.Count())
	r.Id, r.Code, r.Message = text(r.GetId(), MaxID), text(r.GetCode(), MaxName), text(r.GetMessage(), maxMessage)
	w.rejected = append(w.rejected, r)
	w.rejects += proto.Size(r) + 6
}

// Response makes the ReadResponse that carries the batch, and empties the builder. The frame owns the memory.
func (w *Builder) Response(firstSeq uint64, position []byte) *Frame {
	head := make([]byte, 0, 64+len(position))
	head = appendVarint(head, batchFirstSeq, firstSeq)
	head = appendVarint(head, batchCount, uint64(w.Count()))
	if len(position) > 0 {
		head = appendOptional(head, batchPosition, position)
	}
	for _, r := range w.rejected {
		b, err := proto.Marshal(r)
		if err != nil {
			panic("BUG: encode a rejected row: " + err.Error())
		}
		head = appendOptional(head, batchRejected, b)
	}
	f := carry(head, [][]byte{w.events}, len(w.events))
	*w = Builder{}
	return f
}

// SinkBatch is a batch for a sink: an envelope of its own around events as they came from the source.
type SinkBatch struct {
	FirstSeq         uint64
	Count            int
	Redelivered      bool
	Destinations     []string
	DestinationIndex []uint32 // empty: all events go to the first destination
	Events           [][]byte // runs of framed events (Batch.Framed)
}

// Request makes the WriteRequest that carries the batch, without copying the events.
func (s *SinkBatch) Request() *Frame {
	n := 0
	for _, d := range s.Destinations {
		n += len(d) + 4
	}
	head := make([]byte, 0, 32+n+2*len(s.DestinationIndex))
	head = appendVarint(head, batchFirstSeq, s.FirstSeq)
	head = appendVarint(head, batchCount, uint64(s.Count))
	if s.Redelivered {
		head = appendVarint(head, batchRedelivered, 1)
	}
	for _, d := range s.Destinations {
		head = append(head, byte(batchDestination)<<3|byte(protowire.BytesType))
		head = protowire.AppendString(head, d)
	}
	if len(s.DestinationIndex) > 0 {
		size := 0
		for _, i := range s.DestinationIndex {
			size += protowire.SizeVarint(uint64(i))
		}
		head = append(head, byte(batchDestIndex)<<3|byte(protowire.BytesType))
		head = protowire.AppendVarint(head, uint64(size))
		for _, i := range s.DestinationIndex {
			head = protowire.AppendVarint(head, uint64(i))
		}
	}
	size := 0
	for _, e := range s.Events {
		size += len(e)
	}
	return carry(head, s.Events, size)
}

// text makes s valid UTF-8 of at most limit bytes.
func text(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") // half a character at the cut
	}
	return s
}

func appendVarint(dst []byte, num protowire.Number, v uint64) []byte {
	dst = append(dst, byte(num)<<3|byte(protowire.VarintType))
	return protowire.AppendVarint(dst, v)
}

// carry wraps a batch into the message that carries it.
func carry(head []byte, events [][]byte, size int) *Frame {
	var tag [12]byte
	t := append(tag[:0], byte(carrierBatch)<<3|byte(protowire.BytesType))
	t = protowire.AppendVarint(t, uint64(len(head)+size))
	f := &Frame{Segments: make([][]byte, 0, 1+len(events))}
	f.Segments = append(f.Segments, append(t, head...))
	f.Segments = append(f.Segments, events...)
	return f
}

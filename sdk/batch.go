package sdk

import (
	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Batch collects events, encoded at once, so that what Add was given may be reused. The zero value is empty and ready.
// A Batch is for one goroutine at a time; a source that keeps one and sends it over and over allocates one buffer a
// batch.
type Batch struct {
	b        wire.Builder
	rejected int // encoded size of the rejected rows
	last     int // size of the batch before
}

// Limits of a rejected row's texts.
const (
	maxRejectedCode    = 64
	maxRejectedMessage = 1 << 10
)

// Add appends an event. A *LimitError means that it was not added: Reject the row.
func (b *Batch) Add(e *Event) error {
	if err := e.Check(); err != nil {
		return err
	}
	if b.b.Bytes() == 0 && b.last > 0 {
		b.b.Grow(b.last + b.last/8)
	}
	b.b.Add(e)
	return nil
}

// Reject appends a row that cannot be made into an event; it takes a number like one. Texts that are too long are cut;
// a key that is too long is left out, since no event can have it.
func (b *Batch) Reject(r Rejected) {
	p := &pluginv1.Rejected{
		Id:      cut(r.ID, wire.MaxID),
		Code:    cut(r.Code, maxRejectedCode),
		Message: cut(r.Message, maxRejectedMessage),
	}
	if len(r.Key) <= wire.MaxKey && r.Key != nil {
		p.Key = append([]byte{}, r.Key...)
	}
	b.b.Reject(p)
	b.rejected += len(p.GetId()) + len(p.GetKey()) + len(p.GetCode()) + len(p.GetMessage()) + 24
}

// Count is the number of events and rejected rows so far.
func (b *Batch) Count() int { return b.b.Count() }

// Bytes is the encoded size so far.
func (b *Batch) Bytes() int { return b.b.Bytes() + b.rejected }

// Fits reports whether an event of that encoded size (Event.Size) still has room in a message. An empty batch takes any.
func (b *Batch) Fits(size int) bool { return b.Count() == 0 || b.b.Fits(size+b.rejected) }

// oversized reports whether the batch should have been cut.
func (b *Batch) oversized() bool { return b.Count() > 1 && b.Bytes() > wire.MaxBatch }

// response makes the message that carries the batch, and empties it.
func (b *Batch) response(first uint64, position []byte) *wire.Frame {
	b.last, b.rejected = b.b.Bytes(), 0
	return b.b.Response(first, position)
}

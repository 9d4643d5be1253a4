package sdk

import (
	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// malformedEvent is an event that its source encoded wrongly. The host passes events on without reading them, so that
// it is the sink's side that finds out. It is refused like any other that will never do: to end the stream would only
// bring it again.
type malformedEvent struct {
	failure *pluginv1.Failure
	key     []byte // nil: not known, or none
}

// maxHeaders bounds what one event with many headers can make itemsOf allocate for the others (I7).
const maxHeaders = 4 << 10

// itemsOf reads the events of a batch: one allocation for the items, and one for all headers if the events have about
// as many as the first (up to maxHeaders, then one for the next).
func itemsOf(b *wire.Batch) (items []Item, malformed []malformedEvent, err error) {
	n := b.Len()
	items = make([]Item, 0, n)
	var headers []Header // what is left of the common allocation
	for i := range n {
		dst, ok := b.Destination(i)
		if !ok && (len(b.Destinations) > 0 || len(b.DestinationIndex) > 0) {
			return nil, nil, hostBug("event %d of the batch has a destination that is not in it", i)
		}
		raw := b.Raw(i)
		items = items[:len(items)+1]
		it := &items[len(items)-1]
		if len(headers) > 0 {
			it.Headers = headers[:0:len(headers)]
		}
		if err := it.Parse(raw); err != nil {
			*it = Item{}
			items = items[:len(items)-1]
			_, key, _ := wire.IDAndKey(raw)
			malformed = append(malformed, malformedEvent{key: key, failure: &pluginv1.Failure{
				Seq:     b.FirstSeq + uint64(i),
				Class:   pluginv1.ErrorClass_ERROR_CLASS_PERMANENT,
				Code:    "event_malformed",
				Message: text("the source encoded the event wrongly: " + err.Error()),
			}})
			continue
		}
		switch h := len(it.Headers); {
		case h == 0:
			it.Headers = nil
		case h <= len(headers): // they are in the common allocation
			it.Headers = it.Headers[:h:h]
			headers = headers[h:]
		default: // they did not fit, or are the first
			headers = make([]Header, min(h*(n-i-1), maxHeaders))
		}
		it.Seq = b.FirstSeq + uint64(i)
		it.Destination = dst
		it.Redelivered = b.Redelivered
		it.Size = len(raw)
	}
	return items, malformed, nil
}

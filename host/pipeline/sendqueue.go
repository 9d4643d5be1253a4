package pipeline

import (
	"sync"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// sendQueue is what waits to be sent on one stream, so that the loop never waits for a plugin that does not read. It
// needs no limit of its own: everything in it is about numbers inside the window (I7).
type sendQueue struct {
	more chan struct{} // capacity 1: something has been added

	mu    sync.Mutex
	queue []any     // guarded by mu
	busy  time.Time // guarded by mu: since when one message is being sent; zero: none is
}

func newSendQueue() *sendQueue { return &sendQueue{more: make(chan struct{}, 1)} }

// push adds a *pluginv1.ReadRequest, a *pluginv1.WriteRequest or a *wire.Frame.
func (q *sendQueue) push(m any) {
	q.mu.Lock()
	if !q.merge(m) {
		q.queue = append(q.queue, m)
	}
	q.mu.Unlock()
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// merge joins an ack without position to one that still waits, so that a source that is slow to read its stream gets
// one ack for all, which it can turn into one statement.
func (q *sendQueue) merge(m any) bool {
	r, ok := m.(*pluginv1.ReadRequest)
	if !ok || len(q.queue) == 0 {
		return false
	}
	last, ok := q.queue[len(q.queue)-1].(*pluginv1.ReadRequest)
	if !ok {
		return false
	}
	a, b := last.GetAck(), r.GetAck()
	if a == nil || b == nil || a.GetThroughSeq() != 0 || b.GetThroughSeq() != 0 {
		return false
	}
	a.Ranges = seqRanges(append(a.Ranges, b.Ranges...)).sorted()
	return true
}

// blocked is since when one message has been under way; zero: nothing is.
func (q *sendQueue) blocked() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.busy
}

// begin notes since when a message is under way; zero: none is.
func (q *sendQueue) begin(at time.Time) {
	q.mu.Lock()
	q.busy = at
	q.mu.Unlock()
}

// run sends until done is closed or a send fails; the receiver learns of the same end.
func (q *sendQueue) run(done <-chan struct{}, send func(any) error) {
	for {
		q.mu.Lock()
		batch := q.queue
		q.queue = nil
		q.mu.Unlock()
		for _, m := range batch {
			q.begin(time.Now())
			if send(m) != nil {
				return
			}
		}
		q.begin(time.Time{})
		if len(batch) > 0 {
			continue
		}
		select {
		case <-q.more:
		case <-done:
			return
		}
	}
}

// toSource translates what the ledger says to the source.
func toSource(m any) *pluginv1.ReadRequest {
	switch m := m.(type) {
	case SourceAck:
		return &pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{Ack: &pluginv1.SourceAck{
			ThroughSeq: m.ThroughSeq, Ranges: m.Ranges, Position: m.Position,
		}}}
	case Hold:
		return &pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Hold{Hold: &pluginv1.Hold{
			Keys: m.Keys, Ids: m.IDs, Returned: m.Returned,
		}}}
	case Release:
		return &pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Release{Release: &pluginv1.Release{Keys: m.Keys, Ids: m.IDs}}}
	case Stop:
		return &pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Stop{Stop: &pluginv1.Stop{}}}
	}
	return nil
}

// toSink translates what the ledger says to a sink.
func toSink(m any) any {
	switch m := m.(type) {
	case Deliver:
		return m.Batch.Request()
	case Release:
		return &pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Release{Release: &pluginv1.Release{Keys: m.Keys}}}
	case Stop:
		return &pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Stop{Stop: &pluginv1.Stop{}}}
	}
	return nil
}

package sdk

import (
	"context"
	"sync"
)

// queue brings requests from the goroutine that reads the stream to a plugin that reads Requests when it can, so that
// Release, Window and Stop are seen however busy the plugin is.
//
// I7: it is bounded by what a host may have open at all. A host that keeps to the window never fills it; for one that
// does not, room waits, and gRPC's flow control makes it wait too.
type queue struct {
	out   chan Request
	added chan struct{} // capacity 1: something was added, or the queue was closed
	taken chan struct{} // capacity 1: something was taken

	mu     sync.Mutex
	items  []queued
	size   Window // what is in items
	limit  Window
	closed bool
}

// controlSlack is how many requests beside events may wait.
const controlSlack = 64

type queued struct {
	request Request
	size    Window
}

func newQueue(limit Window) *queue {
	return &queue{
		out:   make(chan Request),
		added: make(chan struct{}, 1),
		taken: make(chan struct{}, 1),
		limit: limit,
	}
}

// room waits until something of that size may be added. There is one adder, so that room lasts until it adds. Like a
// byte window, the queue always admits one.
func (q *queue) room(ctx context.Context, size Window) error {
	for {
		q.mu.Lock()
		ok := q.size == Window{} ||
			(q.size.Events+size.Events <= q.limit.Events+controlSlack &&
				(size.Bytes == 0 || q.size.Bytes+size.Bytes <= q.limit.Bytes))
		q.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-q.taken:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// add never blocks.
func (q *queue) add(r Request, size Window) {
	q.mu.Lock()
	if w, ok := r.(Window); ok { // what was sent under a larger window may still be on its way
		q.limit.Events, q.limit.Bytes = max(q.limit.Events, w.Events), max(q.limit.Bytes, w.Bytes)
	}
	q.items = append(q.items, queued{r, size})
	q.size.Events += size.Events
	q.size.Bytes += size.Bytes
	q.mu.Unlock()
	wake(q.added)
}

// close lets run end when everything has been taken.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	wake(q.added)
}

// run moves requests to out, until the queue was closed and is empty, or ctx has ended; then it closes out.
func (q *queue) run(ctx context.Context) {
	defer close(q.out)
	var batch []queued
	for {
		q.mu.Lock()
		batch, q.items = q.items, batch[:0]
		closed := q.closed
		q.mu.Unlock()
		if len(batch) == 0 && closed {
			return
		}
		for i := range batch {
			select {
			case q.out <- batch[i].request:
			case <-ctx.Done():
				return
			}
			q.mu.Lock()
			q.size.Events -= batch[i].size.Events
			q.size.Bytes -= batch[i].size.Bytes
			q.mu.Unlock()
			batch[i] = queued{}
			wake(q.taken)
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-q.added:
		case <-ctx.Done():
			return
		}
	}
}

// wake leaves a mark in a channel of capacity 1.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

package netproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	chunkBytes = 32 << 10
	queued     = 64 // chunks under way in one direction, so that latency does not become a limit of the rate
	forever    = time.Hour
)

// link is one connection through the proxy: two TCP connections and a way in each direction.
type link struct {
	client, server *net.TCPConn
	ways           [2]*way
	done           chan struct{} // closed by reset
	once           sync.Once
}

// way carries bytes in one direction. Its reader and its writer are apart, so that each chunk is late by the latency and no
// more.
type way struct {
	p        *Proxy
	l        *link
	dir      Direction
	src, dst *net.TCPConn
	queue    chan chunk // closed by the reader at the end of src
	closed   atomic.Bool
}

type chunk struct {
	data []byte
	at   time.Time // when it arrived
}

func newLink(p *Proxy, client, server *net.TCPConn) *link {
	l := &link{client: client, server: server, done: make(chan struct{})}
	l.ways[Up.index()] = &way{p: p, l: l, dir: Up, src: client, dst: server, queue: make(chan chunk, queued)}
	l.ways[Down.index()] = &way{p: p, l: l, dir: Down, src: server, dst: client, queue: make(chan chunk, queued)}
	return l
}

// index of Up or Down.
func (d Direction) index() int {
	switch d {
	case Up:
		return 0
	case Down:
		return 1
	}
	panic("BUG: one direction is wanted here, Up or Down")
}

// run returns when both directions have ended or the link was reset.
func (l *link) run() {
	var wg sync.WaitGroup
	for _, w := range l.ways {
		wg.Go(w.read)
		wg.Go(w.write)
	}
	wg.Wait()
	_ = l.client.Close()
	_ = l.server.Close()
}

// reset ends both connections with an RST.
func (l *link) reset() {
	l.once.Do(func() {
		close(l.done)
		resetConn(l.client)
		resetConn(l.server)
	})
}

func resetConn(c *net.TCPConn) {
	_ = c.SetLinger(0) // close sends RST and drops what is buffered
	_ = c.Close()
}

func (w *way) read() {
	defer close(w.queue)
	for {
		buf := make([]byte, chunkBytes)
		n, err := w.src.Read(buf)
		if n > 0 {
			select {
			case w.queue <- chunk{buf[:n], time.Now()}:
			case <-w.l.done:
				return
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			w.l.reset() // an RST is passed on as an RST
			return
		}
	}
}

func (w *way) write() {
	for c := range w.queue {
		if !w.pass(c) {
			return
		}
	}
	if w.wait(time.Now()) {
		w.shut()
	}
}

// pass writes one chunk when its time has come; false means that the link is over.
func (w *way) pass(c chunk) bool {
	if !w.wait(c.at) {
		return false
	}
	if w.closed.Load() {
		return true // half-closed by the test: thrown away
	}
	n, cut := w.spend(len(c.data))
	if _, err := w.dst.Write(c.data[:n]); err != nil && !w.closed.Load() {
		w.l.reset()
		return false
	}
	if cut {
		w.l.reset()
		return false
	}
	return true
}

// wait returns once what arrived at that time may pass, false when the link is over first.
func (w *way) wait(arrived time.Time) bool {
	for {
		w.p.mu.Lock()
		late := time.Until(arrived.Add(w.p.latency))
		stalled := w.p.stalled&w.dir != 0
		changed := w.p.changed
		w.p.mu.Unlock()

		if !stalled && late <= 0 {
			return true
		}
		if stalled {
			late = forever
		}
		timer := time.NewTimer(late)
		select {
		case <-timer.C:
		case <-changed:
		case <-w.l.done:
		}
		timer.Stop()
		select {
		case <-w.l.done:
			return false
		default:
		}
	}
}

// spend takes up to n bytes from the budget of this direction and says how many may pass, and whether they are the last.
func (w *way) spend(n int) (allowed int, cut bool) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	b := &w.p.budgets[w.dir.index()]
	if !b.set {
		return n, false
	}
	if int64(n) < b.left {
		b.left -= int64(n)
		return n, false
	}
	n = int(b.left)
	*b = budget{}
	return n, true
}

// shut ends the stream toward the receiver.
func (w *way) shut() {
	if w.closed.CompareAndSwap(false, true) {
		_ = w.dst.CloseWrite()
	}
}

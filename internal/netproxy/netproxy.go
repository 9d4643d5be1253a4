// Package netproxy is a TCP proxy for tests that misbehaves when told to: it delays, stalls, cuts, half-closes and refuses
// connections between a client and a server. Kernels offer that only to root, and some not at all.
//
// What is set holds at once, for the connections there are and for new ones. A stalled proxy still acknowledges what it is
// sent, as the kernel of a hung process would: only a host that is gone leaves TCP's own keep-alives unanswered.
package netproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is a way through the proxy, or both.
type Direction uint8

// Directions.
const (
	Up   Direction = 1 << iota // from the client to the server
	Down                       // from the server to the client
	Both = Up | Down
)

const dialTimeout = 10 * time.Second

// Proxy passes connections to its address on to a target. Its methods may be called side by side.
type Proxy struct {
	addr   string
	dial   func(target string) (net.Conn, error)
	cancel context.CancelFunc // ends every dial
	wg     sync.WaitGroup     // every goroutine of the proxy

	mu       sync.Mutex
	closed   bool
	target   string
	listener net.Listener // nil while refusing
	links    map[*link]struct{}
	accepted int
	changed  chan struct{} // closed, and made anew, when something below changes
	latency  time.Duration
	stalled  Direction
	budgets  [2]budget // by way.index
}

// budget counts the bytes that may still pass before the connection that carries the last of them is cut.
type budget struct {
	set  bool
	left int64
}

// New starts a proxy to target (host:port) on a loopback port of its own.
func New(target string) (*Proxy, error) {
	l, err := Listen()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		addr: l.Addr().String(),
		dial: func(target string) (net.Conn, error) {
			d := net.Dialer{Timeout: dialTimeout}
			return d.DialContext(ctx, "tcp", target)
		},
		cancel:  cancel,
		target:  target,
		links:   make(map[*link]struct{}),
		changed: make(chan struct{}),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serve(l)
	return p, nil
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// Start is New for a test: the proxy ends with it.
func Start(t TB, target string) *Proxy {
	t.Helper()
	p, err := New(target)
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}

// Addr is host:port of the proxy, the same for its life.
func (p *Proxy) Addr() string { return p.addr }

// Accepted counts the connections that clients have made so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Open counts the connections that there are now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// SetTarget sends new connections elsewhere.
func (p *Proxy) SetTarget(target string) {
	p.set(func() { p.target = target })
}

// SetLatency delays what passes by d, each way. A round trip takes 2d more.
func (p *Proxy) SetLatency(d time.Duration) {
	p.set(func() { p.latency = d })
}

// Stall lets nothing through in that direction, ends of connections included, until Resume. What is sent meanwhile is kept,
// up to what fits into the buffers of a connection.
func (p *Proxy) Stall(d Direction) {
	p.set(func() { p.stalled |= d })
}

// Resume lets everything through again.
func (p *Proxy) Resume() {
	p.set(func() { p.stalled = 0 })
}

// Cut resets the connections there are: both ends see ECONNRESET, and what was under way is lost.
func (p *Proxy) Cut() {
	for _, l := range p.snapshot() {
		l.reset()
	}
}

// CutAfter lets n more bytes pass in that direction (Up or Down), then resets the connection that carried the last one. A
// receiver that does not read may lose the last of them.
func (p *Proxy) CutAfter(d Direction, n int64) {
	p.set(func() { p.budgets[d.index()] = budget{set: true, left: n} })
}

// HalfClose tells the receiver of that direction (Up or Down) that no more will come, on the connections there are; what its
// sender still sends is thrown away. The other direction goes on.
func (p *Proxy) HalfClose(d Direction) {
	for _, l := range p.snapshot() {
		l.ways[d.index()].shut()
	}
}

// Refuse refuses new connections (ECONNREFUSED) until Accept. Those there are go on.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	l := p.listener
	p.listener = nil
	p.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
}

// Accept ends Refuse. It fails when another process has taken the port meanwhile.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp4", p.addr)
	if err != nil {
		return fmt.Errorf("listen again: %w", err)
	}
	p.serve(l)
	return nil
}

// Close resets every connection and returns when nothing of the proxy is left.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true // no Accept from here on
	p.mu.Unlock()
	p.Refuse()
	p.cancel()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) snapshot() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

// serve accepts until the listener is closed. Close waits for what it starts. p.mu is held.
func (p *Proxy) serve(l net.Listener) {
	p.listener = l
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // the client has gone already
			}
			p.wg.Go(func() { p.carry(client.(*net.TCPConn)) })
		}
	})
}

// carry is the life of one connection.
func (p *Proxy) carry(client *net.TCPConn) {
	p.mu.Lock()
	p.accepted++
	target := p.target
	p.mu.Unlock()

	server, err := p.dial(target)
	if err != nil {
		resetConn(client)
		return
	}
	l := newLink(p, client, server.(*net.TCPConn))
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		l.reset()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()

	l.run()

	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

package sdk

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"
)

// How long a plugin lives without its host.
const (
	connectTimeout = 15 * time.Second // from the start to the first connection
	lostTimeout    = time.Second      // after the last connection was lost
	stopTimeout    = 500 * time.Millisecond
)

// lifeline ends the process when its host is gone: at the end of stdin, when the last connection has been lost for a
// second, and when no host connects at all. It counts connections as gRPC's stats handler.
type lifeline struct {
	connected func() // called once, before the first connection is served
	asked     func() // called at each health check

	once  sync.Once     // of end
	ended chan struct{} // closed by end
	code  int           // exit code; written before ended is closed

	mu    sync.Mutex
	stop  func() // ends the server
	conns int
	seen  bool
	timer *time.Timer // runs while there is no connection
}

func newLifeline(connected, asked func()) *lifeline {
	l := &lifeline{connected: connected, asked: asked, ended: make(chan struct{})}
	l.timer = time.AfterFunc(connectTimeout, func() { l.alone(connectTimeout) })
	return l
}

// end says that the process is to exit. The first code counts.
func (l *lifeline) end(code int, reason string) {
	l.once.Do(func() {
		slog.Debug("plugin ends", "reason", reason, "exit_code", code)
		l.code = code
		close(l.ended)
	})
}

// served is the exit code when the server has ended by itself.
func (l *lifeline) served() int {
	l.mu.Lock()
	code := exitOK
	if l.stop == nil { // it never came to serve; go-plugin has logged why
		code = exitFailed
	}
	l.mu.Unlock()
	l.end(code, "server ended")
	<-l.ended
	return l.code
}

// watchInput reads stdin to its end: the host holds the other end, so the end means that it is gone, however it died.
func (l *lifeline) watchInput(stdin io.Reader) {
	_, _ = io.Copy(io.Discard, stdin)
	l.end(exitOK, "stdin closed")
}

// watchServer tells how the server is ended.
func (l *lifeline) watchServer(stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stop = stop
}

// stopServer ends the server, and waits for it for a moment: a handler that hangs does not keep the process.
func (l *lifeline) stopServer(served <-chan struct{}) {
	l.mu.Lock()
	stop := l.stop
	l.mu.Unlock()
	if stop == nil {
		return
	}
	go stop()
	t := time.NewTimer(stopTimeout)
	defer t.Stop()
	select {
	case <-served:
	case <-t.C:
	}
}

// alone is called by the timer.
func (l *lifeline) alone(after time.Duration) {
	l.mu.Lock()
	conns, seen := l.conns, l.seen
	l.mu.Unlock()
	switch {
	case conns > 0: // it came while the timer was firing
	case seen:
		l.end(exitOK, "connection lost")
	default:
		slog.Error("no host connected", "after", after.String())
		l.end(exitFailed, "no host connected")
	}
}

// TagConn is called first of all for a connection, after go-plugin has swapped stdout and stderr.
func (l *lifeline) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.seen {
		l.seen = true
		l.connected()
	}
	return ctx
}

// HandleConn counts connections.
func (l *lifeline) HandleConn(_ context.Context, s stats.ConnStats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s.(type) {
	case *stats.ConnBegin:
		l.conns++
		l.timer.Stop()
	case *stats.ConnEnd:
		if l.conns--; l.conns == 0 {
			l.timer = time.AfterFunc(lostTimeout, func() { l.alone(lostTimeout) })
		}
	}
}

// TagRPC sees each call begin.
func (l *lifeline) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if info.FullMethodName == grpc_health_v1.Health_Check_FullMethodName {
		l.asked()
	}
	return ctx
}

// HandleRPC does nothing.
func (l *lifeline) HandleRPC(context.Context, stats.RPCStats) {}

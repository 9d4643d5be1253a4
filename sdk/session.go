package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// ErrStreamEnded is what the methods of a stream return once nothing can be sent any more: the host has gone, or run
// has returned.
var ErrStreamEnded = errors.New("the stream has ended")

// session is one open stream: what reading and writing have in common.
type session struct {
	stream   grpc.ServerStream
	cancel   context.CancelCauseFunc // ends run's context
	requests *queue
	stop     atomic.Bool // Stop has arrived

	sendMu sync.Mutex // gRPC wants one sender at a time
	opened bool       // guarded by sendMu
	over   bool       // guarded by sendMu: the handler has returned, or is about to
}

// send sends one message: a generated one, or a *wire.Frame.
func (s *session) send(m any) error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	return s.sendLocked(m)
}

func (s *session) sendLocked(m any) error {
	if s.over {
		return ErrStreamEnded
	}
	if err := s.stream.SendMsg(m); err != nil {
		// Only the end of the stream makes SendMsg fail, or a message that cannot be encoded, which is a bug.
		return fmt.Errorf("send to the host: %w", err)
	}
	return nil
}

// open sends the one Opened message.
func (s *session) open(m any) error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if s.opened {
		return errors.New("BUG: Opened was called twice")
	}
	if err := s.sendLocked(m); err != nil {
		return err
	}
	s.opened = true
	return nil
}

// end sends the last message and closes the stream for senders. What ended run decides what it is: Stopped, a Fault, or
// no message but a gRPC error, which the host takes for a crash.
func (s *session) end(ctx context.Context, err error, stopped any, fault func(*pluginv1.Fault) any) error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	defer func() { s.over = true }()
	if ctx.Err() != nil {
		if v, ok := errors.AsType[*violation](context.Cause(ctx)); ok {
			return status.Error(v.code, v.Error())
		}
		return status.Error(codes.Canceled, "the host has ended the stream")
	}
	switch {
	case err != nil:
		return s.sendLocked(fault(faultOf(err)))
	case !s.stopTaken():
		e := Transient(errors.New("the plugin stopped its work without being told to")).WithCode("ended_early")
		return s.sendLocked(fault(faultOf(e)))
	}
	return s.sendLocked(stopped)
}

// lost ends run's context when nothing can arrive any more. A host that only closes its side without Stop breaks off.
func (s *session) lost(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("the host closed the stream without Stop")
	}
	s.cancel(err)
}

// stopTaken reports whether Stop has arrived and run has taken it. When it has, the queue closes at once; when
// it has not, the queue still offers it, or a request before it.
func (s *session) stopTaken() bool {
	if !s.stop.Load() {
		return false
	}
	_, more := <-s.requests.out
	return !more
}

// violation is a breach of the protocol. It ends the attempt loudly, and is never guessed around (I6).
type violation struct {
	code codes.Code
	text string
}

func (v *violation) Error() string { return v.text }

// hostBug says that the host broke the protocol, pluginBug that the plugin's code did.
func hostBug(format string, a ...any) error {
	return &violation{codes.InvalidArgument, "protocol: " + fmt.Sprintf(format, a...)}
}

func pluginBug(format string, a ...any) error {
	return &violation{codes.Internal, "BUG in the plugin: " + fmt.Sprintf(format, a...)}
}

// streams sees to it that one stream is open at a time.
type streams struct {
	mu   sync.Mutex
	open *claim
}

type claim struct {
	gone <-chan struct{} // the host has cut the stream
	done chan struct{}   // its handler has returned
}

// claim makes room for a stream, or refuses it. A stream that the host has cut may need a moment to end: the next one
// waits for it.
func (t *streams) claim(ctx context.Context) (release func(), err error) {
	for {
		t.mu.Lock()
		before := t.open
		if before == nil {
			c := &claim{gone: ctx.Done(), done: make(chan struct{})}
			t.open = c
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				t.open = nil
				t.mu.Unlock()
				close(c.done)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-before.gone:
		default:
			return nil, status.Error(codes.FailedPrecondition, "another stream is open")
		}
		select {
		case <-before.done:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// Conversions from and to the protocol.

// Defaults for a host that names no window.
const (
	defaultWindowEvents = 10_000
	defaultWindowBytes  = 64 << 20
)

func windowOf(w *pluginv1.Window) Window {
	r := Window{Events: int(min(w.GetEvents(), 1<<31)), Bytes: int(min(w.GetBytes(), 1<<50))}
	if r.Events == 0 {
		r.Events = defaultWindowEvents
	}
	if r.Bytes == 0 {
		r.Bytes = defaultWindowBytes
	}
	return r
}

func instanceOf(i *pluginv1.Instance) Instance {
	return Instance{
		HostID:     i.GetHostId(),
		Pipeline:   i.GetPipeline(),
		Name:       i.GetName(),
		Attempt:    i.GetAttempt(),
		OwnerEpoch: i.GetOwnerEpoch(),
	}
}

// defaultDrain is the drain time-out of a host that names none, as in a pipeline file.
const defaultDrain = 30 * time.Second

func drainOf(d *durationpb.Duration) time.Duration {
	if d == nil {
		return defaultDrain
	}
	return max(0, d.AsDuration())
}

func durationOf(d time.Duration) *durationpb.Duration {
	if d < 0 {
		return nil
	}
	return durationpb.New(d)
}

func rangesOf(p []*pluginv1.SeqRange) []SeqRange {
	if len(p) == 0 {
		return nil
	}
	r := make([]SeqRange, len(p))
	for i := range p {
		r[i] = SeqRange{First: p[i].GetFirst(), Last: p[i].GetLast()}
	}
	return r
}

func metricsOf(ms []Metric) []*pluginv1.Metric {
	if len(ms) == 0 {
		return nil
	}
	r := make([]*pluginv1.Metric, len(ms))
	for i := range ms {
		r[i] = &pluginv1.Metric{Name: text(ms[i].Name), Value: ms[i].Value}
	}
	return r
}

// maxText bounds a text for people: an error that quotes a whole statement helps nobody, and fills the host's log.
const maxText = 4 << 10

// text makes a string fit for a protobuf string field: one that is not UTF-8 could not be sent, and the stream would die
// of an error message.
func text(s string) string { return cut(s, maxText) }

// cut returns at most n bytes of s as UTF-8.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

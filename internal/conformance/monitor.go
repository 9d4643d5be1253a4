package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// monitor guards what is known of a stream and wakes those who wait for it to change.
type monitor struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change; nil: nobody waits
}

// update changes what is guarded.
func (m *monitor) update(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// look reads what is guarded.
func (m *monitor) look(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// wait returns when cond says true or an error. cond is called under the lock.
func (m *monitor) wait(ctx context.Context, cond func() (bool, error)) error {
	for {
		m.mu.Lock()
		done, err := cond()
		if done || err != nil {
			m.mu.Unlock()
			return err
		}
		if m.changed == nil {
			m.changed = make(chan struct{})
		}
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ending is what both kinds of streams know of their end and of what was broken before it.
type ending struct {
	monitor
	broken   error           // the first rule that was broken
	accepted bool            // Opened has come
	fault    *pluginv1.Fault // the last message, if it was one
	stopped  bool            // Stopped has come
	ended    error           // why the stream ended: io.EOF, gRPC's error, or why the check ended; nil: it is open
	late     bool            // the check ended
}

// receive takes messages until the stream ends, with ctx or by itself.
func (e *ending) receive(ctx context.Context, recv func() error) {
	for {
		if err := recv(); err != nil {
			late := ctx.Err() != nil
			if late { // gRPC has no better word for it than that the stream was cancelled
				err = context.Cause(ctx)
			}
			e.update(func() { e.ended, e.late = err, late })
			return
		}
	}
}

// breach notes a broken rule. Called under the lock.
func (e *ending) breach(err error) {
	if e.broken == nil {
		e.broken = err
	}
}

// until waits for cond, and reports a broken rule, a fault or an end of the stream that come first.
func (e *ending) until(ctx context.Context, what string, cond func() bool) error {
	err := e.wait(ctx, func() (bool, error) {
		switch {
		case e.broken != nil:
			return false, e.broken
		case cond():
			return true, nil
		case e.fault != nil:
			return false, fmt.Errorf("the stream ended with a fault: %s", faultText(e.fault))
		case errors.Is(e.ended, io.EOF) && e.stopped:
			return false, errors.New("the stream ended with Stopped")
		case errors.Is(e.ended, io.EOF):
			return false, faultRule.broken("the plugin ended the stream without Fault or Stopped")
		case e.late:
			return false, e.ended
		case e.ended != nil:
			return false, fmt.Errorf("the stream broke: %w", e.ended)
		}
		return false, nil
	})
	if _, ok := errors.AsType[*ruleError](err); ok || err == nil {
		return err // has nothing to do with what was waited for
	}
	return fmt.Errorf("wait for %s: %w", what, err)
}

// settles waits until cond, but not longer than it takes to believe that nothing comes any more.
func (e *ending) settles(ctx context.Context, quiet time.Duration, what string, cond func() bool) error {
	short, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	err := e.until(short, what, cond)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

// faulted waits until the stream has ended by itself with a Fault instead of Opened.
func (e *ending) faulted(ctx context.Context) (*pluginv1.Fault, error) {
	err := e.wait(ctx, func() (bool, error) {
		switch {
		case e.broken != nil:
			return false, e.broken
		case e.accepted:
			return false, errors.New("it was opened")
		case e.ended != nil && e.fault == nil:
			return false, fmt.Errorf("the stream ended without Fault: %w", e.ended)
		}
		return e.ended != nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the Fault and the end of the stream: %w", err)
	}
	return e.fault, nil
}

// stoppedWithin waits for Stopped within the drain time-out, and for the end of the stream behind it.
func (e *ending) stoppedWithin(ctx context.Context, drain time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drain, fmt.Errorf("the drain time-out of %v is over", drain))
	defer cancel()
	err := e.until(ctx, "Stopped", func() bool { return e.stopped })
	if err == nil {
		err = e.until(ctx, "the end of the stream after Stopped", func() bool { return e.ended != nil })
	}
	if _, other := errors.AsType[*ruleError](err); err != nil && !other {
		return &ruleError{stopRule, err}
	}
	return err
}

// messageName is the short name of a message: "Ack" and not "*pluginv1.WriteResponse_Ack".
func messageName(m any) string {
	name := fmt.Sprintf("%T", m)
	return name[strings.LastIndexAny(name, "._")+1:]
}

// undated is a context that ends with ctx and has no deadline: gRPC would tell the plugin, and the streams of a host
// have none.
func undated(ctx context.Context) context.Context {
	c, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return c
}

// checkUnknown looks at a message of no kind that we know. One that a later version added is to be passed over.
func checkUnknown(m proto.Message) error {
	if len(m.ProtoReflect().GetUnknown()) > 0 {
		return nil
	}
	return errors.New("an empty message came")
}

func faultText(f *pluginv1.Fault) string {
	s := fmt.Sprintf("%s (%s): %s", f.GetCode(), className(f.GetClass()), f.GetMessage())
	if f.GetHint() != "" {
		s += "; " + f.GetHint()
	}
	return s
}

func className(c pluginv1.ErrorClass) string {
	switch c {
	case pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT:
		return "TRANSIENT"
	case pluginv1.ErrorClass_ERROR_CLASS_PERMANENT:
		return "PERMANENT"
	case pluginv1.ErrorClass_ERROR_CLASS_CONFIG:
		return "CONFIG"
	}
	return "no class"
}

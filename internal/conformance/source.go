package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// sourceChecks are the checks of sources. The first one finds out whether there is anything to read.
var sourceChecks = []check{
	{
		name: "reads-events", anchor: "numbers", config: true, finds: true, run: readsEvents,
		rule: "Events come in batches with consecutive numbers from 1, within the limits of an event.",
	},
	{name: "window", anchor: "window", config: true, run: withinWindow, rule: "No more events are open than the window allows; acks make room."},
	{name: "byte-window", anchor: "window", config: true, run: withinBytes, rule: "A byte window that is too small for any event admits one."},
	{name: "window-grows", anchor: "window", config: true, run: windowGrows, rule: "A window may change while the stream is open."},
	{name: "slow-host", anchor: "window", config: true, run: slowReader, rule: "A host that does not read for a while loses nothing."},
	{name: "acks-last", anchor: "acks", config: true, run: acksLast, rule: "What was acked before Stop has taken effect at Stopped: it never comes again."},
	{name: "nothing-forgotten", anchor: "acks", config: true, run: nothingForgotten, rule: "What was not acked comes again on the next stream, in order per key."},
	{name: "redelivery", anchor: "crash", config: true, run: redeliveryAfterKill, rule: "After kill -9 whatever was not acked comes again, in order per key."},
	{name: "position", anchor: "positions", config: true, run: resumesAtPosition, rule: "A stream opened at a position starts with the event behind it."},
	{
		name: "hold", anchor: "hold", config: true, run: holdsKey,
		rule: "After Held no batch carries the key; after Release it is read again, in order.",
	},
	{name: "held-from-the-start", anchor: "hold", config: true, run: heldFromTheStart, rule: "A key that Open names as held is not read until Release."},
}

// How many events a check works with, and how long a source may take that has no more to give.
const (
	someEvents = 60
	someKeys   = 6
	quiet      = time.Second
)

// connectedSource starts the plugin and opens a stream.
func (r *attempt) connectedSource(ctx context.Context, o sourceOptions) (*process, *sourceStream, error) {
	p, err := r.connected(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := r.openSource(ctx, p, o)
	return p, s, err
}

// fed puts events in and opens a stream.
func (r *attempt) fed(ctx context.Context, o sourceOptions) (*process, *sourceStream, error) {
	if err := r.put(ctx, someEvents, someKeys); err != nil {
		return nil, nil, err
	}
	return r.connectedSource(ctx, o)
}

func readsEvents(ctx context.Context, r *attempt) error {
	_, s, err := r.fed(ctx, sourceOptions{})
	if err != nil {
		return err
	}
	if len(r.spec.Put) == 0 && r.spec.OnPut == nil {
		const long = 5 * time.Second
		if err := s.settles(ctx, long, "events", func() bool { return len(s.readings) >= someEvents }); err != nil {
			return err
		}
		if len(s.ids(nil)) < someEvents {
			r.noEvents = "add `put` to conformance.yaml: a command that puts {events} events over {keys} keys into the source"
			return notRun("%s", r.noEvents)
		}
	}
	if err := s.reads(ctx, someEvents); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	return s.stop(ctx)
}

func withinWindow(ctx context.Context, r *attempt) error {
	const window = 10
	_, s, err := r.fed(ctx, sourceOptions{window: &pluginv1.Window{Events: window, Bytes: windowBytes}})
	if err != nil {
		return err
	}
	for read := 0; read < 3*window; {
		if err := s.reads(ctx, read+1); err != nil {
			return fmt.Errorf("after acks had made room: %w", err)
		}
		// As much as it will give; one too many is noticed as it comes.
		if err := s.settles(ctx, quiet, "a full window", func() bool { return s.openCount == window }); err != nil {
			return err
		}
		if err := s.settles(ctx, quiet/4, "one too many", func() bool { return false }); err != nil {
			return err
		}
		read = len(s.ids(nil))
		if err := s.ackAll(); err != nil {
			return err
		}
	}
	return s.stop(ctx)
}

func withinBytes(ctx context.Context, r *attempt) error {
	_, s, err := r.fed(ctx, sourceOptions{window: &pluginv1.Window{Events: windowEvents, Bytes: 1}})
	if err != nil {
		return err
	}
	for read := 1; read <= 5; read++ {
		if err := s.reads(ctx, read); err != nil {
			return err
		}
		if err := s.ackAll(); err != nil {
			return err
		}
	}
	return s.stop(ctx)
}

func windowGrows(ctx context.Context, r *attempt) error {
	_, s, err := r.fed(ctx, sourceOptions{window: &pluginv1.Window{Events: 2, Bytes: windowBytes}})
	if err != nil {
		return err
	}
	if err := s.reads(ctx, 1); err != nil {
		return err
	}
	if err := s.widen(&pluginv1.Window{Events: 20, Bytes: windowBytes}); err != nil {
		return err
	}
	if err := s.reads(ctx, 3); err != nil {
		return fmt.Errorf("after the window had grown: %w", err)
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	return s.stop(ctx)
}

func slowReader(ctx context.Context, r *attempt) error {
	_, s, err := r.connectedSource(ctx, sourceOptions{})
	if err != nil {
		return err
	}
	gate := make(chan struct{})
	s.update(func() { s.gate = gate })
	err = r.put(ctx, 10*someEvents, someKeys)
	if err == nil {
		err = s.settles(ctx, quiet, "a while", func() bool { return false })
	}
	s.update(func() { s.gate = nil })
	close(gate)
	if err != nil {
		return err
	}
	if err := s.reads(ctx, 10*someEvents); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	return s.stop(ctx)
}

func acksLast(ctx context.Context, r *attempt) error {
	p, s, err := r.fed(ctx, sourceOptions{window: &pluginv1.Window{Events: someEvents, Bytes: windowBytes}})
	if err != nil {
		return err
	}
	if err := s.reads(ctx, someEvents/2); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	if err := s.stop(ctx); err != nil {
		return err
	}
	done := map[string]bool{}
	for _, id := range s.ids(func(r *reading) bool { return r.standing == acked }) {
		done[id] = true
	}
	p.kill()
	_, s, err = r.fed(ctx, sourceOptions{position: s.lastPosition()})
	if err != nil {
		return err
	}
	if err := s.reads(ctx, someEvents); err != nil {
		return err
	}
	for _, id := range s.ids(nil) {
		if done[id] {
			return fmt.Errorf("event %q was acked before Stop, and came again after it", id)
		}
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	return s.stop(ctx)
}

func nothingForgotten(ctx context.Context, r *attempt) error {
	return comesAgain(ctx, r, func(p *process, s *sourceStream) error {
		if err := s.stop(ctx); err != nil {
			return err
		}
		p.kill()
		return nil
	})
}

func redeliveryAfterKill(ctx context.Context, r *attempt) error {
	return comesAgain(ctx, r, func(p *process, _ *sourceStream) error { p.kill(); return nil })
}

// comesAgain reads, acks a part, ends the process, and demands the rest of a new one.
func comesAgain(ctx context.Context, r *attempt, end func(*process, *sourceStream) error) error {
	p, s, err := r.fed(ctx, sourceOptions{window: &pluginv1.Window{Events: someEvents, Bytes: windowBytes}})
	if err != nil {
		return err
	}
	if err := s.reads(ctx, someEvents/2); err != nil {
		return err
	}
	if err := s.ackThrough(someEvents / 4); err != nil {
		return err
	}
	if err := end(p, s); err != nil {
		return err
	}
	isOpen := func(r *reading) bool { return r.standing == open }
	owed := s.ids(isOpen)
	_, again, err := r.connectedSource(ctx, sourceOptions{position: s.lastPosition()})
	if err != nil {
		return err
	}
	err = again.until(ctx, "the events that were not acked", func() bool { return missing(owed, again.readings) == "" })
	if err != nil {
		again.look(func() { err = fmt.Errorf("%w; %q has not come again", err, missing(owed, again.readings)) })
		return err
	}
	for _, key := range s.keys() {
		was := s.ids(func(r *reading) bool { return isOpen(r) && r.key == key })
		is := again.ids(func(r *reading) bool { return r.key == key && slices.Contains(was, r.id) })
		if key != "" && !slices.Equal(was, is) {
			return fmt.Errorf("the events of key %q came as %q, and again as %q", key, was, is)
		}
	}
	if err := again.ackAll(); err != nil {
		return err
	}
	return again.stop(ctx)
}

// missing is one of ids that is not among the readings.
func missing(ids []string, rs []*reading) string {
	seen := make(map[string]bool, len(rs))
	for _, r := range rs {
		seen[r.id] = true
	}
	for _, id := range ids {
		if !seen[id] {
			return id
		}
	}
	return ""
}

// keys that were read, each once.
func (s *sourceStream) keys() (keys []string) {
	s.look(func() {
		for _, r := range s.readings {
			if !slices.Contains(keys, r.key) {
				keys = append(keys, r.key)
			}
		}
	})
	return keys
}

func resumesAtPosition(ctx context.Context, r *attempt) error {
	p, s, err := r.fed(ctx, sourceOptions{window: &pluginv1.Window{Events: someEvents / 4, Bytes: windowBytes}})
	if err != nil {
		return err
	}
	if !s.opened.GetHasPositions() {
		return notRun("does not apply: the source has no positions")
	}
	if err := s.reads(ctx, 1); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	position := s.lastPosition()
	if len(position) == 0 {
		return errors.New("the first batch has no position, and none came behind it")
	}
	var through int
	s.look(func() { through = int(s.from) })
	if err := s.reads(ctx, through+2); err != nil {
		return err
	}
	p.kill()
	was := s.ids(nil)[through:]
	_, again, err := r.connectedSource(ctx, sourceOptions{position: bytes.Clone(position)})
	if err != nil {
		return err
	}
	if err := again.reads(ctx, len(was)); err != nil {
		return err
	}
	if is := again.ids(nil)[:len(was)]; !slices.Equal(was, is) {
		return fmt.Errorf("behind the position came %q, and from it on %q", was, is)
	}
	if err := again.ackAll(); err != nil {
		return err
	}
	return again.stop(ctx)
}

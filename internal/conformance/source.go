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
		name: "progress", anchor: "positions", config: true, run: makesProgress,
		rule: "When the log moves on without events a Progress says where to; from it on nothing comes again and nothing is left out.",
	},
	{
		name: "rejected-rows", anchor: "rejected-rows", config: true, run: rejectsRows,
		rule: "A row that can't be an event takes a number as Rejected, with code and message; it is neither lost nor stops its neighbours.",
	},
	{
		name: "hold", anchor: "hold", config: true, run: holdsKey,
		rule: "After Held no batch carries the key; after Release it is read again, in order.",
	},
	{name: "held-from-the-start", anchor: "hold", config: true, run: heldFromTheStart, rule: "A key that Open names as held is not read until Release."},
	{
		name: "hold-by-id", anchor: "hold", config: true, run: holdsID,
		rule: "An event without a key is held by its id, on a stream and from its start, and leaves the others alone.",
	},
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
	if err := r.put(ctx, someEvents); err != nil {
		return nil, nil, err
	}
	return r.connectedSource(ctx, o)
}

func readsEvents(ctx context.Context, r *attempt) error {
	_, s, err := r.fed(ctx, sourceOptions{})
	if err != nil {
		return err
	}
	if !r.canPut() {
		r.try("waited for events")
		const long = 5 * time.Second
		if err := s.settles(ctx, long, "events", func() bool { return len(s.readings) >= someEvents }); err != nil {
			return err
		}
		if len(s.ids(nil)) < someEvents {
			r.noEvents = needs("put")
			return r.noEvents
		}
	}
	if err := s.reads(ctx, someEvents); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	r.saw("%d came, numbered from 1, within all limits, and were acked", len(s.ids(nil)))
	return s.stop(ctx)
}

func withinWindow(ctx context.Context, r *attempt) error {
	const window = 10
	_, s, err := r.fed(ctx, sourceOptions{window: &pluginv1.Window{Events: window, Bytes: windowBytes}})
	if err != nil {
		return err
	}
	r.try("opened a window of %d, acked whenever it was full", window)
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
	r.saw("%d came, never more than %d of them open", len(s.ids(nil)), window)
	return s.stop(ctx)
}

func withinBytes(ctx context.Context, r *attempt) error {
	_, s, err := r.fed(ctx, sourceOptions{window: &pluginv1.Window{Events: windowEvents, Bytes: 1}})
	if err != nil {
		return err
	}
	r.try("opened a window of 1 byte, acked five times")
	for read := 1; read <= 5; read++ {
		if err := s.reads(ctx, read); err != nil {
			return err
		}
		if err := s.ackAll(); err != nil {
			return err
		}
	}
	r.saw("an event came after each ack")
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
	r.try("opened a window of 2 events, made it 20")
	if err := s.widen(&pluginv1.Window{Events: 20, Bytes: windowBytes}); err != nil {
		return err
	}
	if err := s.reads(ctx, 3); err != nil {
		return fmt.Errorf("after the window had grown: %w", err)
	}
	r.saw("more came, without an ack")
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
	r.try("read nothing for %v", quiet)
	err = r.put(ctx, 10*someEvents)
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
	r.saw("%d came afterwards", len(s.ids(nil)))
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
	r.try("acked %d, stopped, started a new process", len(done))
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
	r.saw("%d came, none of them had been acked", len(s.ids(nil)))
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
		r.try("stopped, started a new process")
		return nil
	})
}

func redeliveryAfterKill(ctx context.Context, r *attempt) error {
	return comesAgain(ctx, r, func(p *process, _ *sourceStream) error {
		p.kill()
		r.try("killed the process (SIGKILL), started a new one")
		return nil
	})
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
	r.try("read %s, acked %d", count(len(s.ids(nil)), "event"), len(s.ids(func(r *reading) bool { return r.standing == acked })))
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
	for _, key := range s.seenKeys() {
		was := s.ids(func(r *reading) bool { return isOpen(r) && r.key == key })
		is := again.ids(func(r *reading) bool { return r.key == key && slices.Contains(was, r.id) })
		if key != "" && !slices.Equal(was, is) {
			return fmt.Errorf("the events of key %q came as %q, and again as %q", key, was, is)
		}
	}
	if err := again.ackAll(); err != nil {
		return err
	}
	r.saw("the %d that were not acked came again, in order for each key", len(owed))
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

// seenKeys are the keys that were read, each once.
func (s *sourceStream) seenKeys() (keys []string) {
	s.look(func() {
		for _, r := range s.readings {
			if !slices.Contains(keys, r.key) {
				keys = append(keys, r.key)
			}
		}
	})
	return keys
}

var errNoPositions = doesNotApply("the source has no positions")

func resumesAtPosition(ctx context.Context, r *attempt) error {
	p, s, err := r.fed(ctx, sourceOptions{window: &pluginv1.Window{Events: someEvents / 4, Bytes: windowBytes}})
	if err != nil {
		return err
	}
	if !s.opened.GetHasPositions() {
		return errNoPositions
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
	r.try("acked the position behind %s, read %d more, killed the process, opened a stream at that position", count(through, "event"), len(was))
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
	r.saw("the same %d came", len(was))
	if err := again.ackAll(); err != nil {
		return err
	}
	return again.stop(ctx)
}

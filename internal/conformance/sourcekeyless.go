package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// holdsID holds one event without a key, by its id, lets the others go on, and releases it; then the same with a stream
// that has it held from the start.
func holdsID(ctx context.Context, r *attempt) error {
	p, s, err := r.connectedSource(ctx, sourceOptions{})
	if err != nil {
		return err
	}
	if !s.opened.GetHoldsKeys() {
		return errNoHold
	}
	ids, err := s.keyless(ctx, r)
	if err != nil {
		return err
	}
	id := ids[0]
	r.try("held the event %q by its id, acked the others", id)
	if err := s.holdID(id); err != nil {
		return err
	}
	if err := s.until(ctx, "Held, with the id", func() bool { return s.loose.held(id) }); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	// The ledger refuses a batch with the event.
	if err := s.settles(ctx, quiet, "what comes of others", func() bool { return false }); err != nil {
		return err
	}
	r.try("released it")
	if err := s.releaseID(id); err != nil {
		return err
	}
	if err := s.readsID(ctx, id); err != nil {
		return err
	}
	p.kill()
	r.try("killed the process, opened a stream with it held, released it")
	_, s, err = r.connectedSource(ctx, sourceOptions{position: s.lastPosition(), heldIDs: []string{id}})
	if err != nil {
		return err
	}
	if err := s.settles(ctx, quiet, "what comes of others", func() bool { return false }); err != nil {
		return err
	}
	if err := s.releaseID(id); err != nil {
		return err
	}
	if err := s.readsID(ctx, id); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	r.saw("it did not come while it was held, and each time afterwards")
	return s.stop(ctx)
}

// keyless waits for events without a key, and returns their ids.
func (s *sourceStream) keyless(ctx context.Context, r *attempt) ([]string, error) {
	const some = 6
	bare := func(r *reading) bool { return r.key == "" && !r.rejected && r.standing == open }
	err := r.putKeyless(ctx, some)
	if missing, ok := errors.AsType[*notRunError](err); ok {
		if r.canPut() || r.noEvents != nil {
			return nil, missing
		}
		// A source that makes its own events may make such.
		if err := s.reads(ctx, someEvents); err != nil {
			return nil, err
		}
		if ids := s.ids(bare); len(ids) > 0 {
			return ids, nil
		}
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	r.try("put %d events without a key", some)
	err = s.until(ctx, fmt.Sprintf("%d events without a key", some), func() bool {
		n := 0
		for _, r := range s.readings {
			if bare(r) {
				n++
			}
		}
		return n >= some
	})
	return s.ids(bare), err
}

// holdID asks for an event to be left out, and gives its number back.
func (s *sourceStream) holdID(id string) error {
	h := &pluginv1.Hold{Ids: []string{id}}
	s.update(func() {
		s.loose.ask(id)
		h.Returned = s.take(returned, func(_ uint64, r *reading) bool { return r.id == id })
	})
	return s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Hold{Hold: h}})
}

func (s *sourceStream) releaseID(id string) error {
	s.update(func() { s.loose.release(id) })
	return s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Release{Release: &pluginv1.Release{Ids: []string{id}}}})
}

// readsID waits until the event is open, and acks others meanwhile: a source without end fills any window with them.
func (s *sourceStream) readsID(ctx context.Context, id string) error {
	came := func() bool { return s.openIDs[id] > 0 }
	for {
		const round = 50 * time.Millisecond
		if err := s.settles(ctx, round, fmt.Sprintf("the released event %q", id), came); err != nil {
			return err
		}
		var done bool
		s.look(func() { done = came() })
		if done {
			return nil
		}
		a := &pluginv1.SourceAck{}
		s.update(func() { a.Ranges = s.take(acked, func(_ uint64, r *reading) bool { return r.id != id }) })
		if len(a.GetRanges()) == 0 {
			continue
		}
		if err := s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{Ack: a}}); err != nil {
			return err
		}
	}
}

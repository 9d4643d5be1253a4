package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// makesProgress lets the log move on without an event, acks the Progress that tells of it, and opens another stream at
// that position.
func makesProgress(ctx context.Context, r *attempt) error {
	p, s, err := r.fed(ctx, sourceOptions{})
	if err != nil {
		return err
	}
	switch {
	case !s.opened.GetHasPositions():
		return errNoPositions
	case !r.canPut(): // a source that makes events by itself may never be idle
		return needs("put_other")
	}
	if err := s.reads(ctx, someEvents); err != nil {
		return err
	}
	if err := s.idles(ctx); err != nil {
		return err
	}
	if err := s.progresses(ctx, r); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	position := s.lastPosition()
	done := s.ids(nil)
	if err := r.put(ctx, someEvents); err != nil {
		return err
	}
	if err := s.reads(ctx, len(done)+someEvents); err != nil {
		return err
	}
	p.kill()
	was := s.ids(nil)[len(done):]
	r.try("acked it, read %d more events, killed the process, opened a stream at the position of the Progress", len(was))
	_, again, err := r.connectedSource(ctx, sourceOptions{position: position})
	if err != nil {
		return err
	}
	for _, n := range []int{1, len(was)} { // what is wrong shows at once
		if err := again.reads(ctx, n); err != nil {
			return err
		}
		for i, id := range again.ids(nil)[:n] {
			switch {
			case slices.Contains(done, id):
				return fmt.Errorf("event %q was acked, and came again behind a Progress that stands after it", id)
			case id != was[i]:
				return fmt.Errorf("number %d behind the Progress was %q, and is %q from its position on", i+1, was[i], id)
			}
		}
	}
	if err := again.ackAll(); err != nil {
		return err
	}
	r.saw("the %d behind it came, and nothing of what was before it", len(was))
	return again.stop(ctx)
}

// idles reads and acks until nothing more comes, what other checks have left behind included.
func (s *sourceStream) idles(ctx context.Context) error {
	for read := -1; read < len(s.ids(nil)); {
		read = len(s.ids(nil))
		if err := s.ackAll(); err != nil {
			return err
		}
		if err := s.settles(ctx, quiet, "more events", func() bool { return len(s.readings) > read }); err != nil {
			return err
		}
	}
	return nil
}

// progresses waits for a Progress behind all events.
func (s *sourceStream) progresses(ctx context.Context, r *attempt) error {
	var before uint64
	s.look(func() { before = s.idled })
	came := func() bool { return s.idled > before }
	r.try("read and acked %s, had the log move on (`put_other`)", count(len(s.ids(nil)), "event"))
	err := r.putOther(ctx)
	if missing, ok := errors.AsType[*notRunError](err); ok {
		// Some sources make progress by themselves.
		const long = 3 * time.Second
		if err := s.settles(ctx, long, "a Progress", came); err != nil {
			return err
		}
		if !came() {
			return missing
		}
		return nil
	}
	if err != nil {
		return err
	}
	return s.until(ctx, "a Progress: the log has moved on, and everything before is acked", came)
}

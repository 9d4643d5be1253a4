package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

var errNoHold = doesNotApply("the source can't hold keys, so its window is a distance")

// holdsKey gives the numbers of one key back, acks the others, and releases the key.
func holdsKey(ctx context.Context, r *attempt) error {
	_, s, err := r.fed(ctx, sourceOptions{})
	if err != nil {
		return err
	}
	if !s.opened.GetHoldsKeys() {
		return errNoHold
	}
	key, err := s.someKey(ctx, r)
	if err != nil {
		return err
	}
	r.try("held the key %q", key)
	ofKey := func(r *reading) bool { return r.key == key }
	if err := s.hold(key); err != nil {
		return err
	}
	if err := s.until(ctx, "Held", func() bool { return s.keys.held(key) }); err != nil {
		return err
	}
	// What still came between Hold and Held goes back too.
	if err := s.giveBack(key); err != nil {
		return err
	}
	was := s.ids(ofKey)
	if err := s.ackAll(); err != nil {
		return err
	}
	r.try("gave %s back, acked the others", count(len(was), "event"))
	// The others go on. The ledger refuses a batch with the key.
	if err := r.put(ctx, someEvents); err != nil {
		return err
	}
	if err := s.settles(ctx, quiet, "what comes of other keys", func() bool { return false }); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	r.try("released it")
	if err := s.releaseKey(key); err != nil {
		return err
	}
	if err := s.readAgain(ctx, key, was); err != nil {
		return err
	}
	r.saw("nothing of it came while it was held, and all in order afterwards")
	return nil
}

// heldFromTheStart leaves a key unacked, and opens another stream that names it as held.
func heldFromTheStart(ctx context.Context, r *attempt) error {
	p, s, err := r.fed(ctx, sourceOptions{})
	if err != nil {
		return err
	}
	if !s.opened.GetHoldsKeys() {
		return errNoHold
	}
	key, err := s.someKey(ctx, r)
	if err != nil {
		return err
	}
	was := s.ids(func(r *reading) bool { return r.key == key })
	p.kill()
	r.try("read %d events, killed the process, opened a stream with the key %q held", len(s.ids(nil)), key)
	_, s, err = r.connectedSource(ctx, sourceOptions{position: s.lastPosition(), heldKeys: []string{key}})
	if err != nil {
		return err
	}
	if err := s.settles(ctx, quiet, "what comes of other keys", func() bool { return false }); err != nil {
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	r.try("released it")
	if err := s.releaseKey(key); err != nil {
		return err
	}
	if err := s.readAgain(ctx, key, was); err != nil {
		return err
	}
	r.saw("nothing of it came while it was held, and all in order afterwards")
	return nil
}

// someKey waits for a key with at least two events.
func (s *sourceStream) someKey(ctx context.Context, r *attempt) (key string, err error) {
	if err := s.reads(ctx, someEvents); err != nil {
		return "", err
	}
	s.look(func() {
		events := map[string]int{}
		for _, r := range s.readings {
			if events[r.key]++; events[r.key] == 2 && r.key != "" && key == "" {
				key = r.key
			}
		}
	})
	switch {
	case key != "":
		return key, nil
	case r.canPut():
		return "", fmt.Errorf("none of %d events has the key of another; `put` should spread {events} over {keys} keys, in turn", someEvents)
	}
	return "", doesNotApply("no two of the source's first %d events have a key in common", someEvents)
}

// readAgain demands the events of a released key, in the order in which they came first, and ends the stream.
func (s *sourceStream) readAgain(ctx context.Context, key string, was []string) error {
	if len(was) == 0 {
		return errors.New("BUG: no events of the key")
	}
	fresh := func() (ids []string) {
		for _, r := range s.readings {
			if r.key == key && r.standing == open {
				ids = append(ids, r.id)
			}
		}
		return ids
	}
	var is []string
	err := s.until(ctx, fmt.Sprintf("the %d events of the released key %q", len(was), key), func() bool {
		is = fresh()
		return len(is) >= len(was)
	})
	if err != nil {
		return err
	}
	if !slices.Equal(was, is[:len(was)]) {
		return fmt.Errorf("the events of the released key %q came first as %q, and again as %q", key, was, is)
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	return s.stop(ctx)
}

// hold asks for a key to be left out, and gives back what is open of it.
func (s *sourceStream) hold(key string) error {
	h := &pluginv1.Hold{Keys: [][]byte{[]byte(key)}}
	s.update(func() {
		s.keys.ask(key)
		h.Returned = s.take(returned, func(_ uint64, r *reading) bool { return r.key == key })
	})
	return s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Hold{Hold: h}})
}

// giveBack gives back what is open of a key that is held already.
func (s *sourceStream) giveBack(key string) error {
	h := &pluginv1.Hold{}
	s.update(func() { h.Returned = s.take(returned, func(_ uint64, r *reading) bool { return r.key == key }) })
	if len(h.GetReturned()) == 0 {
		return nil
	}
	return s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Hold{Hold: h}})
}

func (s *sourceStream) releaseKey(key string) error {
	s.update(func() { s.keys.release(key) })
	return s.write(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Release{Release: &pluginv1.Release{Keys: [][]byte{[]byte(key)}}}})
}

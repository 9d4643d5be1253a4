package conformance

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// refusedEvent puts a refused event in the middle of a key.
func refusedEvent(ctx context.Context, r *attempt) error {
	if r.spec.Refused == nil {
		return notRun("add `refused` to conformance.yaml: an event that the sink refuses for good")
	}
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	key, other := r.key("refused"), r.key("other")
	bad := uint64(1)
	if s.opened.GetKeepsOrder() {
		bad = 2
		_, err = s.send(r.event(key), r.refused(key), r.event(other), r.event(key), r.event(other), r.event(key))
	} else {
		_, err = s.send(r.refused(key), r.event(other))
	}
	if err != nil {
		return err
	}
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	if err := s.refusedAlone(bad, key); err != nil {
		return err
	}
	if s.opened.GetKeepsOrder() {
		// The key is still closed for what comes now.
		late, err := s.send(r.event(key), r.event(other))
		if err != nil {
			return err
		}
		if err := s.allEnded(ctx); err != nil {
			return err
		}
		if err := s.stand(late, returned, "before Release"); err != nil {
			return err
		}
	}
	// The host has decided what becomes of the refused event; the key goes on under new numbers.
	if err := s.release(key); err != nil {
		return err
	}
	again, err := s.send(r.event(key))
	if err != nil {
		return err
	}
	if s.opened.GetKeepsOrder() {
		if _, err := s.send(r.event(key), r.event(other), r.event(key)); err != nil {
			return err
		}
	}
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	if err := s.ackedFrom(again); err != nil {
		return fmt.Errorf("after Release: %w", err)
	}
	// A key can fail again.
	if bad, err = s.send(r.refused(key)); err != nil {
		return err
	}
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	if err := s.stand(bad, failed, "the second time"); err != nil {
		return err
	}
	return s.stop(ctx)
}

// refusedAlone demands that the number bad failed for good, that later ones of its key were returned, and that all
// others were acked.
func (s *sinkStream) refusedAlone(bad uint64, key string) (err error) {
	s.look(func() {
		for i, n := range s.numbers {
			seq := uint64(i) + 1
			want := acked
			switch {
			case seq == bad:
				want = failed
			case seq > bad && string(n.event.GetKey()) == key:
				want = returned
			}
			if n.standing != want {
				err = fmt.Errorf("number %d %s; number %d of key %q is the refused one, and %d should be %v", seq, n.says(), bad, key, seq, want)
				return
			}
		}
		if f := s.numbers[bad-1].failure; f.GetClass() != pluginv1.ErrorClass_ERROR_CLASS_PERMANENT {
			err = fmt.Errorf("the refused event failed as %s (%s); it should be PERMANENT", className(f.GetClass()), f.GetMessage())
		}
	})
	return err
}

func (s *sinkStream) stand(seq uint64, want standing, when string) (err error) {
	s.look(func() {
		if n := s.numbers[seq-1]; n.standing != want {
			err = fmt.Errorf("number %d %s; %s it should be %v", seq, n.says(), when, want)
		}
	})
	return err
}

func refusedWithoutKey(ctx context.Context, r *attempt) error {
	if r.spec.Refused == nil {
		return notRun("add `refused` to conformance.yaml: an event that the sink refuses for good")
	}
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	empty := r.event("")
	empty.Key = []byte{}
	if _, err := s.send(r.event(""), r.refused(""), r.event(""), empty); err != nil {
		return err
	}
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	if err := s.refusedAlone(2, "no such key"); err != nil {
		return err
	}
	return s.stop(ctx)
}

// redelivery kills the process while events are open, and gives what has not ended to a new one.
func redelivery(ctx context.Context, r *attempt) error {
	p, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	const events = 2000
	keys := s.keysFor(r, 20, events)
	if err := s.batches(ctx, r, events/100, 100, keys); err != nil {
		return err
	}
	if err := s.until(ctx, "the first ack", func() bool { return s.ackedCount > 0 }); err != nil {
		return err
	}
	p.kill()
	var unsettled []*pluginv1.Event
	s.look(func() {
		for _, n := range s.numbers {
			if n.standing == open {
				unsettled = append(unsettled, n.event)
			}
		}
		err = s.broken
	})
	if err != nil {
		return err
	}
	if len(unsettled) == 0 { // it was faster than the signal: what it acked may be offered again all the same
		unsettled = append(unsettled, s.numbers[events-1].event)
	}
	_, s, err = r.connectedSink(ctx)
	if err != nil {
		return fmt.Errorf("after kill -9: %w", err)
	}
	if _, err := s.sendBatch(true, unsettled...); err != nil {
		return err
	}
	if err := s.allAcked(ctx); err != nil {
		return fmt.Errorf("after kill -9: %w", err)
	}
	return s.stop(ctx)
}

// drain sends Stop right behind the events.
func drain(ctx context.Context, r *attempt) error {
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	const events = 1000
	if err := s.batches(ctx, r, 10, events/10, s.keysFor(r, 20, events)); err != nil {
		return err
	}
	return s.stop(ctx) // the ledger refuses a Stopped that comes too early
}

// brokerAway takes the target away and brings it back. A sink goes on by itself, or fails what it can't publish and is
// sent it again.
func brokerAway(ctx context.Context, r *attempt) error {
	if len(r.spec.Break) == 0 && r.spec.OnBreak == nil {
		return notRun("add `break` and `mend` to conformance.yaml: commands that take the target away and bring it back")
	}
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	if err := s.works(ctx, r); err != nil {
		return err
	}
	if err := r.hook(ctx, r.spec.OnBreak, r.spec.Break); err != nil {
		return err
	}
	mended := false
	defer func() {
		if !mended { // or every check behind this one fails too
			_ = r.hook(context.WithoutCancel(ctx), r.spec.OnMend, r.spec.Mend)
		}
	}()
	key := r.key("away")
	waiting := r.event(key)
	away, err := s.send(waiting)
	if err != nil {
		return err
	}
	const long = 3 * time.Second
	err = s.settles(ctx, long, "an end while the target is away", func() bool { return s.numbers[away-1].standing != open })
	if err != nil {
		return err
	}
	if n := s.standing(away); n == acked {
		return fmt.Errorf("number %d was acked while the target was away", away)
	}
	if err := r.hook(ctx, r.spec.OnMend, r.spec.Mend); err != nil {
		return err
	}
	mended = true
	for {
		if err := s.allEnded(ctx); err != nil {
			return fmt.Errorf("after the target is back: %w", err)
		}
		if s.standing(s.next()-1) == acked {
			return s.stop(ctx)
		}
		var f *pluginv1.Failure
		s.look(func() { f = s.numbers[len(s.numbers)-1].failure })
		if f.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_PERMANENT {
			return fmt.Errorf("a usual event failed for good because the target was away: %s", f.GetMessage())
		}
		if err := s.settles(ctx, lookTwice, "a back-off", func() bool { return false }); err != nil {
			return err
		}
		if err := s.release(key); err != nil {
			return err
		}
		if _, err := s.send(waiting); err != nil {
			return err
		}
	}
}

func (s *sinkStream) standing(seq uint64) (how standing) {
	s.look(func() { how = s.numbers[seq-1].standing })
	return how
}

// hook calls the author's function, or runs the command in its place.
func (r *attempt) hook(ctx context.Context, f func(context.Context) error, argv []string) error {
	if f != nil {
		return f(ctx)
	}
	return r.command(ctx, argv)
}

// command runs one of the author's commands.
func (r *attempt) command(ctx context.Context, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // from the author of the plugin under test
	cmd.Dir = r.spec.dir
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %q: %w\n%s", strings.Join(argv, " "), err, out)
	}
	return nil
}

package conformance

import (
	"context"
	"fmt"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// refusedEvent puts a refused event in the middle of a key.
func refusedEvent(ctx context.Context, r *attempt) error {
	if r.spec.Refused == nil {
		return needs("refused")
	}
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	key, other := r.key("refused"), r.key("other")
	bad := uint64(1)
	if s.opened.GetKeepsOrder() {
		r.try("sent 6 events over 2 keys: number 2, of the key %q, is the refused one", key)
		bad = 2
		_, err = s.send(r.event(key), r.refused(key), r.event(other), r.event(key), r.event(other), r.event(key))
	} else {
		r.try("sent the refused event, and one of another key")
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
		r.try("sent one more of that key")
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
	r.try("released the key, and sent usual events and the refused one again")
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
	r.saw("it failed alone, PERMANENT (%s)", s.failureOf(bad).GetCode())
	if s.opened.GetKeepsOrder() {
		r.saw("what was behind it in its key was returned until Release")
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

func (s *sinkStream) failureOf(seq uint64) (f *pluginv1.Failure) {
	s.look(func() { f = s.numbers[seq-1].failure })
	return f
}

func refusedWithoutKey(ctx context.Context, r *attempt) error {
	if r.spec.Refused == nil {
		return needs("refused")
	}
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	empty := r.event("")
	empty.Key = []byte{}
	r.try("sent 4 events without a key, the second of them refused")
	if _, err := s.send(r.event(""), r.refused(""), r.event(""), empty); err != nil {
		return err
	}
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	if err := s.refusedAlone(2, "no such key"); err != nil {
		return err
	}
	r.saw("the others were acked")
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
	var broken error
	s.look(func() { broken = s.broken })
	if broken != nil {
		return broken
	}
	all, acks, unsettled := s.events()
	r.try("sent %d events, killed the process (SIGKILL) after %s", events, count(len(acks), "ack"))
	if len(unsettled) == 0 { // it was faster than the signal: what it acked may be offered again all the same
		unsettled = all[events-1:]
	}
	_, s, err = r.connectedSink(ctx)
	if err != nil {
		return fmt.Errorf("after kill -9: %w", err)
	}
	r.try("sent %d again to a new one", len(unsettled))
	if _, err := s.sendBatch(true, unsettled...); err != nil {
		return err
	}
	if err := s.allAcked(ctx); err != nil {
		return fmt.Errorf("after kill -9: %w", err)
	}
	r.saw("all were acked")
	return s.stop(ctx)
}

// drain sends Stop right behind the events.
func drain(ctx context.Context, r *attempt) error {
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	const events = 1000
	r.try("sent %d events and Stop right behind them", events)
	if err := s.batches(ctx, r, 10, events/10, s.keysFor(r, 20, events)); err != nil {
		return err
	}
	if err := s.stop(ctx); err != nil { // the ledger refuses a Stopped that comes too early
		return err
	}
	all, acks, _ := s.events()
	r.saw("Stopped came when every number had ended, %d of %d acked", len(acks), len(all))
	return nil
}

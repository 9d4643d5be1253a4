package conformance

import (
	"context"
	"fmt"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// targetChecks look at what a sink has published.
var targetChecks = []check{
	{
		name: "acked-is-published", anchor: "order", config: true, run: ackedIsPublished,
		rule: "A sink acks an event only when the target has confirmed it: what it had acked before kill -9 is there.",
	},
	{
		name: "order-at-target", anchor: "crash", config: true, run: orderAtTarget,
		rule: "The first deliveries of every key reach the target in order, also through kill -9; nothing is lost and nothing invented.",
	},
	{
		name: "refused-at-target", anchor: "failures", config: true, run: refusedAtTarget,
		rule: "What failed or was returned is not at the target; after Release the key goes on there in order.",
	},
}

// ackedIsPublished kills the process at the first ack it hears, and looks whether the target has what was acked.
func ackedIsPublished(ctx context.Context, r *attempt) error {
	if err := r.observable(); err != nil {
		return err
	}
	r.try("sent batches of 1, 10, 100 and 500 events, each to a new process that was killed at its first ack")
	total := 0
	for round, size := range []int{1, 10, 100, 500} {
		p, s, err := r.connectedSink(ctx)
		if err != nil {
			return err
		}
		if err := s.batches(ctx, r, 1, size, r.keys(fmt.Sprintf("acked-%d", round), size)); err != nil {
			return err
		}
		if err := s.until(ctx, "the first ack", func() bool { return s.ackedCount > 0 }); err != nil {
			return err
		}
		p.kill()
		all, acks, _ := s.events()
		v, err := r.viewOf(ctx, all)
		if err != nil {
			return err
		}
		if err := v.holds(acks); err != nil {
			return err
		}
		total += len(acks)
	}
	r.saw("all %d that were acked are at the target", total)
	return nil
}

// orderAtTarget kills the process in the middle of many events, sends to a new one what had not ended and then the
// rest, as a host does, and looks before and after it.
func orderAtTarget(ctx context.Context, r *attempt) error {
	if err := r.observable(); err != nil {
		return err
	}
	p, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	nkeys, n, size := 20, 10, 50
	if !s.opened.GetKeepsOrder() { // one event of a key at a time
		nkeys, n, size = 200, 1, 200
	}
	keys := r.keys("order", nkeys)
	if n == 1 {
		if err := s.batches(ctx, r, 3, size, keys); err != nil {
			return err
		}
		if err := s.allAcked(ctx); err != nil {
			return err
		}
	}
	before := s.acks()
	if err := s.batches(ctx, r, n, size, keys); err != nil {
		return err
	}
	if err := s.until(ctx, "the first ack", func() bool { return s.ackedCount > before }); err != nil {
		return err
	}
	p.kill()
	all, acks, unsettled := s.events()
	r.try("sent %d events over %d keys, killed the process after %s", len(all), nkeys, count(len(acks), "ack"))
	v, err := r.viewOf(ctx, all)
	if err != nil {
		return err
	}
	if err := v.holds(acks); err != nil {
		return err
	}
	if err := v.inOrder(); err != nil {
		return fmt.Errorf("after kill -9: %w", err)
	}

	_, s, err = r.connectedSink(ctx)
	if err != nil {
		return fmt.Errorf("after kill -9: %w", err)
	}
	r.try("sent the %d unsettled ones again and %d more", len(unsettled), nkeys)
	if len(unsettled) > 0 {
		if _, err := s.sendBatch(true, unsettled...); err != nil {
			return err
		}
	}
	if !s.opened.GetKeepsOrder() {
		if err := s.allEnded(ctx); err != nil {
			return err
		}
	}
	if err := s.batches(ctx, r, 1, nkeys, keys); err != nil {
		return err
	}
	if err := s.allAcked(ctx); err != nil {
		return fmt.Errorf("after kill -9: %w", err)
	}
	if err := s.stop(ctx); err != nil {
		return err
	}
	sent, _, _ := s.events()
	all = append(all, sent[len(unsettled):]...)
	if v, err = r.viewOf(ctx, all); err != nil {
		return err
	}
	if err := v.holds(all); err != nil {
		return err
	}
	if err := v.inOrder(); err != nil {
		return err
	}
	r.saw("all %d are at the target, in order for each key, with %s", len(all), count(v.again, "repeat"))
	return nil
}

// refusedAtTarget puts a refused event in the middle of a key and looks before and after Release.
func refusedAtTarget(ctx context.Context, r *attempt) error {
	if err := r.observable(); err != nil {
		return err
	}
	if r.spec.Refused == nil {
		return needs("refused")
	}
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	key, other := r.key("refused-at-target"), r.key("other-at-target")
	bad := r.refused(key)
	sent := []*pluginv1.Event{bad, r.event(other)}
	var behind []*pluginv1.Event
	if s.opened.GetKeepsOrder() {
		behind = []*pluginv1.Event{r.event(key), r.event(key)}
		sent = []*pluginv1.Event{r.event(key), bad, behind[0], r.event(other), behind[1]}
	}
	r.try("sent %s, one of them refused", count(len(sent), "event"))
	if _, err := s.send(sent...); err != nil {
		return err
	}
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	v, err := r.viewOf(ctx, sent)
	if err != nil {
		return err
	}
	_, acks, _ := s.events()
	if err := v.holds(acks); err != nil {
		return err
	}
	if err := v.lacks("had failed", bad); err != nil {
		return err
	}
	if err := v.lacks("had been returned", behind...); err != nil {
		return err
	}
	r.try("released the key and sent what was behind it again")
	if err := s.release(key); err != nil {
		return err
	}
	again := append(behind, r.event(key))
	late, err := s.send(again...)
	if err != nil {
		return err
	}
	if err := s.allEnded(ctx); err != nil {
		return err
	}
	if err := s.ackedFrom(late); err != nil {
		return err
	}
	good := append(acks, again...)
	if v, err = r.viewOf(ctx, good); err != nil {
		return err
	}
	if err := v.holds(good); err != nil {
		return err
	}
	if err := v.inOrder(); err != nil {
		return err
	}
	r.saw("the refused one is not at the target, the others are, in order")
	return s.stop(ctx)
}

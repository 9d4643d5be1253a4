package conformance

import (
	"context"
	"fmt"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// awayCheck leaves the target as it was, if the author's commands do.
var awayCheck = check{
	name: "broker-away", anchor: "broker-away", config: true, run: brokerAway,
	rule: "While the target is away nothing is acked and nothing fails for good; when it is back everything is published, in order for each key.",
}

// brokerAway takes the target away and brings it back. A sink goes on by itself, or fails what it can't publish and is
// sent it again.
func brokerAway(ctx context.Context, r *attempt) error {
	if !r.canBreak() {
		return needs("break", "mend")
	}
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	if err := s.works(ctx, r); err != nil {
		return err
	}
	if err := r.breakTarget(ctx); err != nil {
		return err
	}
	mended := false
	defer func() {
		if !mended { // or every check behind this one fails too
			_ = r.mendTarget(context.WithoutCancel(ctx))
		}
	}()
	waiting := []*pluginv1.Event{r.event(r.key("away-0")), r.event(r.key("away-1"))}
	if s.opened.GetKeepsOrder() {
		for i := range 8 {
			waiting = append(waiting, r.event(r.key(fmt.Sprintf("away-%d", i%2))))
		}
	}
	r.try("sent %d events over 2 keys", len(waiting))
	away, err := s.send(waiting...)
	if err != nil {
		return err
	}
	const long = 3 * time.Second
	err = s.settles(ctx, long, "an end while the target is away", func() bool { return s.openCount == 0 })
	if err != nil {
		return err
	}
	for i := range waiting {
		if s.standing(away+uint64(i)) == acked {
			return fmt.Errorf("number %d was acked while the target was away", away+uint64(i))
		}
	}
	if err := r.mendTarget(ctx); err != nil {
		return err
	}
	mended = true
	if err := s.untilAcked(ctx, away, waiting); err != nil {
		return err
	}
	if r.observable() != nil {
		r.saw("nothing was acked while it was away, and all of it afterwards; whether the target has it in order was not looked at (`observe`)")
		return s.stop(ctx)
	}
	v, err := r.viewOf(ctx, waiting)
	if err != nil {
		return err
	}
	if err := v.holds(waiting); err != nil {
		return err
	}
	if err := v.inOrder(); err != nil {
		return err
	}
	r.saw("nothing was acked while it was away, all of it afterwards, and the target has it in order")
	return s.stop(ctx)
}

// untilAcked sends events again whose numbers, from first on, fail for now, as a host does, until all are acked.
func (s *sinkStream) untilAcked(ctx context.Context, first uint64, events []*pluginv1.Event) error {
	for {
		if err := s.allEnded(ctx); err != nil {
			return fmt.Errorf("after the target is back: %w", err)
		}
		var again []*pluginv1.Event
		var keys []string
		var permanent error
		s.look(func() {
			for i := range events {
				n := s.numbers[first-1+uint64(i)]
				if n.standing != acked {
					again = append(again, n.event)
				}
				if n.standing == failed {
					keys = append(keys, string(n.event.GetKey()))
				}
				if n.failure.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_PERMANENT {
					permanent = fmt.Errorf("a usual event failed for good because the target was away: %s", n.failure.GetMessage())
				}
			}
		})
		if permanent != nil || len(again) == 0 {
			return permanent
		}
		if err := s.settles(ctx, lookTwice, "a back-off", func() bool { return false }); err != nil {
			return err
		}
		if err := s.release(keys...); err != nil {
			return err
		}
		next, err := s.send(again...)
		if err != nil {
			return err
		}
		first, events = next, again
	}
}

func (s *sinkStream) standing(seq uint64) (how standing) {
	s.look(func() { how = s.numbers[seq-1].standing })
	return how
}

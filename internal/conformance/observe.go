package conformance

import (
	"context"
	"fmt"
	"strings"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// targetState is what is known of the ids at a sink's target.
type targetState struct {
	known map[string]bool // there before the run, or sent by it
	no    error           // why nobody can look; nil: somebody can
}

// observes is the first look at the target, before anything is sent: what is there now was not invented by the sink.
var observes = check{
	name: "observe", anchor: "testing", finds: true, run: firstLook,
	rule: "The `observe` of conformance.yaml works, also before anything is published.",
	about: func(s *suite) bool {
		return s.canObserve() && s.described.GetKind() == pluginv1.PluginKind_PLUGIN_KIND_SINK
	},
}

func firstLook(ctx context.Context, r *attempt) error {
	r.try("looked at the target")
	ids, err := r.look(ctx)
	if err != nil {
		r.target.no = notRun("`observe` of conformance.yaml does not work")
		return err
	}
	for _, id := range ids {
		r.target.known[id] = true
	}
	r.saw("%s there before the run", count(len(ids), "id"))
	return nil
}

// observable says whether anybody can look at the target.
func (r *attempt) observable() error {
	if !r.canObserve() {
		return needs("observe")
	}
	return r.target.no
}

// look lists the ids at the target, in its order.
func (r *attempt) look(ctx context.Context) ([]string, error) {
	if r.spec.OnObserve != nil {
		return r.spec.OnObserve(ctx)
	}
	out, err := r.command(ctx, r.spec.Observe)
	if err != nil {
		return nil, err
	}
	var ids []string
	for line := range strings.Lines(string(out)) {
		if id := strings.TrimRight(line, "\r\n"); id != "" {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// view is what the target has of some events, which are given in the order in which they were first sent.
type view struct {
	events []*pluginv1.Event
	first  map[string]int // by id: the place of its first delivery
	again  int            // deliveries of the events beyond the first of each
}

// viewOf looks at the target and demands that nothing is there that was never sent.
func (r *attempt) viewOf(ctx context.Context, events []*pluginv1.Event) (*view, error) {
	ids, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	ours := make(map[string]bool, len(events))
	for _, e := range events {
		ours[e.GetId()] = true
	}
	v := &view{events: events, first: make(map[string]int, len(events))}
	for i, id := range ids {
		switch _, seen := v.first[id]; {
		case !r.target.known[id]:
			return nil, fmt.Errorf("the target has the id %q, which was never sent", id)
		case ours[id] && seen:
			v.again++
		case ours[id]:
			v.first[id] = i
		}
	}
	return v, nil
}

// holds demands events that were acked (I3).
func (v *view) holds(acked []*pluginv1.Event) error {
	var lost []*pluginv1.Event
	for _, e := range acked {
		if _, ok := v.first[e.GetId()]; !ok {
			lost = append(lost, e)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d acked events are not at the target, the first of them %q of key %q", len(lost), len(acked), lost[0].GetId(), lost[0].GetKey())
}

// inOrder demands that the first deliveries of every key are in the order in which they were sent, and that none of them
// is there before one that is not (I4): no retry could repair that.
func (v *view) inOrder() error {
	type seen struct {
		id string
		at int // -1: not there
	}
	last := map[string]seen{}
	for _, e := range v.events {
		k := string(e.GetKey())
		if k == "" {
			continue
		}
		at, ok := v.first[e.GetId()]
		if !ok {
			at = -1
		}
		before, any := last[k]
		switch {
		case any && at >= 0 && before.at < 0:
			return fmt.Errorf("the target has %q of key %q, and not %q, which was sent before it", e.GetId(), k, before.id)
		case any && at >= 0 && at < before.at:
			return fmt.Errorf("the target got %q of key %q before %q, which was sent first", e.GetId(), k, before.id)
		}
		last[k] = seen{e.GetId(), at}
	}
	return nil
}

// lacks demands that events are not there.
func (v *view) lacks(why string, events ...*pluginv1.Event) error {
	for _, e := range events {
		if _, ok := v.first[e.GetId()]; ok {
			return fmt.Errorf("the target has %q of key %q, which %s", e.GetId(), e.GetKey(), why)
		}
	}
	return nil
}

package main

import (
	"context"
	"errors"
)

// measureDrain: how fast the poller empties a full outbox by deleting.
func measureDrain(ctx context.Context, b *bench, r *Result) error {
	return deletingBox(b).measureDrain(ctx, r, 0.8)
}

// measureMark is the same where published rows are marked.
func measureMark(ctx context.Context, b *bench, r *Result) error {
	return markingBox(b).measureDrain(ctx, r, 0.7)
}

// measureDrain: how fast the poller empties a full outbox. The limit is the bare loop on the same rows, as the only user
// of the machine; the relay is measured alone, where what it is compared with is of the same kind, and in a pipeline
// with a sink that takes everything, where the host and the sink want their share of the same processors.
func (x *box) measureDrain(ctx context.Context, r *Result, goal float64) error {
	b, n := x.b, x.b.sizes.drainRows
	server := func() []int { return family(b.pg.PID()) }
	limit := func(ctx context.Context) (float64, error) {
		v, cpu, err := x.bareLoop(ctx, n)
		if err == nil {
			r.add("server processor time, bare", "µs/event", cpu)
		}
		return v, err
	}
	alone := func(ctx context.Context) (float64, error) {
		if err := x.fill(ctx, n); err != nil {
			return 0, err
		}
		s, err := b.startSource(ctx, x.config)
		if err != nil {
			return 0, err
		}
		defer s.stop()
		v, cpu, err := x.drained(ctx, n, server, func() []int { return []int{s.pid()} })
		if err != nil {
			return 0, errors.Join(err, s.fault())
		}
		r.add("server processor time, source alone", "µs/event", cpu[0])
		r.add("source processor time, source alone", "µs/event", cpu[1])
		return v, nil
	}
	chain := func(ctx context.Context) (float64, error) {
		if err := x.fill(ctx, n); err != nil {
			return 0, err
		}
		l, err := b.startRelay(x.config, nullSink())
		if err != nil {
			return 0, err
		}
		defer l.kill()
		if err := l.running(ctx); err != nil {
			return 0, err
		}
		v, cpu, err := x.drained(ctx, n, server,
			func() []int { return []int{l.pids.host} }, func() []int { return []int{l.pids.source} }, func() []int { return []int{l.pids.sink} })
		if err != nil {
			return 0, err
		}
		for i, name := range []string{"server", "host", "source", "sink"} {
			r.add(name+" processor time, pipeline", "µs/event", cpu[i])
		}
		return v, l.stop()
	}
	return b.compare(ctx, r, limit, rate{"source alone", goal, alone}, rate{"pipeline to a null sink", goal, chain})
}

// measureBacklog: does an event cost more when more of them wait? Whole backlogs are drained by the source alone, and once
// by the bare loop: a table that is larger than the caches costs both of them more.
func measureBacklog(ctx context.Context, b *bench, r *Result) error {
	x := deletingBox(b)
	r.add("rows of the small backlog", "", float64(b.sizes.small))
	r.add("rows of the large backlog", "", float64(b.sizes.large))
	const grown = "source: time, large / small"
	for range (b.sizes.rounds + 1) / 2 {
		if err := x.grow(ctx, r, "source", x.sourceCost); err != nil {
			return err
		}
	}
	if err := x.grow(ctx, r, "bare", x.bareCost); err != nil {
		return err
	}
	r.atMost(grown, 1.3)
	return nil
}

// grow drains a small and a large backlog.
func (x *box) grow(ctx context.Context, r *Result, name string, drain func(context.Context, int) (wall, cpu float64, err error)) error {
	smallWall, smallCPU, err := drain(ctx, x.b.sizes.small)
	if err != nil {
		return err
	}
	largeWall, largeCPU, err := drain(ctx, x.b.sizes.large)
	if err != nil {
		return err
	}
	r.add(name+": time, small", "µs/event", smallWall)
	r.add(name+": time, large", "µs/event", largeWall)
	r.add(name+": time, large / small", "ratio", largeWall/smallWall)
	if smallCPU > 0 {
		r.add(name+": processor time, small", "µs/event", smallCPU)
		r.add(name+": processor time, large", "µs/event", largeCPU)
		r.add(name+": processor time, large / small", "ratio", largeCPU/smallCPU)
	}
	x.b.say("  %s: %.1f and %.1f µs/event", name, smallWall, largeWall)
	return nil
}

// bareCost drains n rows with the bare loop: µs of time, and of the server's processor time, an event.
func (x *box) bareCost(ctx context.Context, n int) (wall, cpu float64, err error) {
	perSecond, cpu, err := x.bareLoop(ctx, n)
	return 1e6 / perSecond, cpu, err
}

// sourceCost is the same for the source alone; its processor time is in it, too.
func (x *box) sourceCost(ctx context.Context, n int) (wall, cpu float64, err error) {
	if err := x.fill(ctx, n); err != nil {
		return 0, 0, err
	}
	s, err := x.b.startSource(ctx, x.config)
	if err != nil {
		return 0, 0, err
	}
	defer s.stop()
	perSecond, shares, err := x.drained(ctx, n, func() []int { return family(x.b.pg.PID()) }, func() []int { return []int{s.pid()} })
	if err != nil {
		return 0, 0, errors.Join(err, s.fault())
	}
	return 1e6 / perSecond, shares[0] + shares[1], nil
}

// fault is why the relaying ended, if it did.
func (s *alone) fault() error {
	select {
	case err := <-s.done:
		return err
	default:
		return nil
	}
}

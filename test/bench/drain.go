package main

import (
	"context"
	"errors"
)

// measureDrain: how fast the poller empties a full outbox. The limit is the bare loop on the same rows, as the only user
// of the machine; the relay is measured alone, where what it is compared with is of the same kind, and in a pipeline
// with a sink that takes everything, where the host and the sink want their share of the same processors.
func measureDrain(ctx context.Context, b *bench, r *Result) error {
	n := b.sizes.drainRows
	server := func() []int { return family(b.pg.PID()) }
	limit := func(ctx context.Context) (float64, error) {
		v, cpu, err := b.bareLoop(ctx, n)
		if err == nil {
			r.add("server processor time, bare", "µs/event", cpu)
		}
		return v, err
	}
	alone := func(ctx context.Context) (float64, error) {
		if err := b.fill(ctx, n); err != nil {
			return 0, err
		}
		s, err := b.startSource(ctx)
		if err != nil {
			return 0, err
		}
		defer s.stop()
		v, cpu, err := b.drained(ctx, n, server, func() []int { return []int{s.pid()} })
		if err != nil {
			return 0, errors.Join(err, s.fault())
		}
		r.add("server processor time, source alone", "µs/event", cpu[0])
		r.add("source processor time, source alone", "µs/event", cpu[1])
		return v, nil
	}
	chain := func(ctx context.Context) (float64, error) {
		if err := b.fill(ctx, n); err != nil {
			return 0, err
		}
		l, err := b.startRelay(nullSink())
		if err != nil {
			return 0, err
		}
		defer l.kill()
		if err := l.running(ctx); err != nil {
			return 0, err
		}
		v, cpu, err := b.drained(ctx, n, server,
			func() []int { return []int{l.pids.host} }, func() []int { return []int{l.pids.source} }, func() []int { return []int{l.pids.sink} })
		if err != nil {
			return 0, err
		}
		for i, name := range []string{"server", "host", "source", "sink"} {
			r.add(name+" processor time, pipeline", "µs/event", cpu[i])
		}
		return v, l.stop()
	}
	return b.compare(ctx, r, limit, rate{"source alone", 0.8, alone}, rate{"pipeline to a null sink", 0.8, chain})
}

// measureBacklog: does an event cost more when more of them wait? Whole backlogs are drained by the source alone, and by
// the bare loop: a table that is larger than the caches costs both of them more.
func measureBacklog(ctx context.Context, b *bench, r *Result) error {
	small, large := b.sizes.small, b.sizes.large
	r.add("rows of the small backlog", "", float64(small))
	r.add("rows of the large backlog", "", float64(large))
	for range (b.sizes.rounds + 1) / 2 {
		var grown [2]float64
		for i, side := range []struct {
			name  string
			drain func(context.Context, int) (wall, cpu float64, err error)
		}{{"bare", b.bareCost}, {"source", b.sourceCost}} {
			smallWall, smallCPU, err := side.drain(ctx, small)
			if err != nil {
				return err
			}
			largeWall, largeCPU, err := side.drain(ctx, large)
			if err != nil {
				return err
			}
			r.add(side.name+": time, small", "µs/event", smallWall)
			r.add(side.name+": time, large", "µs/event", largeWall)
			grown[i] = largeWall / smallWall
			r.add(side.name+": time, large / small", "ratio", grown[i])
			if smallCPU > 0 {
				r.add(side.name+": processor time, small", "µs/event", smallCPU)
				r.add(side.name+": processor time, large", "µs/event", largeCPU)
				r.add(side.name+": processor time, large / small", "ratio", largeCPU/smallCPU)
			}
			b.say("  %s: %.1f and %.1f µs/event", side.name, smallWall, largeWall)
		}
		r.add("growth, source / bare", "ratio", grown[1]/grown[0])
	}
	r.below("growth, source / bare", 1.25)
	return nil
}

// bareCost drains n rows with the bare loop: µs of time, and of the server's processor time, an event.
func (b *bench) bareCost(ctx context.Context, n int) (wall, cpu float64, err error) {
	perSecond, cpu, err := b.bareLoop(ctx, n)
	return 1e6 / perSecond, cpu, err
}

// sourceCost is the same for the source alone; its processor time is in it, too.
func (b *bench) sourceCost(ctx context.Context, n int) (wall, cpu float64, err error) {
	if err := b.fill(ctx, n); err != nil {
		return 0, 0, err
	}
	s, err := b.startSource(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer s.stop()
	perSecond, shares, err := b.drained(ctx, n, func() []int { return family(b.pg.PID()) }, func() []int { return []int{s.pid()} })
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

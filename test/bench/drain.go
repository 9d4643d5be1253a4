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

// measureBacklog: does an event cost more when more of them wait? Whole backlogs are drained by the source alone.
func measureBacklog(ctx context.Context, b *bench, r *Result) error {
	sizes := []struct {
		name string
		rows int
	}{{"small", b.sizes.small}, {"large", b.sizes.large}}
	r.add("rows of the small backlog", "", float64(b.sizes.small))
	r.add("rows of the large backlog", "", float64(b.sizes.large))
	for range (b.sizes.rounds + 1) / 2 {
		wall, cpu := map[string]float64{}, map[string]float64{}
		for _, z := range sizes {
			if err := b.fill(ctx, z.rows); err != nil {
				return err
			}
			s, err := b.startSource(ctx)
			if err != nil {
				return err
			}
			perSecond, used, err := b.drained(ctx, z.rows, func() []int { return family(b.pg.PID()) }, func() []int { return []int{s.pid()} })
			if err != nil {
				err = errors.Join(err, s.fault())
			}
			s.stop()
			if err != nil {
				return err
			}
			wall[z.name], cpu[z.name] = 1e6/perSecond, used[0]+used[1]
			r.add("time, "+z.name, "µs/event", wall[z.name])
			r.add("processor time of server and source, "+z.name, "µs/event", cpu[z.name])
			b.say("  %d rows: %.1f µs/event", z.rows, wall[z.name])
		}
		r.add("time, large / small", "ratio", wall["large"]/wall["small"])
		if cpu["small"] > 0 {
			r.add("processor time, large / small", "ratio", cpu["large"]/cpu["small"])
		}
	}
	r.below("time, large / small", 1.25)
	return nil
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

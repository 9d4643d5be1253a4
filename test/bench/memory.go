package main

import (
	"context"
	"fmt"
	"time"

	"github.com/relevo-io/relevo/host/pipeline"
)

// defaultWindow is delivery.max_in_flight.events.
const defaultWindow = 10_000

// memory is the most that each process had.
type memory struct{ host, source, sink int64 }

// watch samples until the time is over or done says so, and keeps the most of each process.
func (m *memory) watch(ctx context.Context, p relayPIDs, d time.Duration, done func(context.Context) (bool, error)) error {
	end := time.Now().Add(d)
	return until(ctx, "the memory was watched", 20*time.Millisecond, func(ctx context.Context) (bool, error) {
		for _, x := range []struct {
			most *int64
			pid  int
		}{{&m.host, p.host}, {&m.source, p.source}, {&m.sink, p.sink}} {
			n, err := resident(ctx, x.pid)
			if err != nil {
				return false, err
			}
			*x.most = max(*x.most, n)
		}
		if done == nil {
			return time.Now().After(end), nil
		}
		return done(ctx)
	})
}

func (m *memory) report(r *Result, state string) {
	const mb = 1 << 20
	r.add(state+": host", "MiB", float64(m.host)/mb)
	r.add(state+": source", "MiB", float64(m.source)/mb)
	r.add(state+": sink", "MiB", float64(m.sink)/mb)
	r.add(state+": all", "MiB", float64(m.host+m.source+m.sink)/mb)
}

// measureMemory: what the three processes of one pipeline take. Pages of their executables count for each.
func measureMemory(ctx context.Context, b *bench, r *Result) error {
	if err := deletingBox(b).fill(ctx, 0); err != nil {
		return err
	}
	s, err := b.startStream(ctx, true, false)
	if err != nil {
		return err
	}
	defer s.stop()
	l, err := b.startRelay(conf{}, natsSink(s.k))
	if err != nil {
		return err
	}
	defer l.kill()
	if err := l.running(ctx); err != nil {
		return err
	}
	var idle memory
	if err := idle.watch(ctx, l.pids, b.sizes.watch, nil); err != nil {
		return err
	}
	idle.report(r, "idle")

	n := b.sizes.memoryRows
	if err := b.add(ctx, n); err != nil {
		return err
	}
	var draining memory
	err = draining.watch(ctx, l.pids, 0, func(ctx context.Context) (bool, error) {
		info, err := s.s.Info(ctx)
		return err == nil && info.State.Msgs == uint64(n), err
	})
	if err != nil {
		return err
	}
	draining.report(r, "draining")
	if _, err := deletingBox(b).gone(ctx, n); err != nil {
		return err
	}

	s.k.stop()
	if err := b.add(ctx, n); err != nil {
		return err
	}
	_, err = l.until(ctx, "the window is full", func(s pipeline.Status) bool { return s.InFlightEvents >= min(n, defaultWindow) })
	if err != nil {
		return err
	}
	var down memory
	if err := down.watch(ctx, l.pids, b.sizes.watch, nil); err != nil {
		return err
	}
	down.report(r, "broker down, window full")
	return nil // the relay is killed: its broker will not come back
}

// add puts n rows into the outbox at once.
func (b *bench) add(ctx context.Context, n int) error {
	_, err := b.admin.Exec(ctx, `
		insert into outbox(id, aggregate_type, aggregate_id, type, payload)
		select gen_random_uuid(), 'order', i % $2::int, 'placed', jsonb_build_object('n', i, 'text', repeat('x', $3::int - 30))
		from generate_series(1, $1::int) i order by i`, n, b.sizes.keys, b.sizes.payload)
	if err != nil {
		return fmt.Errorf("add to the outbox: %w", err)
	}
	return nil
}

// measureStart: a row waits when relevo run is started.
func measureStart(ctx context.Context, b *bench, r *Result) error {
	s, err := b.startStream(ctx, true, false)
	if err != nil {
		return err
	}
	defer s.stop()
	for i := range b.sizes.starts {
		if err := deletingBox(b).fill(ctx, 1); err != nil {
			return err
		}
		l, err := b.startRelay(conf{}, natsSink(s.k))
		if err != nil {
			return err
		}
		err = s.holds(ctx, i+1)
		if err == nil {
			err = l.stop()
		}
		l.kill()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, l.logs())
		}
		at, err := s.stored(ctx, i+1)
		if err != nil {
			return err
		}
		r.add("exec to first message", "s", at.Sub(l.began).Seconds())
	}
	r.below("exec to first message", 1)
	return nil
}

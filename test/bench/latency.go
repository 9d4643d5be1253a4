package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// writers are the service's connections: enough that a commit that waits for the disk delays nobody.
const writers = 8

// measureLatency: how old an event is when the stream has it. A service commits at a fixed rate, one event a transaction;
// the clock runs from just before COMMIT is sent to the time at which the server stored the message. The first second
// is warm-up.
func measureLatency(ctx context.Context, b *bench, r *Result) error {
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
	began := time.Now()
	cpu := used(l.pids.all()...)
	committed, err := b.service(ctx, b.sizes.rate, b.sizes.rate*b.sizes.latencyTicks)
	if err != nil {
		return err
	}
	r.add("events written", "events/s", float64(len(committed))/time.Since(began).Seconds())
	if err := s.holds(ctx, len(committed)); err != nil {
		return err
	}
	r.add("processor time of host, source and sink", "% of one CPU",
		100*float64(used(l.pids.all()...)-cpu)/float64(time.Since(began)))
	stored, err := s.times(ctx)
	if err != nil {
		return err
	}
	var ages, commits []float64
	for _, e := range committed[min(b.sizes.rate, len(committed)/2):] {
		at, ok := stored[e.id]
		if !ok {
			return fmt.Errorf("event %s is not in the stream", e.id)
		}
		ages = append(ages, ms(at.Sub(e.sent)))
		commits = append(commits, ms(e.took))
	}
	slices.Sort(ages)
	slices.Sort(commits)
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}, {"longest", 1}} {
		r.add(q.name, "ms", quantile(ages, q.at))
	}
	r.add("of which the commit itself, p50", "ms", quantile(commits, 0.5))
	r.add("of which the commit itself, p99", "ms", quantile(commits, 0.99))
	return l.stop()
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// commit is one transaction of the service.
type commit struct {
	id   string
	sent time.Time     // just before COMMIT was sent
	took time.Duration // until it was answered
}

// service commits n events at a rate, and returns them in the order of their turns. A commit that takes long makes its
// writer late, not the others.
func (b *bench) service(ctx context.Context, perSecond, n int) ([]commit, error) {
	all := make([]commit, n)
	g, ctx := errgroup.WithContext(ctx)
	conns := make([]*pgx.Conn, writers)
	for i := range conns {
		c, err := pgx.Connect(ctx, b.pg.DSN())
		if err != nil {
			return nil, err
		}
		defer c.Close(context.WithoutCancel(ctx))
		conns[i] = c
	}
	start := time.Now()
	for w, c := range conns {
		g.Go(func() error {
			turn := time.NewTimer(0)
			defer turn.Stop()
			for i := w; i < n; i += writers {
				turn.Reset(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(perSecond))))
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-turn.C:
				}
				var err error
				if all[i], err = b.commit(ctx, c, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return all, g.Wait()
}

func (b *bench) commit(ctx context.Context, c *pgx.Conn, i int) (done commit, err error) {
	tx, err := c.Begin(ctx)
	if err != nil {
		return done, err
	}
	err = tx.QueryRow(ctx, `
		insert into outbox(id, aggregate_type, aggregate_id, type, payload)
		values (gen_random_uuid(), 'order', $1::bigint, 'placed', jsonb_build_object('n', $1::bigint, 'text', repeat('x', $2::int)))
		returning id::text`, i%b.sizes.keys, b.sizes.payload-30).Scan(&done.id)
	if err != nil {
		return done, err
	}
	done.sent = time.Now()
	err = tx.Commit(ctx)
	done.took = time.Since(done.sent)
	return done, err
}

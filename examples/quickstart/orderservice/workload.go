package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// recentOrders is how many orders the workers choose from: few, so that they meet on the same ones.
const recentOrders = 60

// workload makes customers' traffic.
type workload struct {
	events   int
	rate     int
	workers  int
	declined float64

	committed atomic.Int64

	mu     sync.Mutex
	recent []int64 // ids of orders, the latest last
}

// run returns when the wanted number of transactions is committed.
func (w *workload) run(ctx context.Context, s *shop) error {
	turns := make(chan struct{}) // each lets one worker do one transaction
	g, ctx := errgroup.WithContext(ctx)
	for range w.workers {
		g.Go(func() error {
			for range turns {
				if err := w.step(ctx, s); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(turns)
		tick := time.NewTicker(time.Second / time.Duration(w.rate))
		defer tick.Stop()
		for w.committed.Load() < int64(w.events) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			select {
			case turns <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	return g.Wait()
}

var customers = []string{"Ada", "Barbara", "Edsger", "Grace", "Ken", "Margaret", "Radia", "Tony"}

// step does one transaction.
func (w *workload) step(ctx context.Context, s *shop) error {
	declined := rand.Float64() < w.declined
	id, ok := w.pick()
	var err error
	if ok {
		_, err = s.advance(ctx, id, declined)
		if errors.Is(err, errComplete) {
			w.forget(id)
			return nil
		}
	} else {
		var o order
		o, err = s.place(ctx, customers[rand.IntN(len(customers))], 100+rand.Int64N(20_000), declined)
		if err == nil {
			w.remember(o.ID)
		}
	}
	if errors.Is(err, errDeclined) {
		return nil
	}
	if err == nil {
		w.committed.Add(1)
	}
	return err
}

// pick chooses an order to advance; none, now and then, when it is time for a new one.
func (w *workload) pick() (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.recent) == 0 || len(w.recent) < recentOrders && rand.IntN(3) == 0 {
		return 0, false
	}
	return w.recent[rand.IntN(len(w.recent))], true
}

func (w *workload) remember(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recent = append(w.recent, id)
}

func (w *workload) forget(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, r := range w.recent {
		if r == id {
			w.recent = append(w.recent[:i], w.recent[i+1:]...)
			return
		}
	}
}

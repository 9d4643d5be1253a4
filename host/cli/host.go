package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relevo-io/relevo/host/admin"
	"github.com/relevo-io/relevo/host/pipeline"
)

const (
	// lookEvery is how often the host looks whether all pipelines have failed.
	lookEvery = 250 * time.Millisecond
	// sameSignal is how long after the first signal another one is the same: timeout(1), a shell and many supervisors
	// signal a process and then its group, and a drain must not become an abort by that.
	sameSignal = 250 * time.Millisecond
)

var (
	errAborted   = errors.New("second signal: aborted; what was in flight will be delivered again")
	errAllFailed = errors.New("every pipeline has failed")
	errAllEnded  = errors.New("every pipeline has ended by itself")
)

// runner is a *pipeline.Pipeline.
type runner interface {
	Run(ctx context.Context) error
	Drain()
	Status() pipeline.Status
	Tried() bool
}

// host runs pipelines side by side, and the admin server beside them. It is the server's view of them.
type host struct {
	pipelines      []runner
	server         *admin.Server // nil: none
	log            *slog.Logger
	exitWhenFailed bool

	draining atomic.Bool
}

// Pipelines returns the status of each, in the order of the files.
func (h *host) Pipelines() []pipeline.Status {
	all := make([]pipeline.Status, len(h.pipelines))
	for i, p := range h.pipelines {
		all[i] = p.Status()
	}
	return all
}

// Started reports whether every pipeline had its first start attempt.
func (h *host) Started() bool {
	return !slices.ContainsFunc(h.pipelines, func(p runner) bool { return !p.Tried() })
}

// Draining reports whether the host has been told to stop.
func (h *host) Draining() bool { return h.draining.Load() }

// run returns when every pipeline has ended. Nil: all were drained.
func (h *host) run(ctx context.Context, signals <-chan os.Signal) error {
	work, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	var answering sync.WaitGroup
	defer answering.Wait()
	defer stopServing()
	if h.server != nil {
		answering.Go(func() {
			if err := h.server.Run(serving); err != nil {
				// Health checks fail from here on, which is the truth of it; the pipelines are of more use than the port.
				h.log.Error("admin server ended", "err", err)
			}
		})
	}
	ended := h.start(work)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var outcome error
	var first time.Time // when the drain was asked for
	for left := len(h.pipelines); left > 0; {
		select {
		case s := <-signals:
			if !first.IsZero() && time.Since(first) < sameSignal {
				continue
			}
			if h.draining.Swap(true) {
				h.log.Warn("second signal, aborting", "signal", s.String())
				outcome = errAborted
				abort(errAborted)
				signals = nil
				continue
			}
			first = time.Now()
			h.log.Info("draining, a second signal aborts", "signal", s.String())
			h.drain()
		case <-look.C:
			if h.exitWhenFailed && !h.draining.Load() && h.allFailed() {
				h.draining.Store(true)
				outcome = errAllFailed
				h.drain()
			}
		case err := <-ended:
			left--
			if err != nil && outcome == nil {
				outcome = err
			}
		}
	}
	if outcome == nil && !h.draining.Load() {
		outcome = errAllEnded // nobody asked for it
	}
	if outcome != nil {
		h.log.Error("relevo stops", "err", outcome)
		return outcome
	}
	h.log.Info("relevo stops")
	return nil
}

// start runs every pipeline and delivers the outcome of each. The receiver takes as many as there are pipelines, so
// that no goroutine is left behind.
func (h *host) start(ctx context.Context) <-chan error {
	ended := make(chan error, len(h.pipelines)) // one each: a pipeline's end waits for nobody
	for _, p := range h.pipelines {
		go func() {
			err := p.Run(ctx)
			name := p.Status().Name
			switch {
			case err != nil && ctx.Err() == nil:
				h.log.Error("pipeline ended", "pipeline", name, "err", err)
			case err == nil && !h.draining.Load():
				h.log.Error("pipeline ended by itself", "pipeline", name)
			default:
				h.log.Info("pipeline ended", "pipeline", name)
			}
			ended <- err
		}()
	}
	return ended
}

func (h *host) drain() {
	for _, p := range h.pipelines {
		p.Drain()
	}
}

func (h *host) allFailed() bool {
	return !slices.ContainsFunc(h.pipelines, func(p runner) bool { return p.Status().State != pipeline.Failed })
}

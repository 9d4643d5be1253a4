package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
)

// fakePipeline runs until it is told otherwise, as a pipeline does.
type fakePipeline struct {
	name    string
	drained error         // what Run returns after Drain
	deaf    bool          // Drain does not end it
	fails   error         // Run returns at once
	drain   chan struct{} // closed by Drain

	mu    sync.Mutex
	state pipeline.State
	tried bool
}

func newFake(name string) *fakePipeline {
	return &fakePipeline{name: name, drain: make(chan struct{}), state: pipeline.Running}
}

func (f *fakePipeline) Run(ctx context.Context) error {
	if f.fails != nil {
		return f.fails
	}
	drain := f.drain
	if f.deaf {
		drain = nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-drain:
		return f.drained
	}
}

func (f *fakePipeline) Drain() { close(f.drain) }

func (f *fakePipeline) Status() pipeline.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return pipeline.Status{Name: f.name, State: f.state}
}

func (f *fakePipeline) Tried() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tried
}

func (f *fakePipeline) set(s pipeline.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.tried = s, true
}

// startHost runs a host of the pipelines inside a synctest bubble.
func startHost(t *testing.T, exitWhenFailed bool, ps ...*fakePipeline) (h *host, signals chan os.Signal, ended chan error) {
	t.Helper()
	h = &host{log: slog.New(slog.DiscardHandler), exitWhenFailed: exitWhenFailed}
	for _, p := range ps {
		h.pipelines = append(h.pipelines, p)
	}
	signals, ended = make(chan os.Signal, 2), make(chan error, 1)
	go func() { ended <- h.run(t.Context(), signals) }()
	synctest.Wait()
	return h, signals, ended
}

func running(t *testing.T, ended chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-ended:
		t.Fatalf("the host ended: %v", err)
	default:
	}
}

func TestFirstSignalDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, signals, ended := startHost(t, false, newFake("a"), newFake("b"))
		running(t, ended)
		require.False(t, h.Draining())
		signals <- syscall.SIGTERM
		require.NoError(t, <-ended)
		require.True(t, h.Draining())
	})
}

func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		late := newFake("late")
		late.drained = pipeline.ErrDrainTimeout
		_, signals, ended := startHost(t, false, newFake("a"), late)
		signals <- syscall.SIGTERM
		require.ErrorIs(t, <-ended, pipeline.ErrDrainTimeout)
	})
}

func TestSecondSignalAborts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		deaf := newFake("deaf")
		deaf.deaf = true
		_, signals, ended := startHost(t, false, deaf)
		signals <- syscall.SIGTERM
		signals <- syscall.SIGTERM // the same one, to the process group
		running(t, ended)
		time.Sleep(sameSignal)
		signals <- os.Interrupt
		require.ErrorIs(t, <-ended, errAborted)
	})
}

func TestOnePipelineEndsOthersGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := newFake("broken")
		broken.fails = errors.New("no position")
		_, signals, ended := startHost(t, false, broken, newFake("b"))
		time.Sleep(time.Hour)
		running(t, ended)
		signals <- syscall.SIGTERM
		require.EqualError(t, <-ended, "no position", "the exit code tells of it")
	})
}

func TestAllEndedByThemselves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newFake("a")
		_, _, ended := startHost(t, false, p)
		p.Drain() // nobody asked the host for it
		require.ErrorIs(t, <-ended, errAllEnded)
	})
}

func TestExitWhenFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := newFake("a"), newFake("b")
		h, _, ended := startHost(t, true, a, b)
		require.False(t, h.Started())
		a.set(pipeline.Failed)
		time.Sleep(time.Hour)
		running(t, ended)
		require.False(t, h.Started(), "b was not tried yet")
		b.set(pipeline.Failed)
		require.ErrorIs(t, <-ended, errAllFailed)
		require.True(t, h.Started())
		require.Len(t, h.Pipelines(), 2)
	})
	synctest.Test(t, func(t *testing.T) {
		a := newFake("a")
		_, signals, ended := startHost(t, false, a)
		a.set(pipeline.Failed)
		time.Sleep(time.Hour)
		running(t, ended)
		signals <- syscall.SIGTERM
		require.NoError(t, <-ended)
	})
}

func TestRedactor(t *testing.T) {
	t.Parallel()
	hide := redactor([]string{"hunter2", "a", ""})
	require.Equal(t, "login of *** refused, a cat", hide("login of hunter2 refused, a cat"))
	require.Equal(t, "postgres://u:***@h", hide("postgres://u:pw@h"))
}

func TestScreenWithoutTerminal(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := newScreen(&b)
	require.Equal(t, "text", s.paint(red, "text"))
	require.Equal(t, "ok", s.mark(green, "✓", "ok"))
	require.NoError(t, s.table([]string{"A", "B"}, [][]string{{"é", "x"}, {"long", "y"}}))
	require.Equal(t, "A     B\né     x\nlong  y\n", b.String())
	require.Equal(t, "a\ufffd[31mb\nc d", printable("a\x1b[31mb\nc\td"))
}

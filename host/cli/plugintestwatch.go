package cli

import (
	"sync"
	"time"
)

// watching shows on a terminal which check is being made, when it takes more than a second.
type watching struct {
	s    *screen
	done chan struct{}
	runs sync.WaitGroup

	mu    sync.Mutex
	check string
	since time.Time
	shown bool
}

// watch begins to show what is told to starting, until stop.
func watch(s *screen) *watching {
	w := &watching{s: s, done: make(chan struct{})}
	if s.terminal {
		w.runs.Go(w.run)
	}
	return w
}

func (w *watching) starting(check string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.check, w.since = check, time.Now()
}

// interrupt has f print something where the line was.
func (w *watching) interrupt(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wipe()
	w.check = ""
	f()
}

func (w *watching) stop() {
	close(w.done)
	w.runs.Wait()
	w.interrupt(func() {})
}

func (w *watching) run() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.draw()
		case <-w.done:
			return
		}
	}
}

func (w *watching) draw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if took := time.Since(w.since); w.check != "" && took > time.Second {
		w.wipe()
		w.shown = true
		w.s.printf("%s", w.s.paint(dim, "… "+w.check+", "+took.Truncate(time.Second).String()))
	}
}

// wipe takes the line away. Called under mu.
func (w *watching) wipe() {
	if w.shown {
		w.s.printf("\r\x1b[K")
		w.shown = false
	}
}

package main

import (
	"errors"
	"os"
	"sync"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// target is what the sink publishes to: a file of ids, one a line, in the order in which they were published. A line is
// in the file, whatever becomes of the process, when publish returns.
type target struct {
	mu   sync.Mutex
	f    *os.File // nil: there is none, and everything is taken
	late []string // what a bug has acked and not published
}

func openTarget(file string) (*target, error) {
	if file == "" {
		return &target{}, nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return &target{f: f}, err
}

// publish returns when the target has the events.
func (t *target) publish(ids ...string) error {
	if t.f == nil || len(ids) == 0 {
		return nil
	}
	var lines []byte
	for _, id := range ids {
		lines = append(append(lines, id...), '\n')
	}
	_, err := t.f.Write(lines)
	return err
}

// later publishes when the ack is long gone.
func (t *target) later(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.late = append(t.late, id); len(t.late) > 1 {
		return
	}
	time.AfterFunc(50*time.Millisecond, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		_ = t.publish(t.late...)
		t.late = nil
	})
}

// down says whether the target is away: while the file exists that the environment names.
func down() bool {
	file := os.Getenv("BROKEN_DOWN")
	if file == "" {
		return false
	}
	_, err := os.Stat(file)
	return err == nil
}

// queue keeps events in order while the target is away.
type queue struct {
	mu      sync.Mutex
	waiting []waiting
}

type waiting struct {
	seq   uint64
	event *pluginv1.Event
}

// add says whether the event is the first one.
func (q *queue) add(seq uint64, e *pluginv1.Event) (first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, waiting{seq, e})
	return len(q.waiting) == 1
}

func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) == 0
}

// flush waits until the target is back and gives everything to f, in order.
func (q *queue) flush(gone <-chan struct{}, f func(all []waiting) error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for down() {
		select {
		case <-tick.C:
		case <-gone:
			return errors.New("the host has gone")
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	defer func() { q.waiting = nil }()
	return f(q.waiting)
}

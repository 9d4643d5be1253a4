package telemetry

import (
	"sync"
	"sync/atomic"
)

// Outcomes of an event at a sink.
const (
	OutcomeAcked     = "acked"     // the broker has it
	OutcomeDiscarded = "discarded" // given up by policy
	OutcomeFiltered  = "filtered"  // not meant for this sink
)

// maxFailureCodes is how many pairs of class and code a sink shows; codes beyond count as "other". They come from the
// plugin, which might put anything into them.
const maxFailureCodes = 50

// Sink is the metrics of one sink of a pipeline. Its methods may be called from several goroutines.
type Sink struct {
	name string

	acked     atomic.Uint64
	discarded atomic.Uint64
	filtered  atomic.Uint64
	retries   atomic.Uint64
	heldKeys  atomic.Int64

	mu       sync.Mutex
	failures labelled
	outcomes labelled // those without a counter of their own
}

func newSink(name string) *Sink {
	return &Sink{name: name, failures: labelled{max: maxFailureCodes}, outcomes: labelled{max: maxFailureCodes}}
}

// Settled counts n events that are settled at this sink, by outcome (see OutcomeAcked and the others).
func (s *Sink) Settled(outcome string, n int) {
	switch outcome {
	case OutcomeAcked:
		s.acked.Add(uint64(n))
	case OutcomeDiscarded:
		s.discarded.Add(uint64(n))
	case OutcomeFiltered:
		s.filtered.Add(uint64(n))
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outcomes.add("", labelValue(outcome), uint64(n))
	}
}

// Failure counts an event that the sink refused, by class and the plugin's code.
func (s *Sink) Failure(class, code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures.add(class, labelValue(code), 1)
}

// Retry counts n events that were offered again.
func (s *Sink) Retry(n int) { s.retries.Add(uint64(n)) }

// Held sets how many keys are held at the sink now.
func (s *Sink) Held(n int) { s.heldKeys.Store(int64(n)) }

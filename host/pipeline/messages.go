package pipeline

import (
	"slices"
	"time"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Source is the address of the source, and of the pipeline itself, in Out.To; sinks are 0, 1, ….
const Source = -1

// Out is one thing to be done: a message for a plugin, or an effect that the ledger asks of its surroundings.
type Out struct {
	To  int
	Msg any
}

// Messages and effects of a Ledger.
type (
	// SourceAck goes to the source.
	SourceAck struct {
		ThroughSeq uint64
		Ranges     seqRanges
		Position   []byte
	}
	// Hold goes to the source.
	Hold struct {
		Keys     [][]byte
		IDs      []string
		Returned seqRanges
	}
	// Release goes to the source or to a sink.
	Release struct {
		Keys [][]byte
		IDs  []string
	}
	// Stop goes to the source, as its last message.
	Stop struct{}
	// Deliver goes to a sink.
	Deliver struct{ Batch *wire.SinkBatch }

	// OpenSource asks for a new stream from the source; answered by OnSourceOpened or OnSourceEnded.
	OpenSource struct {
		Position []byte
		HeldKeys [][]byte
		HeldIDs  []string
	}
	// OpenSink asks for a new stream to a sink, after the end of the one that there may be; answered by OnSinkOpened.
	OpenSink struct{}
	// StorePosition asks for durability; answered by OnStored.
	StorePosition struct {
		Position []byte
		Through  uint64
	}
	// StoreDiscard asks for durability; answered by OnDiscardStored.
	StoreDiscard struct {
		Discard
		Position []byte // of the newest batch read
	}
	// SeenDiscards tells that discarded events have come back and were left out.
	SeenDiscards struct{ Discards []Discard }
	// ForgetDiscards tells that the position has passed discarded events: they cannot come back.
	ForgetDiscards struct{ Discards []Discard }
	// Drained tells that a stop has ended without a source to be told Stop.
	Drained struct{}
	// RetryLater asks for OnRetryDue(Sink, Lane, Attempts) after a back-off, and for OnFailingLong(Lane) once the lane
	// has been failing for long.
	RetryLater struct {
		Sink int
		Lane Lane
		Failing
	}
	// HeldBack asks for OnHeldRetryDue(Lane) after a back-off.
	HeldBack struct {
		Lane Lane
		Failing
	}
	// ProbeLater asks for OnProbeDue(Sink) after a back-off. Probes is how many have failed so far: what fails beside them
	// was under way when the sink went down, and says nothing new.
	ProbeLater struct{ Sink, Probes int }
)

// Failing describes a failure that lasts.
type Failing struct {
	Sink     int
	EventID  string
	Key      []byte // nil: none
	Class    pluginv1.ErrorClass
	Code     string
	Message  string
	Hint     string // "": none
	Since    time.Time
	Attempts int
}

// seqRanges are runs of numbers.
type seqRanges []*pluginv1.SeqRange

// add appends one number; mostly it extends the last run.
func (r *seqRanges) add(n uint64) {
	if k := len(*r) - 1; k >= 0 && (*r)[k].Last+1 == n {
		(*r)[k].Last = n
		return
	}
	*r = append(*r, &pluginv1.SeqRange{First: n, Last: n})
}

// sorted returns the runs ascending, with neighbours joined.
func (r seqRanges) sorted() seqRanges {
	slices.SortFunc(r, func(a, b *pluginv1.SeqRange) int {
		switch {
		case a.First < b.First:
			return -1
		case a.First > b.First:
			return 1
		}
		return 0
	})
	k := 0
	for i := 1; i < len(r); i++ {
		if r[k].Last+1 == r[i].First {
			r[k].Last = r[i].Last
			continue
		}
		k++
		r[k] = r[i]
	}
	if len(r) == 0 {
		return r
	}
	return r[:k+1]
}

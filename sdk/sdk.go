// Package sdk is all that the author of a Relevo plugin imports.
//
// A plugin is one executable: its main function calls Main with a Plugin, which Source, Sink, BatchSink or StreamSink
// makes. Main does the rest of what docs/plugin-protocol.md asks of a process: the handshake, health, logs, limits, the
// lifeline, the drain, and the sub-commands describe and version. There are three ways to write a sink, from easy to
// fast: a Writer (Sink), a BatchWriter (BatchSink), and the stream itself (StreamSink).
//
// # Output
//
// Log with log/slog: its default logger writes lines that the host reads with level and attributes, at the level that
// the host asks for. What is printed to os.Stdout or os.Stderr becomes a line of the host's log, too.
//
// # Errors
//
// An error is transient unless it is, or wraps, one made by Permanent or Config. Its text reaches the host's log and
// status page: no payloads, no secrets. A panic ends the process; the host starts another and gives it again what was not
// acked.
//
// # Configuration
//
// A configuration is a struct. See Spec for its tags, DecodeConfig for what is refused, and Duration, Size and Secret for
// the types that YAML lacks.
package sdk

import (
	"context"
	"time"

	"github.com/relevo-io/relevo/internal/wire"
)

// Event is one event. In a sink it is a view on the received batch: it stays valid as long as anything refers to it,
// and must not be written to. For Key, Payload and Header.Value nil means absent, empty means present without bytes.
type Event = wire.Event

// Header is one name and value beside the payload of an Event.
type Header = wire.Header

// LimitError says which limit of the protocol an event breaks; Batch.Add returns it.
type LimitError = wire.LimitError

// Plugin is what Main serves.
type Plugin interface {
	registration() *registration
}

// Spec says what a plugin is. C is its configuration: a struct, from whose fields the JSON Schema of Describe is made.
// The json tag names a key, the doc tag describes it (meaning, unit, "Defaults to …"), and the jsonschema tag constrains
// it: `jsonschema:"required"`, "minimum=1,maximum=10", "enum=a,enum=b". The host checks the schema before it opens a
// stream. C may have a method Validate() error for what a schema cannot say; it is called after decoding.
type Spec[C any] struct {
	// Name as in a pipeline file: lower case, digits and dashes. Required.
	Name string
	// Version for people. Defaults to the version of the build.
	Version string
	// Summary is one line that says what the plugin does.
	Summary string
	// Defaults returns a configuration with every default set; what the user wrote is decoded over it. Nil: the zero C.
	Defaults func() C
	// MaxMessageBytes is the largest message that the plugin can receive. Defaults to 4 MiB.
	MaxMessageBytes int
	// HoldsKeys (sources), HasPositions (sources) and KeepsOrder (sinks) say what the plugin can have.
	HoldsKeys, HasPositions, KeepsOrder bool
	// Destination describes what `to` names (sinks). Nil: the sink has no destinations.
	Destination *Destination
	// Check looks at a configuration and the servers behind it, for relevo doctor, and changes nothing. What is wrong is
	// a Finding; an error means that the check could not be made. Nil: nothing to check.
	Check func(ctx context.Context, config C, r CheckRequest) ([]Finding, error)
}

// Destination describes what `to` names at a sink.
type Destination struct {
	Noun      string // the broker's own word: topic, subject, routing key
	MaxBytes  int    // 0: no limit
	Forbidden string // RE2 character class of what may not come out of an event's field; "": anything may
}

// Instance names one place of a plugin in one pipeline, and one attempt at it.
type Instance struct {
	HostID     string
	Pipeline   string
	Name       string // of the sink; "source" for the source
	Attempt    uint64
	OwnerEpoch uint64
}

// Window caps what may be open at once: numbers sent and not yet ended. A byte window always admits one event.
type Window struct {
	Events int
	Bytes  int
}

// CheckRequest is what Check is told beside the configuration.
type CheckRequest struct {
	Instance Instance
	// Position is the stored position of a source; nil: none.
	Position []byte
	// ConstantDestination is the sink's destination where `to` has no placeholder, else "".
	ConstantDestination string
}

// Severity of a Finding.
type Severity int

// Severities, from good to bad.
const (
	OK      Severity = 1
	Warning Severity = 2
	Problem Severity = 3 // an error: the pipeline would not run, or would not keep its promises
)

// Finding is one thing that Check looked at.
type Finding struct {
	Severity Severity
	Code     string // snake_case, stable
	Path     string // JSON pointer into the configuration; "": no one key
	Message  string
	Hint     string // what to do, for people
	SQL      string // statements that mend it, ready to run
}

// Metric is one number of the plugin's own: snake_case, unit last.
type Metric struct {
	Name  string
	Value float64
}

// SourceOpen is what a source is opened with.
type SourceOpen[C any] struct {
	Config       C
	Instance     Instance
	Window       Window
	DrainTimeout time.Duration
	// Position is the stored position; it counts as acked. Nil: none.
	Position []byte
	// HeldKeys and HeldIDs are held from the start; they need no Held.
	HeldKeys [][]byte
	HeldIDs  []string
}

// SinkOpen is what a sink is opened with.
type SinkOpen[C any] struct {
	Config       C
	Instance     Instance
	Window       Window
	DrainTimeout time.Duration
	// ConstantDestination is the destination where `to` has no placeholder, else "".
	ConstantDestination string
}

// SeqRange is a run of sequence numbers, both ends included.
type SeqRange struct{ First, Last uint64 }

// The requests that a host makes of an open stream. A SourceStream brings Ack, Hold, Release, Window and Stop, a
// SinkStream *Events, Window and Stop.
type (
	// Ack: these numbers are settled at every sink; the source may forget them upstream. See SourceAck in the protocol.
	Ack struct {
		ThroughSeq uint64     // with positions
		Position   []byte     // with positions
		Ranges     []SeqRange // without
	}
	// Hold: leave these keys out of the reading (answer Held), and forget the numbers that come back.
	Hold struct {
		Keys     [][]byte
		IDs      []string
		Returned []SeqRange
	}
	// Release: read these keys again, in order.
	Release struct {
		Keys [][]byte
		IDs  []string
	}
	// Stop: apply the acks before it and return from run. It is the last request.
	Stop struct{}
)

// Request is one of Ack, Hold, Release, *Events, Window, Stop.
type Request any

// Rejected is a row that cannot be made into an event.
type Rejected struct {
	ID      string // the event's id, or a stand-in that names the row for a person
	Key     []byte // nil: not known, or none
	Code    string // snake_case
	Message string
}

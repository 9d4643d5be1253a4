package pipeline

import "time"

// State of a pipeline.
type State string

// States, as docs/operating.md explains them.
const (
	Starting      State = "STARTING"
	Standby       State = "STANDBY"
	Running       State = "RUNNING"
	Retrying      State = "RETRYING"      // a broker or the database is away
	Blocked       State = "BLOCKED"       // held keys filled their share, or a failed event holds the source at its window
	Misconfigured State = "MISCONFIGURED" // a person must change something; tried again all the same
	Stalled       State = "STALLED"       // work is pending, nothing settles, and nothing else explains it
	Draining      State = "DRAINING"
	Stopped       State = "STOPPED"
	Failed        State = "FAILED"
)

// States lists every state, for the metric that has one series each.
var States = []State{Starting, Standby, Running, Retrying, Blocked, Misconfigured, Stalled, Draining, Stopped, Failed}

// Status is a pipeline as the API shows it.
type Status struct {
	Name   string    `json:"name"`
	State  State     `json:"state"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
	Order  string    `json:"order,omitempty"`

	Source SourceStatus `json:"source"`
	Sinks  []SinkStatus `json:"sinks"`

	InFlightEvents int        `json:"in_flight_events"`
	InFlightBytes  int        `json:"in_flight_bytes"`
	HeldKeys       int        `json:"held_keys"`
	Held           []HeldKey  `json:"held"` // at most 100
	LastSettled    *time.Time `json:"last_settled,omitempty"`
}

// SourceStatus is a source as the API shows it.
type SourceStatus struct {
	Plugin                  string             `json:"plugin"`
	PID                     int                `json:"pid,omitempty"`
	Attempt                 uint64             `json:"attempt"`
	Restarts                int                `json:"restarts"`
	State                   string             `json:"state"` // connecting, standby, snapshot, streaming, starting, down
	Text                    string             `json:"text,omitempty"`
	Position                string             `json:"position,omitempty"` // as text if it is printable, else hex
	EventsRead              uint64             `json:"events_read"`
	EventsAcked             uint64             `json:"events_acked"`
	ReadRate                float64            `json:"read_rate"` // events a second, over the last 10 s
	OldestUnpublishedSecond *float64           `json:"oldest_unpublished_seconds,omitempty"`
	LagBytes                *uint64            `json:"lag_bytes,omitempty"`
	Backlog                 *uint64            `json:"backlog,omitempty"`
	Metrics                 map[string]float64 `json:"metrics,omitempty"`
}

// SinkStatus is a sink as the API shows it.
type SinkStatus struct {
	Name       string             `json:"name"`
	Plugin     string             `json:"plugin"`
	PID        int                `json:"pid,omitempty"`
	Attempt    uint64             `json:"attempt"`
	Restarts   int                `json:"restarts"`
	State      string             `json:"state"` // ok, slow, down, starting
	Text       string             `json:"text,omitempty"`
	Settled    uint64             `json:"events_settled"`
	SettleRate float64            `json:"settle_rate"` // events a second, over the last 10 s
	InFlight   int                `json:"in_flight_events"`
	Failing    int                `json:"failing_keys"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
}

// HeldKey is a key that waits behind a failed event at a sink.
type HeldKey struct {
	Sink     string    `json:"sink"`
	Key      string    `json:"key"` // at most 64 bytes, hex if not UTF-8; empty for an event without a key
	EventID  string    `json:"event_id"`
	Code     string    `json:"code"`
	Class    string    `json:"class"`
	Message  string    `json:"message"`
	Hint     string    `json:"hint,omitempty"`
	Since    time.Time `json:"since"`
	Attempts int       `json:"attempts"`
	Held     bool      `json:"held"` // the source leaves it out; false: failing, not (yet) held
}

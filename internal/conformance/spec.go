package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v4"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Spec is what the author of a plugin tells the suite: the contents of conformance.yaml beside the executable. All of
// it is optional; checks that need what is missing are reported as not run.
//
// The commands are run without a shell, in the directory of the plugin, with the environment of the suite.
type Spec struct {
	// Config is a configuration with which the plugin works. Without it, {} is tried where the schema allows it.
	Config map[string]any `yaml:"config" json:"config"`
	// Env is added to the environment of the plugin, as `process: env` in a pipeline file.
	Env map[string]string `yaml:"env" json:"env"`
	// StartTimeout is how long the plugin may take from its start to a healthy connection. Defaults to "30s".
	StartTimeout string `yaml:"start_timeout" json:"start_timeout"`

	// Destination is where a sink's events go, for example a topic. Sinks that have destinations need it.
	Destination string `yaml:"destination" json:"destination"`
	// Event says what a sink's events look like, where the default would be refused.
	Event *EventSpec `yaml:"event" json:"event"`
	// Refused is an event that the sink refuses for good (PERMANENT) and that leaves others alone. What it does not say
	// is as in Event.
	Refused *EventSpec `yaml:"refused" json:"refused"`
	// Break is a command that takes the sink's target away, and Mend one that brings it back.
	Break []string `yaml:"break" json:"break"`
	Mend  []string `yaml:"mend" json:"mend"`
	// Observe is a command that prints the ids of the events that a sink's target has: one a line, in the target's order,
	// repeats included. It is run before anything is published, too, and shows whatever the target has confirmed by then.
	// Nobody else may publish there meanwhile.
	Observe []string `yaml:"observe" json:"observe"`
	// Unreachable is what to change in Config so that nothing answers at the other end. It replaces whole top-level keys.
	Unreachable map[string]any `yaml:"unreachable" json:"unreachable"`

	// Put is a command that puts events into the source: {events} of them over {keys} keys, in turn; both are replaced
	// in every argument. Without it the source must make events by itself.
	Put []string `yaml:"put" json:"put"`
	// PutKeyless puts {events} events without a key.
	PutKeyless []string `yaml:"put_keyless" json:"put_keyless"`
	// PutRejected puts {events} rows that can't be made into events, over {keys} keys.
	PutRejected []string `yaml:"put_rejected" json:"put_rejected"`
	// PutOther has the log of a source with positions move on without an event, as a write to another table does.
	PutOther []string `yaml:"put_other" json:"put_other"`

	// The same as functions, for tests in Go. They come before the commands.
	OnBreak       func(ctx context.Context) error                   `yaml:"-" json:"-"`
	OnMend        func(ctx context.Context) error                   `yaml:"-" json:"-"`
	OnObserve     func(ctx context.Context) ([]string, error)       `yaml:"-" json:"-"`
	OnPut         func(ctx context.Context, events, keys int) error `yaml:"-" json:"-"`
	OnPutKeyless  func(ctx context.Context, events int) error       `yaml:"-" json:"-"`
	OnPutRejected func(ctx context.Context, events, keys int) error `yaml:"-" json:"-"`
	OnPutOther    func(ctx context.Context) error                   `yaml:"-" json:"-"`

	dir string // of conformance.yaml, where the commands run
}

// EventSpec says what an event looks like. Fields that are left out keep what they have by default.
type EventSpec struct {
	// ID of the event; for one that is refused by its id. Defaults to one that no other event has.
	ID            string            `yaml:"id" json:"id"`
	Type          string            `yaml:"type" json:"type"`
	AggregateType string            `yaml:"aggregate_type" json:"aggregate_type"`
	ContentType   string            `yaml:"content_type" json:"content_type"`
	Payload       *string           `yaml:"payload" json:"payload"`
	PayloadBytes  int               `yaml:"payload_bytes" json:"payload_bytes"` // instead: so many zero bytes
	Headers       map[string]string `yaml:"headers" json:"headers"`
}

// help is what belongs under the keys that a check may lack.
var help = map[string]string{
	"config":       "a configuration with which the plugin works",
	"destination":  "a destination that events may be sent to",
	"refused":      "an event that the sink refuses for good",
	"break":        "a command that takes the target away",
	"mend":         "a command that brings the target back",
	"observe":      "a command that prints the ids of the events that the target has, one a line, in its order",
	"unreachable":  "what to change in `config` so that nothing answers at the other end",
	"put":          "a command that puts {events} events over {keys} keys into the source",
	"put_keyless":  "a command that puts {events} events without a key into the source",
	"put_rejected": "a command that puts {events} rows into the source that can't be made into events",
	"put_other":    "a command that has the log move on without an event",
}

// Help says what belongs under a key of conformance.yaml, for somebody who has not written it.
func Help(key string) string { return help[key] }

// LoadBeside reads conformance.yaml in the directory of the executable. A file that is not there is an empty Spec.
func LoadBeside(executable string) (*Spec, error) {
	dir := filepath.Dir(executable)
	s, err := Load(filepath.Join(dir, "conformance.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return &Spec{dir: dir}, nil
	}
	return s, err
}

// Load reads a conformance.yaml. Keys that it does not know are an error.
func Load(path string) (*Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read what the plugin's author says: %w", err)
	}
	s := &Spec{dir: filepath.Dir(path)}
	if len(bytes.TrimSpace(data)) == 0 {
		return s, nil
	}
	if err := yaml.Load(data, s, yaml.WithKnownFields()); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, s.check()
}

func (s *Spec) check() error {
	if s.StartTimeout != "" {
		if d, err := time.ParseDuration(s.StartTimeout); err != nil || d <= 0 {
			return fmt.Errorf("start_timeout: %q is not a duration such as 30s", s.StartTimeout)
		}
	}
	if (len(s.Break) == 0 && s.OnBreak == nil) != (len(s.Mend) == 0 && s.OnMend == nil) {
		return errors.New("break and mend: one needs the other")
	}
	for key, c := range map[string]map[string]any{"config": s.Config, "unreachable": s.Unreachable} {
		if _, err := json.Marshal(c); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

func (s *Spec) startTimeout() time.Duration {
	if d, err := time.ParseDuration(s.StartTimeout); err == nil {
		return d
	}
	return 30 * time.Second
}

// apply lays what the author says over an event.
func (s *EventSpec) apply(e *pluginv1.Event) {
	if s == nil {
		return
	}
	if s.ID != "" {
		e.Id = s.ID
	}
	if s.Type != "" {
		e.Type = s.Type
	}
	if s.AggregateType != "" {
		e.AggregateType = s.AggregateType
	}
	if s.ContentType != "" {
		e.ContentType = s.ContentType
	}
	if s.Payload != nil {
		e.Payload = []byte(*s.Payload)
	}
	if s.PayloadBytes > 0 {
		e.Payload = make([]byte, s.PayloadBytes)
	}
	for name, value := range s.Headers {
		e.Headers = append(e.Headers, &pluginv1.Header{Name: name, Value: []byte(value)})
	}
}

// Package plugin is the subprocess side of the host: it finds plugin executables, starts them, talks to them, watches
// them, and ends them. It knows nothing of pipelines.
//
// go-plugin makes the handshake, which is the contract with plugins in other languages. The process is ours: pipes,
// process group, log lines, reaping and killing (runner.go). A Process cleans up after itself however it ends, so that
// nothing leaks when nobody calls Close.
package plugin

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/relevo-io/relevo/internal/wire"
)

// Kind tells sources from sinks.
type Kind string

// Kinds of plugins. The executable of plugin NAME is called KIND-NAME.
const (
	KindSource Kind = "source"
	KindSink   Kind = "sink"
)

// Settings say what to launch, and for whom.
type Settings struct {
	Kind     Kind
	Name     string // plugin name, as in the pipeline file
	Path     string // executable
	Pipeline string
	Instance string // sink name, or "source"
	// StartTimeout bounds the time from exec to a healthy connection. Defaults to 30 s.
	StartTimeout time.Duration
	// Env is added to the allow-list of variables that a plugin gets.
	Env map[string]string
	// RuntimeDir is the 0700 directory in which each process gets a directory for its socket (see RuntimeDir).
	RuntimeDir string
	// MaxMessageBytes is what the plugin can receive, from Describe; 0: 4 MiB.
	MaxMessageBytes int
	// Log receives the plugin's own lines, with level and attributes, and what the host has to say about the process.
	// Nil: nobody reads them.
	Log *slog.Logger
}

// Exit says how a process ended.
type Exit struct {
	Err      error    // nil: exit status 0
	LastLogs []string // the last lines it wrote to stderr, oldest first, at most 10
	Hung     bool     // the host killed it, because its health checks went unanswered
}

func (s Settings) withDefaults() (Settings, error) {
	if s.StartTimeout <= 0 {
		s.StartTimeout = 30 * time.Second
	}
	if s.MaxMessageBytes <= 0 {
		s.MaxMessageBytes = wire.DefaultMaxMessage
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	// A path without a slash would be looked up in $PATH, which must not choose what is executed.
	path, err := filepath.Abs(s.Path)
	if err != nil {
		return s, fmt.Errorf("resolve plugin path %q: %w", s.Path, err)
	}
	s.Path = path
	return s, nil
}

// timing is what tests shorten.
type timing struct {
	healthEvery    time.Duration
	healthDeadline time.Duration
	healthMisses   int           // so many in a row: hung
	exitGrace      time.Duration // from EOF on stdin to SIGKILL
	drainPipes     time.Duration // what is left in the pipes when a stranger keeps them open
}

func defaultTiming() timing {
	return timing{
		healthEvery:    2 * time.Second,
		healthDeadline: 2 * time.Second,
		healthMisses:   5,
		exitGrace:      5 * time.Second,
		drainPipes:     500 * time.Millisecond,
	}
}

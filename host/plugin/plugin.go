// Package plugin is the subprocess side of the host: it finds plugin executables, starts them, talks to them, watches
// them, and ends them. It knows nothing of pipelines.
package plugin

import (
	"context"
	"log/slog"
	"time"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
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
	Log *slog.Logger
}

// Exit says how a process ended.
type Exit struct {
	Err      error    // nil: exit status 0
	LastLogs []string // the last lines it wrote to stderr, oldest first, at most 10
	Hung     bool     // the host killed it, because its health checks went unanswered
}

// Process is one running plugin process, from the handshake on.
type Process struct{}

// Launch starts the executable, makes the handshake and a first health check. ctx bounds the start only. The error
// names the likely cause and ends with the last lines of stderr.
func Launch(ctx context.Context, s Settings) (*Process, error) { panic("TODO") }

// PID of the process that was started.
func (p *Process) PID() int { panic("TODO") }

// Done is closed when the process is gone and reaped.
func (p *Process) Done() <-chan struct{} { panic("TODO") }

// Exit says how it ended; only after Done.
func (p *Process) Exit() Exit { panic("TODO") }

// Alive is when the last health check was answered.
func (p *Process) Alive() time.Time { panic("TODO") }

// Describe asks the plugin what it is.
func (p *Process) Describe(ctx context.Context) (*pluginv1.DescribeResponse, error) { panic("TODO") }

// Check asks for findings.
func (p *Process) Check(ctx context.Context, r *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error) {
	panic("TODO")
}

// Close ends the process in good order: stdin is closed, then it has until ctx ends (at most 5 s), then its group is
// killed. It returns when the process is reaped and everything that Launch started has ended. Idempotent.
func (p *Process) Close(ctx context.Context) { panic("TODO") }

// Kill kills the group at once and returns when the process is reaped. Idempotent.
func (p *Process) Kill() { panic("TODO") }

// ReadStream is one attempt at reading a source. One goroutine may send while another receives.
type ReadStream struct{}

// Read opens the stream and sends Open. ctx is the life of the stream: ending it cuts the stream.
func (p *Process) Read(ctx context.Context, open *pluginv1.SourceOpen) (*ReadStream, error) {
	panic("TODO")
}

// Send sends one request. It can block while the plugin does not read; the end of the stream's context frees it.
func (s *ReadStream) Send(r *pluginv1.ReadRequest) error { panic("TODO") }

// Recv returns the next batch, with its envelope decoded, or any other response. io.EOF: the plugin ended the stream.
func (s *ReadStream) Recv() (*wire.Batch, *pluginv1.ReadResponse, error) { panic("TODO") }

// WriteStream is one attempt at writing to a sink. One goroutine may send while another receives.
type WriteStream struct{}

// Write opens the stream and sends Open. ctx is the life of the stream.
func (p *Process) Write(ctx context.Context, open *pluginv1.SinkOpen) (*WriteStream, error) {
	panic("TODO")
}

// Send sends one request.
func (s *WriteStream) Send(r *pluginv1.WriteRequest) error { panic("TODO") }

// SendFrame sends an encoded WriteRequest (wire.SinkBatch.Request).
func (s *WriteStream) SendFrame(f *wire.Frame) error { panic("TODO") }

// Recv returns the next response. io.EOF: the plugin ended the stream.
func (s *WriteStream) Recv() (*pluginv1.WriteResponse, error) { panic("TODO") }

// Found is one executable that was found.
type Found struct {
	Kind Kind
	Name string
	Path string
}

// Dirs lists where plugins are looked for, in order: dirs (the flag), $RELEVO_PLUGIN_PATH, the directory of the relevo
// executable and its plugins/ sub-directory, /usr/lib/relevo/plugins.
func Dirs(dirs []string) []string { panic("TODO") }

// Find looks a plugin up. The error lists the directories searched, and a name that is close.
func Find(dirs []string, kind Kind, name string) (Found, error) { panic("TODO") }

// List returns every plugin in the directories; the first of a name wins.
func List(dirs []string) []Found { panic("TODO") }

// Describe runs `path describe` and returns what the plugin says of itself. It takes at most 10 s.
func Describe(ctx context.Context, path string) (*pluginv1.DescribeResponse, error) { panic("TODO") }

// RuntimeDir makes (0700) and returns the directory for sockets: $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/relevo, or a
// temporary one. remove deletes what was made.
func RuntimeDir() (dir string, remove func(), err error) { panic("TODO") }

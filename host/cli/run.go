package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/relevo-io/relevo/host/admin"
	"github.com/relevo-io/relevo/host/config"
	"github.com/relevo-io/relevo/host/pipeline"
	"github.com/relevo-io/relevo/host/plugin"
	"github.com/relevo-io/relevo/host/state"
	"github.com/relevo-io/relevo/host/telemetry"
)

type runCommand struct {
	hostFlags
	serveFlags
	Paths          []string `arg:"" name:"path" help:"Pipeline files, or directories of them."`
	LogLevel       string   `help:"debug, info, warn or error. Defaults to info ($$RELEVO_LOG_LEVEL)." enum:"debug,info,warn,error," default:"" placeholder:"LEVEL"`
	LogFormat      string   `help:"auto, text or json; auto is text on a terminal. Defaults to auto ($$RELEVO_LOG_FORMAT)." enum:"auto,text,json," default:"" placeholder:"FORMAT"`
	ExitWhenFailed bool     `help:"Exit with 1 once every pipeline is FAILED, instead of trying again."`
}

// Help is shown by --help.
func (runCommand) Help() string {
	return `Runs every pipeline until SIGTERM or SIGINT. The first signal drains: nothing new is read, what is in flight is settled and
acknowledged, for at most the drain time-out of each pipeline. The second signal aborts at once; what was in flight is
delivered again after the next start. (A repeat within a quarter of a second is taken for the same signal: shells and
supervisors signal a process and its group.)

A broker or a database that is away ends nothing: the pipeline retries, and says so on / of the listen address, in the API,
the metrics and the log.

Example:
  relevo run --listen 127.0.0.1:7070 --state /var/lib/relevo/relevo.db pipelines/`
}

// gcBallast makes the garbage collector think that the heap is larger than it is: what a relay makes is garbage soon, and
// with a small heap it would be collected after every few batches. It is never touched, so it takes no memory itself; what
// it costs is as much garbage again.
const gcBallast = 32 << 20

// Run runs the host.
func (c *runCommand) Run(ctx context.Context, a *app) (err error) {
	ballast := make([]byte, gcBallast)
	defer runtime.KeepAlive(ballast)
	s, err := c.merged(a)
	if err != nil {
		return err
	}
	// Taken before anything is started, so that no signal is lost or kills plugins half-way. Capacity 2: the host can
	// use no more than two.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	// Until anything runs, a signal ends the start.
	starting, started := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer started()
	ps, err := a.pipelines(starting, c.Paths, config.Options{PluginDirs: s.PluginDirs})
	if starting.Err() != nil {
		return nil // nothing to drain
	}
	if err != nil {
		return err
	}
	log := telemetry.NewLogger(a.err.Writer, level(s.Log.Level), s.Log.Format)
	db, err := state.Open(ctx, s.State)
	if err != nil {
		return environment(err)
	}
	defer func() {
		if cerr := db.Close(); err == nil {
			err = cerr
		}
	}()
	runtimeDir, remove, err := plugin.RuntimeDir()
	if err != nil {
		return environment(err)
	}
	defer remove()

	metrics := telemetry.NewMetrics()
	h := &host{log: log, exitWhenFailed: c.ExitWhenFailed}
	for _, p := range ps {
		h.pipelines = append(h.pipelines, pipeline.New(pipeline.Settings{
			Config: p, State: db, HostID: db.HostID(), RuntimeDir: runtimeDir, Log: log, Metrics: metrics.Pipeline(p.Name),
		}))
	}
	if s.Listen != "" {
		server, err := admin.Listen(ctx, admin.Settings{Addr: s.Listen, Token: s.Token, Source: h, Metrics: metrics.Handler(), Logger: log})
		if err != nil {
			return environment(err)
		}
		h.server = server
	}
	b := thisBuild()
	attrs := []any{"version", b.Version, "pid", os.Getpid(), "pipelines", len(ps), "state", s.State}
	if s.File != "" {
		attrs = append(attrs, "settings", s.File)
	}
	if h.server != nil {
		attrs = append(attrs, "listen", h.server.Addr().String())
	}
	log.Info("relevo starts", attrs...)
	started() // a signal from here on is in signals, also one that came meanwhile
	if err := h.run(ctx, signals); err != nil {
		return shown(ExitFailed) // the log has said why
	}
	return nil
}

// merged lays the flags over the settings.
func (c *runCommand) merged(a *app) (config.Settings, error) {
	s, err := c.settings(a)
	if err != nil {
		return s, err
	}
	c.over(&s)
	if c.LogLevel != "" {
		s.Log.Level = c.LogLevel
	}
	if c.LogFormat != "" {
		s.Log.Format = c.LogFormat
	}
	return s, nil
}

func level(name string) slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(name)); err != nil {
		panic(fmt.Sprintf("BUG: level %q was not checked", name))
	}
	return l
}

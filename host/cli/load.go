package cli

import (
	"context"

	"github.com/relevo-io/relevo/host/config"
)

// hostFlags are the flags of commands that use the host's settings.
type hostFlags struct {
	Config    string   `help:"Host settings file. Defaults to ./relevo.yaml, then /etc/relevo/relevo.yaml, if there is one." env:"RELEVO_CONFIG" placeholder:"FILE"`
	PluginDir []string `help:"Look for plugins in this directory first; may be repeated." placeholder:"DIR" sep:"none"`
}

// settings reads the host's settings and lays the flags over them. Faults are shown.
func (f hostFlags) settings(a *app) (config.Settings, error) {
	s, faults := config.LoadSettings(f.Config, nil)
	if len(faults) > 0 {
		return s, a.faults(faults)
	}
	s.PluginDirs = append(append([]string(nil), f.PluginDir...), s.PluginDirs...)
	return s, nil
}

// serveFlags are the flags that say where the host keeps its state and where it listens.
type serveFlags struct {
	Listen *string `help:"Address for health, metrics and the API; empty turns them off. Defaults to :7070 ($$RELEVO_LISTEN)." placeholder:"HOST:PORT"`
	State  string  `help:"File of the state database. Defaults to relevo.db in $$STATE_DIRECTORY, else here ($$RELEVO_STATE)." placeholder:"FILE"`
}

// over lays the flags over the settings.
func (f serveFlags) over(s *config.Settings) {
	if f.Listen != nil {
		s.Listen = *f.Listen
	}
	if f.State != "" {
		s.State = f.State
	}
}

// pipelines loads what the paths hold. Faults are shown.
func (a *app) pipelines(ctx context.Context, paths []string, o config.Options) ([]*config.Pipeline, error) {
	ps, faults := config.Load(ctx, paths, o)
	if ctx.Err() != nil {
		return nil, shown(ExitFailed) // a signal; what is missing is no fault
	}
	if len(faults) > 0 {
		return nil, a.faults(faults)
	}
	return ps, nil
}

// faults shows what is wrong with a configuration and returns the exit code for it.
func (a *app) faults(faults config.Diagnostics) error {
	if err := faults.Print(a.err, a.err.color); err != nil {
		return err
	}
	return faultsCode(faults)
}

func faultsCode(faults config.Diagnostics) error {
	if faults.Environment() {
		return shown(ExitEnvironment)
	}
	return shown(ExitUsage)
}

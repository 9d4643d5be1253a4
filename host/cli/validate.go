package cli

import (
	"context"

	"github.com/relevo-io/relevo/host/config"
)

type validateCommand struct {
	hostFlags
	Paths           []string `arg:"" name:"path" help:"Pipeline files, or directories of them."`
	AllowMissingEnv bool     `help:"Tolerate $${…} whose variable or file is not there, as in CI; such values are not checked."`
	JSON            bool     `name:"json" help:"Print the result as JSON."`
}

// Help is shown by --help.
func (validateCommand) Help() string {
	return `Finds everything that can be known without a connection: YAML, keys and values (those of the plugins too), destinations,
names, and pipelines that would take each other's events. All faults of all files are reported at once. Only the plugins'
"describe" is run.

Example:
  relevo validate pipelines/`
}

// validation is the result as JSON.
type validation struct {
	OK          bool                `json:"ok"`
	Pipelines   []validPipeline     `json:"pipelines"`
	Diagnostics []config.Diagnostic `json:"diagnostics"`
}

type validPipeline struct {
	Name string `json:"name"`
	File string `json:"file"`
}

// Run checks the files.
func (c *validateCommand) Run(ctx context.Context, a *app) error {
	s, err := c.settings(a)
	if err != nil {
		return err
	}
	ps, faults := config.Load(ctx, c.Paths, config.Options{PluginDirs: s.PluginDirs, AllowMissingEnv: c.AllowMissingEnv})
	if ctx.Err() != nil {
		return shown(ExitFailed)
	}
	if c.JSON {
		v := validation{OK: len(faults) == 0, Pipelines: []validPipeline{}, Diagnostics: []config.Diagnostic{}}
		for _, p := range ps {
			v.Pipelines = append(v.Pipelines, validPipeline{Name: p.Name, File: p.File})
		}
		v.Diagnostics = append(v.Diagnostics, faults...)
		if err := a.out.json(v); err != nil {
			return err
		}
	} else if err := c.print(a, ps, faults); err != nil {
		return err
	}
	if len(faults) > 0 {
		return faultsCode(faults)
	}
	return nil
}

// print says ok for each file without a fault, in the order of the files, and then shows the faults.
func (*validateCommand) print(a *app, ps []*config.Pipeline, faults config.Diagnostics) error {
	bad := map[string]bool{}
	for _, d := range faults {
		bad[d.File] = true
	}
	var files []string
	count := map[string]int{}
	for _, p := range ps {
		if count[p.File] == 0 && !bad[p.File] {
			files = append(files, p.File)
		}
		count[p.File]++
	}
	for _, f := range files {
		a.out.printf("%s: %s: %s\n", f, a.out.paint(green, "ok"), plural(count[f], "pipeline"))
	}
	return faults.Print(a.err, a.err.color)
}

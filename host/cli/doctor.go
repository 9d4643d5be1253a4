package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relevo-io/relevo/host/config"
	"github.com/relevo-io/relevo/host/plugin"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// maxChecks is how many plugins are asked at once: enough to hide waiting, few enough for a small machine.
const maxChecks = 8

type doctorCommand struct {
	hostFlags
	serveFlags
	Paths   []string      `arg:"" name:"path" help:"Pipeline files, or directories of them."`
	Timeout time.Duration `help:"Longest time for one plugin, its start included." default:"30s"`
	Strict  bool          `help:"Exit with 3 for warnings too."`
	Quiet   bool          `short:"q" help:"Leave out what is ok."`
	JSON    bool          `name:"json" help:"Print the findings as JSON."`
}

// Help is shown by --help.
func (doctorCommand) Help() string {
	return `Validates the files, then lets each plugin look at its database or broker: settings, privileges, tables, columns and indexes,
streams, limits. It changes nothing. What is wrong comes last, the worst at the end, and with what to do about it: as SQL or
a command where there is one.
Exit code 3 if there is an error.

Example:
  relevo doctor pipelines/`
}

// Severities of a finding.
const (
	severityOK      = "ok"
	severityWarning = "warning"
	severityError   = "error"
)

// finding is one thing that was looked at.
type finding struct {
	Severity string `json:"severity"`
	Pipeline string `json:"pipeline,omitempty"` // "": the host's own
	Plugin   string `json:"plugin"`             // the source's plugin, a sink's name, or what of the host
	Code     string `json:"code"`
	Path     string `json:"path,omitempty"` // JSON pointer into the config
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
	SQL      string `json:"sql,omitempty"`
}

// diagnosis is the result as JSON.
type diagnosis struct {
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Findings []finding `json:"findings"`
}

// Run examines everything and prints what was found.
func (c *doctorCommand) Run(ctx context.Context, a *app) error {
	settings, err := c.settings(a)
	if err != nil {
		return err
	}
	c.over(&settings)
	ps, err := a.pipelines(ctx, c.Paths, config.Options{PluginDirs: settings.PluginDirs})
	if err != nil {
		return err
	}
	memory, hostFindings := examineHost(ctx, settings)
	defer memory.close()
	runtimeDir, remove, err := plugin.RuntimeDir()
	if err != nil {
		return environment(err)
	}
	defer remove()

	d := examination{runtimeDir: runtimeDir, timeout: c.Timeout, memory: memory}
	result := diagnosis{Findings: append(hostFindings, d.all(ctx, ps)...)}
	if ctx.Err() != nil {
		return shown(ExitFailed)
	}
	for _, f := range result.Findings {
		switch f.Severity {
		case severityError:
			result.Errors++
		case severityWarning:
			result.Warnings++
		}
	}
	if c.JSON {
		err = a.out.json(result)
	} else {
		err = result.print(a.out, c.Quiet)
	}
	switch {
	case err != nil:
		return err
	case result.Errors > 0, c.Strict && result.Warnings > 0:
		return shown(ExitEnvironment)
	}
	return nil
}

// print writes what is ok first and errors last, where people look.
func (d *diagnosis) print(s *screen, quiet bool) error {
	var b strings.Builder
	order := []string{severityOK, severityWarning, severityError}
	findings := slices.Clone(d.Findings)
	slices.SortStableFunc(findings, func(x, y finding) int {
		return cmp.Compare(slices.Index(order, x.Severity), slices.Index(order, y.Severity))
	})
	for _, f := range findings {
		if quiet && f.Severity == severityOK {
			continue
		}
		mark := s.mark(green, "✓", "ok     ")
		switch f.Severity {
		case severityWarning:
			mark = s.mark(yellow, "!", "warning")
		case severityError:
			mark = s.mark(red, "✗", "error  ")
		}
		where := f.Plugin
		if f.Pipeline != "" {
			where = f.Pipeline + "/" + f.Plugin
		}
		fmt.Fprintf(&b, "%s %s %s %s\n", mark, s.paint(bold, where), f.Code, indent(f.text()))
		if f.Severity == severityOK {
			if f.Hint != "" {
				fmt.Fprintf(&b, "    %s\n", indent(f.Hint))
			}
			continue
		}
		if f.Hint != "" {
			fmt.Fprintf(&b, "    fix: %s\n", indent(f.Hint))
		}
		if f.SQL != "" {
			if f.Hint == "" {
				b.WriteString("    fix:\n")
			}
			fmt.Fprintf(&b, "      %s\n", strings.ReplaceAll(strings.TrimSpace(f.SQL), "\n", "\n      "))
		}
	}
	fmt.Fprintf(&b, "%s, %s, %d ok\n", plural(d.Errors, "error"), plural(d.Warnings, "warning"), len(findings)-d.Errors-d.Warnings)
	_, err := s.Write([]byte(b.String()))
	return err
}

// text is the message, and the key of the config that it is about.
func (f finding) text() string {
	key := strings.ReplaceAll(strings.TrimPrefix(f.Path, "/"), "/", ".")
	if key == "" || f.Severity == severityOK || strings.Contains(f.Message, key) {
		return f.Message
	}
	return key + ": " + f.Message
}

// indent puts further lines below the first.
func indent(text string) string {
	return strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}

// examination asks plugins for their findings.
type examination struct {
	runtimeDir string
	timeout    time.Duration
	memory     *memory
}

// all asks every plugin of every pipeline, side by side, and returns the findings in the order of the files.
func (d examination) all(ctx context.Context, ps []*config.Pipeline) []finding {
	var parts [][]finding
	for _, p := range ps {
		parts = append(parts, make([][]finding, 1+len(p.Sinks))...)
	}
	var g errgroup.Group
	g.SetLimit(maxChecks)
	n := 0
	ask := func(p *config.Pipeline, c *config.Plugin, name, shown string, constant *string) {
		at := n
		n++
		g.Go(func() error {
			parts[at] = d.one(ctx, p.Name, c, name, shown, constant)
			return nil
		})
	}
	for _, p := range ps {
		ask(p, &p.Source, "source", p.Source.Plugin, nil)
		for i := range p.Sinks {
			k := &p.Sinks[i]
			var constant *string
			if k.To != nil {
				if to, ok := k.To.Constant(); ok {
					constant = &to
				}
			}
			ask(p, &k.Plugin, k.Name, k.Name, constant)
		}
	}
	_ = g.Wait() // a check that cannot be made is a finding
	var all []finding
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

// one asks one plugin. Secrets of its config are taken out of all that it and its server say (I9).
func (d examination) one(ctx context.Context, pipeline string, c *config.Plugin, name, shown string, constant *string) []finding {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	found := d.check(ctx, pipeline, c, name, constant)
	hide := redactor(c.Secrets())
	for i := range found {
		f := &found[i]
		f.Pipeline, f.Plugin = pipeline, shown
		for _, text := range []*string{&f.Code, &f.Path, &f.Message, &f.Hint, &f.SQL} {
			*text = printable(hide(*text))
		}
	}
	return found
}

func (d examination) check(ctx context.Context, pipeline string, c *config.Plugin, name string, constant *string) []finding {
	problem := func(code string, err error) []finding {
		if ctx.Err() != nil {
			return []finding{{
				Severity: severityError, Code: "check_timeout", Message: fmt.Sprintf("no answer within %s", d.timeout),
				Hint: "see whether the server can be reached from here; --timeout waits longer",
			}}
		}
		return []finding{{Severity: severityError, Code: code, Message: err.Error()}}
	}
	p, err := plugin.Launch(ctx, plugin.Settings{
		Kind: c.Kind, Name: c.Plugin, Path: c.Path, Pipeline: pipeline, Instance: name, StartTimeout: c.StartTimeout, Env: c.Env,
		RuntimeDir: d.runtimeDir, MaxMessageBytes: int(c.Describe.GetMaxMessageBytes()), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return startFinding(err, problem("plugin_start", err))
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		p.Close(closing)
	}()
	request := &pluginv1.CheckRequest{
		Config:              c.Config,
		Instance:            &pluginv1.Instance{HostId: d.memory.hostID(), Pipeline: pipeline, Name: name, Attempt: 1},
		ConstantDestination: constant,
	}
	if c.Kind == plugin.KindSource {
		if request.Position, err = d.memory.position(ctx, pipeline, c.Plugin); err != nil {
			return problem("state_unreadable", err)
		}
	}
	answer, err := p.Check(ctx, request)
	if err != nil {
		return problem("check_failed", err)
	}
	found := make([]finding, 0, len(answer.GetFindings()))
	for _, f := range answer.GetFindings() {
		found = append(found, finding{
			Severity: severityOf(f.GetSeverity()), Code: f.GetCode(), Path: f.GetPath(), Message: f.GetMessage(),
			Hint: f.GetHint(), SQL: f.GetSql(),
		})
	}
	if len(found) == 0 {
		found = append(found, finding{Severity: severityOK, Code: "nothing_to_check", Message: "the plugin starts, and has no check of its own"})
	}
	return found
}

// startFinding says why a plugin did not start, the hint apart where there is one.
func startFinding(err error, otherwise []finding) []finding {
	e, ok := errors.AsType[*plugin.LaunchError](err)
	if !ok {
		return otherwise
	}
	short := *e
	short.Hint = ""
	return []finding{{Severity: severityError, Code: e.Code, Message: short.Error(), Hint: e.Hint}}
}

// severityOf takes what is not said for the worst.
func severityOf(s pluginv1.Severity) string {
	switch s {
	case pluginv1.Severity_SEVERITY_OK:
		return severityOK
	case pluginv1.Severity_SEVERITY_WARNING:
		return severityWarning
	}
	return severityError
}

// redactor replaces secrets in text. Short ones are left: they would take words apart, and hide nothing.
func redactor(secrets []string) func(string) string {
	const shortest = 4
	var pairs []string
	for _, s := range secrets {
		if len(s) >= shortest {
			pairs = append(pairs, s, "***")
		}
	}
	r := strings.NewReplacer(pairs...)
	return func(text string) string { return config.MaskText(r.Replace(text)) }
}

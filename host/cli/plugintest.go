package cli

import (
	"context"
	"strings"
	"time"

	"github.com/relevo-io/relevo/internal/conformance"
)

type pluginsTestCommand struct {
	Executable  string        `arg:"" help:"The plugin's executable." type:"existingfile"`
	Conformance string        `help:"What the suite cannot know by itself: configuration, an event that the sink refuses, … Defaults to conformance.yaml beside the executable." placeholder:"FILE" type:"existingfile"`
	Only        []string      `help:"Make only these checks; may be repeated." placeholder:"CHECK"`
	Timeout     time.Duration `help:"Longest time for one check." default:"60s"`
	JSON        bool          `name:"json" help:"Print the results as JSON, one object a line."`
}

// Help is shown by --help.
func (pluginsTestCommand) Help() string {
	return `Drives the executable as the host does, and worse: kills it, does not read, sends 4 MiB, refuses events. Every rule of
docs/plugin-protocol.md that can be seen from outside is checked. A check that needs something is reported as not run.
Exit code 1 if a rule is broken.

Example:
  relevo plugins test ./sink-mine --conformance conformance.yaml`
}

// testResult is one check as JSON.
type testResult struct {
	Name    string              `json:"name"`
	Outcome conformance.Outcome `json:"outcome"`
	Rule    string              `json:"rule"`
	Page    string              `json:"page,omitempty"`
	Detail  string              `json:"detail,omitempty"`
	Seconds float64             `json:"seconds"`
}

// Run tests the plugin.
func (c *pluginsTestCommand) Run(ctx context.Context, a *app) error {
	t := conformance.Target{Path: c.Executable, Only: c.Only, CheckTimeout: c.Timeout}
	if c.Conformance != "" {
		spec, err := conformance.Load(c.Conformance)
		if err != nil {
			return &exitError{code: ExitUsage, err: err}
		}
		t.Spec = spec
	}
	count := map[conformance.Outcome]int{}
	err := conformance.Run(ctx, t, func(r conformance.Result) {
		count[r.Outcome]++
		if c.JSON {
			line, _ := jsonLine(testResult{r.Name, r.Outcome, r.Rule, r.Page, r.Detail, r.Took.Seconds()})
			a.out.printf("%s\n", line)
			return
		}
		printResult(a.out, r)
	})
	switch {
	case ctx.Err() != nil:
		return shown(ExitFailed)
	case err != nil:
		return environment(err)
	}
	if !c.JSON {
		a.out.printf("%d passed, %d failed, %d not run\n", count[conformance.Pass], count[conformance.Fail], count[conformance.NotRun])
	}
	if count[conformance.Fail] > 0 {
		return shown(ExitFailed)
	}
	return nil
}

func printResult(s *screen, r conformance.Result) {
	mark := s.mark(green, "✓", "pass   ")
	switch r.Outcome {
	case conformance.Fail:
		mark = s.mark(red, "✗", "FAIL   ")
	case conformance.NotRun:
		mark = s.mark(yellow, "-", "not run")
	}
	s.printf("%s %s  %s\n", mark, s.paint(bold, r.Name), r.Rule)
	if r.Detail != "" {
		s.printf("    %s\n", strings.ReplaceAll(printable(r.Detail), "\n", "\n    "))
	}
	if r.Outcome == conformance.Fail && r.Page != "" {
		s.printf("    see %s\n", r.Page)
	}
}

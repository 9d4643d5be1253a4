package cli

import (
	"context"
	"slices"
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
docs/plugin-protocol.md that can be seen from outside is checked. A failure says what was tried, what was seen, and the
rule with its place on that page. A check that needs something is reported as not run, and the end says what to add.
Exit code 1 if a rule is broken.

Example:
  relevo plugins test ./sink-mine --conformance conformance.yaml`
}

// testResult is one check as JSON.
type testResult struct {
	Name    string              `json:"name"`
	Outcome conformance.Outcome `json:"outcome"`
	Rule    string              `json:"rule"`
	Page    string              `json:"page"`
	Tried   []string            `json:"tried,omitempty"`
	Seen    []string            `json:"seen,omitempty"`
	Said    []string            `json:"said,omitempty"`
	Missing string              `json:"missing,omitempty"`
	Needs   []string            `json:"needs,omitempty"`
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
	show := showText
	if c.JSON {
		show = showJSON
	}
	results, err := show(ctx, a.out, t)
	switch {
	case ctx.Err() != nil:
		return shown(ExitFailed)
	case err != nil:
		return environment(err)
	case slices.ContainsFunc(results, func(r conformance.Result) bool { return r.Outcome == conformance.Fail }):
		return shown(ExitFailed)
	}
	return nil
}

func showJSON(ctx context.Context, s *screen, t conformance.Target) (results []conformance.Result, err error) {
	err = conformance.Run(ctx, t, func(r conformance.Result) {
		results = append(results, r)
		line, _ := jsonLine(testResult{
			r.Name, r.Outcome, r.Rule, r.Page, r.Tried, r.Seen, r.Said, r.Missing, r.Needs, r.Took.Seconds(),
		})
		s.printf("%s\n", line)
	})
	return results, err
}

func showText(ctx context.Context, s *screen, t conformance.Target) (results []conformance.Result, err error) {
	w := watch(s)
	t.Starting = w.starting
	err = conformance.Run(ctx, t, func(r conformance.Result) {
		w.interrupt(func() { printResult(s, r, slices.ContainsFunc(results, r.Repeats)) })
		results = append(results, r)
	})
	w.stop()
	if err == nil {
		printSummary(s, results)
	}
	return results, err
}

// printResult shows one check. A failure that repeats an earlier one takes one line: what to mend stands there.
func printResult(s *screen, r conformance.Result, again bool) {
	const widest = 22
	name := s.paint(bold, r.Name) + strings.Repeat(" ", max(0, widest-len(r.Name)))
	text := printable(r.Text())
	switch {
	case r.Outcome == conformance.Pass:
		s.printf("%s %s  %s\n", s.mark(green, "✓", "pass   "), name, text)
	case r.Outcome == conformance.NotRun && len(r.Needs) > 0: // the summary explains them
		s.printf("%s %s  needs %s\n", s.mark(yellow, "-", "not run"), name, strings.Join(r.Needs, " and "))
	case r.Outcome == conformance.NotRun:
		s.printf("%s %s  %s\n", s.mark(yellow, "-", "not run"), name, text)
	case again:
		s.printf("%s %s  as above: %s\n", s.mark(red, "✗", "FAIL   "), name, indent(printable(r.Seen[0])))
	default:
		s.printf("%s %s\n    %s\n", s.mark(red, "✗", "FAIL   "), s.paint(bold, r.Name), indent(text))
	}
}

// printSummary counts, and says what would have more checks made.
func printSummary(s *screen, results []conformance.Result) {
	count := map[conformance.Outcome]int{}
	wanting := map[string][]string{} // by key of conformance.yaml: the checks that need it
	var keys []string
	for _, r := range results {
		count[r.Outcome]++
		for _, key := range r.Needs {
			if wanting[key] == nil {
				keys = append(keys, key)
			}
			wanting[key] = append(wanting[key], r.Name)
		}
	}
	s.printf("%d passed, %d failed, %d not run\n", count[conformance.Pass], count[conformance.Fail], count[conformance.NotRun])
	if len(keys) == 0 {
		return
	}
	s.printf("\nTo have more checked, add to conformance.yaml (%s#testing):\n", conformance.Page)
	for _, key := range keys {
		names := wanting[key]
		if len(names) > 4 {
			names = append(names[:3:3], "…")
		}
		s.printf("  %s: %s (%s)\n", s.paint(bold, key), conformance.Help(key), strings.Join(names, ", "))
	}
}

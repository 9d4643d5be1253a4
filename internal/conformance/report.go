package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Page is the document that Result.Page points into, from the root of the repository.
const Page = "docs/plugin-protocol.md"

// Outcome of one check.
type Outcome string

// Outcomes.
const (
	Pass   Outcome = "pass"
	Fail   Outcome = "fail"
	NotRun Outcome = "not_run" // Missing says why, and Needs what would change it
)

// Result is the outcome of one check, with what a person needs to believe a pass and to mend a failure.
type Result struct {
	Name    string        // lower case with dashes, stable
	Rule    string        // what was checked, as a sentence; of a failure, the rule that is broken, which may be another one
	Page    string        // where the rule stands, with its anchor
	Outcome Outcome       // Pass, Fail, NotRun
	Tried   []string      // what was done, step by step
	Seen    []string      // what came of it; of a failure, first what breaks the rule
	Said    []string      // of a failure: how processes of the plugin ended, and the last lines of their stderr
	Missing string        // of a check that was not made: why
	Needs   []string      // and the keys of conformance.yaml that would have it made; none: there are none
	Took    time.Duration // the start of processes included

	elsewhere bool // the rule is not the one of the check
}

// Text is what stands beside the name of the check: one line of a pass, what to add or why it can't be made, or all that
// there is to say about a failure, a label before each part.
func (r Result) Text() string {
	switch r.Outcome {
	case Pass:
		parts := slices.DeleteFunc([]string{strings.Join(r.Tried, ", "), strings.Join(r.Seen, ", ")}, func(s string) bool { return s == "" })
		return strings.Join(strings.Fields(strings.Join(parts, ": ")), " ")
	case NotRun:
		return r.Missing
	}
	var b strings.Builder
	for _, part := range []struct {
		label string
		texts []string
	}{{"tried", r.Tried}, {"seen", r.Seen}, {"rule", []string{r.Rule}}, {"page", []string{r.Page}}, {"said", r.Said}} {
		label := part.label
		for _, text := range part.texts {
			for line := range strings.SplitSeq(text, "\n") {
				fmt.Fprintf(&b, "%-6s %s\n", label, line)
				label = ""
			}
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Repeats says whether another check has failed by the same rule, one that neither is about: their causes are one.
func (r Result) Repeats(other Result) bool {
	return r.Outcome == Fail && other.Outcome == Fail && r.elsewhere && r.Rule == other.Rule
}

// notRunError says why a check can't be made.
type notRunError struct {
	why   string
	needs []string // keys of conformance.yaml
}

func (e *notRunError) Error() string { return e.why }

// notRun is about something that stands in the way.
func notRun(format string, a ...any) error { return &notRunError{why: fmt.Sprintf(format, a...)} }

// doesNotApply is about what this plugin does not have.
func doesNotApply(format string, a ...any) error {
	return notRun("does not apply: "+format, a...)
}

// needs is about what the author has not told.
func needs(keys ...string) error {
	var say []string
	for _, k := range keys {
		say = append(say, fmt.Sprintf("`%s`, %s", k, Help(k)))
	}
	return &notRunError{why: "add to conformance.yaml: " + strings.Join(say, "; "), needs: keys}
}

// summarizer tells how far a stream has come.
type summarizer interface{ summary() string }

// attempt is one run of one check: it owns the processes that the check starts, and notes what it does and sees.
type attempt struct {
	*suite
	processes []*process
	streams   []summarizer
	routine   []string // what every check does: worth telling where nothing else was done
	tried     []string
	seen      []string
}

// try notes what is done next, as "sent 10 events".
func (r *attempt) try(format string, a ...any) {
	r.tried = append(r.tried, fmt.Sprintf(format, a...))
}

// routinely notes what every check does.
func (r *attempt) routinely(text string) { r.routine = append(r.routine, text) }

// saw notes what came of it, as "all were acked".
func (r *attempt) saw(format string, a ...any) { r.seen = append(r.seen, fmt.Sprintf(format, a...)) }

// result says how a check ended that returned err.
func (r *attempt) result(c check, err error) Result {
	res := Result{Name: c.name, Rule: c.rule, Page: Page + "#" + c.anchor, Outcome: Pass, Seen: r.seen}
	if missing, ok := errors.AsType[*notRunError](err); ok {
		return Result{Name: res.Name, Rule: res.Rule, Page: res.Page, Outcome: NotRun, Missing: missing.why, Needs: missing.needs}
	}
	if res.Tried = r.tried; len(r.tried) == 0 {
		res.Tried = r.routine
	}
	if err != nil {
		res.Outcome = Fail
		if e, ok := errors.AsType[*ruleError](err); ok {
			res.Rule, res.Page, res.elsewhere = e.rule.text, Page+"#"+e.rule.anchor, true
		}
		res.Seen = append([]string{err.Error()}, r.seen...)
		for _, s := range r.streams {
			if text := s.summary(); text != "" {
				res.Seen = append(res.Seen, text)
			}
		}
		res.Said = r.lastWords()
	}
	return res
}

// lastWords is what the processes of the check have to say for themselves after a failure.
func (r *attempt) lastWords() (words []string) {
	for _, p := range r.processes {
		p.settle()
		select {
		case <-p.exited:
			if !p.killed {
				words = append(words, fmt.Sprintf("process %d ended: %v", p.cmd.Process.Pid, p.state))
			}
		default:
		}
		if lines := p.stderr.lines(); len(lines) > 0 {
			words = append(words, fmt.Sprintf("process %d on stderr:", p.cmd.Process.Pid))
			for _, line := range lines {
				words = append(words, "| "+line)
			}
		}
	}
	return words
}

// count is "1 event", "2 events".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

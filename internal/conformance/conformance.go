// Package conformance drives a plugin executable as a host would and reports which rules of docs/plugin-protocol.md it
// keeps. It stands outside: it has a launcher of its own and speaks through the generated stubs, so that what passes
// here is right by the protocol and not by our SDK or our host.
//
// What can be seen from outside is limited. That an event was acked only after the broker had it (I3) shows only when
// the broker is taken away, and whether the broker has it in the right order only at the broker: a plugin's own tests
// cover that.
package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Page is the document that Result.Page points into, from the root of the repository.
const Page = "docs/plugin-protocol.md"

// Outcome of one check.
type Outcome string

// Outcomes.
const (
	Pass   Outcome = "pass"
	Fail   Outcome = "fail"
	NotRun Outcome = "not_run" // Detail says what it would need
)

// Result is the outcome of one check.
type Result struct {
	Name    string  // lower case with dashes, stable
	Rule    string  // what was checked, one line
	Page    string  // where the rule stands, with its anchor
	Outcome Outcome // Pass, Fail, NotRun
	Detail  string  // what went wrong, or what is missing; sometimes a remark on a pass
	Took    time.Duration
}

// Target is the plugin under test.
type Target struct {
	// Path of the executable.
	Path string
	// Spec says what the suite can't know by itself. Nil: what conformance.yaml beside the executable says, if it is there.
	Spec *Spec
	// Only names the checks to make. Those that find out what others need are made all the same, and reported if they
	// fail. Empty: all of them.
	Only []string
	// CheckTimeout bounds one check, the start of processes included. Defaults to 60 s.
	CheckTimeout time.Duration
	// DrainTimeout is how long the plugin is given from Stop to Stopped. Defaults to 10 s.
	DrainTimeout time.Duration
}

// Run makes every check that applies to the plugin, one after the other, and reports each as it ends. Its error says
// that the plugin could not be tested at all; a rule that is broken is a Result. A context that ends stops the run with
// the context's error. No process that Run started outlives it.
func Run(ctx context.Context, t Target, report func(Result)) error {
	s, err := newSuite(t)
	if err != nil {
		return err
	}
	defer s.close()

	// Nobody connects to this one; it has 15 s to notice, while the others are at work.
	lonely := make(chan *Result, 1)
	go func() { lonely <- s.runIf(ctx, nobodyConnects) }()
	tell := func(r *Result) {
		if r != nil {
			report(*r)
		}
	}
	for _, c := range everyPlugin {
		tell(s.runIf(ctx, c))
	}
	for _, c := range s.kindChecks() {
		tell(s.runIf(ctx, c))
	}
	tell(<-lonely)
	return context.Cause(ctx)
}

// check is one rule and how it is tested.
type check struct {
	name   string
	rule   string
	anchor string
	config bool // needs a configuration with which a stream can be opened
	finds  bool // finds out what other checks need
	run    func(ctx context.Context, r *attempt) error
}

// attempt is one run of one check: it owns the processes that the check starts.
type attempt struct {
	*suite
	processes []*process
	remark    string // shown beside a pass
}

// notRunError says what a check would need.
type notRunError struct{ missing string }

func (e *notRunError) Error() string { return e.missing }

// notRun makes the error by which a check says that it can't be made.
func notRun(format string, a ...any) error { return &notRunError{missing: fmt.Sprintf(format, a...)} }

// runIf makes a check if it is wanted or needed; nil: there is nothing to report.
func (s *suite) runIf(ctx context.Context, c check) *Result {
	wanted := len(s.only) == 0 || slices.Contains(s.only, c.name)
	if !wanted && !c.finds {
		return nil
	}
	r := s.run(ctx, c)
	if !wanted && r.Outcome == Pass {
		return nil
	}
	return &r
}

// run makes one check and ends whatever it started.
func (s *suite) run(ctx context.Context, c check) Result {
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("the check took longer than %v", s.timeout))
	defer cancel()
	r := &attempt{suite: s}
	err := s.ready(c)
	if err == nil {
		err = c.run(ctx, r)
	}
	res := Result{Name: c.name, Rule: c.rule, Page: Page + "#" + c.anchor, Outcome: Pass, Detail: r.remark}
	if missing, ok := errors.AsType[*notRunError](err); ok {
		res.Outcome, res.Detail = NotRun, missing.missing
	} else if err != nil {
		res.Outcome, res.Detail = Fail, err.Error()+r.lastWords()
	}
	for _, p := range r.processes {
		p.kill()
	}
	res.Took = time.Since(start)
	return res
}

// lastWords is what the processes of the check have to say for themselves after a failure.
func (r *attempt) lastWords() string {
	var b strings.Builder
	for _, p := range r.processes {
		p.settle()
		select {
		case <-p.exited:
			if p.killed {
				break
			}
			fmt.Fprintf(&b, "\nprocess %d: %v", p.cmd.Process.Pid, p.state)
		default:
		}
		for _, line := range p.stderr.lines() {
			fmt.Fprintf(&b, "\nprocess %d said: %s", p.cmd.Process.Pid, line)
		}
	}
	return b.String()
}

// suite is the plugin under test and what is known of it.
type suite struct {
	path    string
	spec    *Spec
	only    []string
	dir     string        // for sockets
	runID   string        // makes event ids of this run unlike those of others
	timeout time.Duration // of a check
	drain   time.Duration
	events  atomic.Uint64 // made so far

	described *pluginv1.DescribeResponse // nil until the check "describe" has passed
	config    []byte                     // nil: none is known with which a stream opens
	noConfig  string                     // why not
	noEvents  string                     // why a source has nothing to read; "": it has
}

func newSuite(t Target) (*suite, error) {
	if _, err := os.Stat(t.Path); err != nil {
		return nil, fmt.Errorf("find the plugin: %w", err)
	}
	spec := t.Spec
	if spec == nil {
		var err error
		if spec, err = LoadBeside(t.Path); err != nil {
			return nil, err
		}
	}
	if err := spec.check(); err != nil {
		return nil, err
	}
	path, err := executable(t.Path)
	if err != nil {
		return nil, err
	}
	dir, err := socketDir()
	if err != nil {
		return nil, err
	}
	return &suite{
		path: path, spec: spec, only: t.Only, dir: dir, runID: fmt.Sprintf("%x", time.Now().UnixNano()),
		timeout: cmp.Or(t.CheckTimeout, 60*time.Second), drain: cmp.Or(t.DrainTimeout, 10*time.Second),
		noConfig: "Describe did not answer",
	}, nil
}

func (s *suite) close() { _ = os.RemoveAll(s.dir) }

// ready says whether what the check needs is known.
func (s *suite) ready(c check) error {
	if c.config && s.config == nil {
		return notRun("%s", s.noConfig)
	}
	return nil
}

func (s *suite) kindChecks() []check {
	switch s.described.GetKind() {
	case pluginv1.PluginKind_PLUGIN_KIND_SOURCE:
		return sourceChecks
	case pluginv1.PluginKind_PLUGIN_KIND_SINK:
		return sinkChecks
	}
	return nil // "describe" has failed and says it
}

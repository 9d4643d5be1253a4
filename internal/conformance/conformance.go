// Package conformance drives a plugin executable as a host would and reports which rules of docs/plugin-protocol.md it
// keeps. It stands outside: it has a launcher of its own and speaks through the generated stubs, so that what passes
// here is right by the protocol and not by our SDK or our host.
//
// What a plugin says can be seen from here. What a sink's target has (acked is published, in order, nothing else) can be
// seen only there: an author who gives a way to look at it has that checked too.
package conformance

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

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
	// Starting is told the name of each check that is about to be waited for. Nil: nobody wants to know.
	Starting func(check string)
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
		s.starting(c)
		tell(s.runIf(ctx, c))
	}
	for _, c := range s.kindChecks() {
		s.starting(c)
		tell(s.runIf(ctx, c))
	}
	s.starting(nobodyConnects)
	tell(<-lonely)
	return context.Cause(ctx)
}

// check is one rule and how it is tested.
type check struct {
	name   string
	rule   string
	anchor string
	config bool                // needs a configuration with which a stream can be opened
	least  time.Duration       // that it may take, whatever the limit of a check is
	finds  bool                // finds out what other checks need
	about  func(s *suite) bool // does it concern this plugin at all? nil: yes
	run    func(ctx context.Context, r *attempt) error
}

// wants says whether somebody asked for the check.
func (s *suite) wants(c check) bool { return len(s.only) == 0 || slices.Contains(s.only, c.name) }

// starting tells who watches that a check is about to be made.
func (s *suite) starting(c check) {
	if s.watch != nil && s.wants(c) {
		s.watch(c.name)
	}
}

// runIf makes a check if it is wanted or needed; nil: there is nothing to report.
func (s *suite) runIf(ctx context.Context, c check) *Result {
	wanted := s.wants(c)
	if !wanted && !c.finds || c.about != nil && !c.about(s) {
		return nil
	}
	r := s.run(ctx, c)
	if !wanted && r.Outcome != Fail {
		return nil
	}
	return &r
}

// run makes one check and ends whatever it started.
func (s *suite) run(ctx context.Context, c check) Result {
	start := time.Now()
	limit := max(s.timeout, c.least)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the check took longer than %v", limit))
	defer cancel()
	r := &attempt{suite: s}
	err := s.ready(c)
	if err == nil {
		err = c.run(ctx, r)
	}
	res := r.result(c, err)
	for _, p := range r.processes {
		p.kill()
	}
	res.Took = time.Since(start)
	return res
}

// suite is the plugin under test and what is known of it.
type suite struct {
	path    string
	spec    *Spec
	only    []string
	watch   func(check string)
	dir     string        // for sockets
	runID   string        // makes event ids of this run unlike those of others
	timeout time.Duration // of a check
	drain   time.Duration
	events  atomic.Uint64 // made so far

	described *pluginv1.DescribeResponse // nil until the check "describe" has passed
	config    []byte                     // nil: none is known with which a stream opens
	noConfig  error                      // why not
	noEvents  error                      // why a source has nothing to read; nil: it has
	target    targetState                // what is known of what a sink publishes to
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
		path: path, spec: spec, only: t.Only, dir: dir, runID: strconv.FormatInt(time.Now().UnixMicro(), 36),
		timeout: cmp.Or(t.CheckTimeout, 60*time.Second), drain: cmp.Or(t.DrainTimeout, 10*time.Second),
		noConfig: errNotDescribed, watch: t.Starting, target: targetState{known: map[string]bool{}},
	}, nil
}

func (s *suite) close() { _ = os.RemoveAll(s.dir) }

// ready says whether what the check needs is known.
func (s *suite) ready(c check) error {
	if c.config && s.config == nil {
		return s.noConfig
	}
	return nil
}

func (s *suite) kindChecks() []check {
	switch s.described.GetKind() {
	case pluginv1.PluginKind_PLUGIN_KIND_SOURCE:
		return slices.Concat(sourceChecks, doctorChecks)
	case pluginv1.PluginKind_PLUGIN_KIND_SINK:
		return slices.Concat(sinkChecks, targetChecks, []check{awayCheck}, doctorChecks)
	}
	return nil // "describe" has failed and says it
}

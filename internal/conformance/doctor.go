package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// doctorChecks are about Check and about a target that can't be reached.
var doctorChecks = []check{
	{
		name: "check-findings", anchor: "check", config: true, run: checkFindings,
		rule: "Check answers with findings, each with severity, code and message; for a configuration that works none of them is an error.",
	},
	{
		name: "check-changes-nothing", anchor: "check", config: true, run: checkChangesNothing,
		rule: "Check changes nothing anywhere, also while the same configuration is at work in another process.",
	},
	{
		name: "check-unreachable", anchor: "check", config: true, run: checkUnreachable,
		rule: "Check of a target that can't be reached answers within 30 s, with a finding of severity ERROR.",
	},
	{
		name: "unreachable", anchor: "faults", config: true, run: unreachable,
		rule: "A target that can't be reached ends a stream with a Fault that is not PERMANENT, or is waited for; the process lives and nothing is acked.",
	},
}

// checkFor is how long doctor waits for a plugin.
const checkFor = 30 * time.Second

// askCheck calls Check and demands that the answer is well-formed.
func (r *attempt) askCheck(ctx context.Context, p *process, config []byte) ([]*pluginv1.Finding, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkFor, fmt.Errorf("no answer within %v", checkFor))
	defer cancel()
	q := &pluginv1.CheckRequest{Config: config, Instance: r.instance(p, "conformance")}
	if r.spec.Destination != "" {
		q.ConstantDestination = proto.String(r.spec.Destination)
	}
	resp, err := p.plugin().Check(ctx, q)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("call Check (what is wrong with the target is a finding, and no gRPC error): %w", err)
	}
	for i, f := range resp.GetFindings() {
		if err := checkFinding(f); err != nil {
			return nil, fmt.Errorf("finding %d: %w", i+1, err)
		}
	}
	return resp.GetFindings(), nil
}

// checkFinding says what a person or a program would miss in a finding.
func checkFinding(f *pluginv1.Finding) error {
	switch {
	case f.GetSeverity() < pluginv1.Severity_SEVERITY_OK || f.GetSeverity() > pluginv1.Severity_SEVERITY_ERROR:
		return fmt.Errorf("%s has the severity %v", findingText(f), f.GetSeverity())
	case !snakeCase.MatchString(f.GetCode()):
		return fmt.Errorf("the code is %q; codes are snake_case", f.GetCode())
	case f.GetMessage() == "":
		return fmt.Errorf("%s has no message", f.GetCode())
	case f.GetPath() != "" && !strings.HasPrefix(f.GetPath(), "/"):
		return fmt.Errorf("%s has the path %q, which is no JSON pointer such as /table", f.GetCode(), f.GetPath())
	}
	return nil
}

func checkFindings(ctx context.Context, r *attempt) error {
	p, err := r.connected(ctx)
	if err != nil {
		return err
	}
	r.try("called Check")
	findings, err := r.askCheck(ctx, p, r.config)
	if err != nil {
		return err
	}
	if bad := errorsOf(findings); len(bad) > 0 {
		return fmt.Errorf("a stream opens with this config, and Check says %s", strings.Join(bad, "; "))
	}
	r.saw("%s", tally(findings))
	return nil
}

// checkChangesNothing calls Check of one process while another is at work, and looks whether that one, or the target,
// is any different afterwards.
func checkChangesNothing(ctx context.Context, r *attempt) error {
	beside := func() error {
		r.try("called Check of another process")
		p, err := r.connected(ctx)
		if err != nil {
			return err
		}
		_, err = r.askCheck(ctx, p, r.config)
		return err
	}
	if r.described.GetKind() == pluginv1.PluginKind_PLUGIN_KIND_SOURCE {
		return comesAgain(ctx, r, func(p *process, s *sourceStream) error {
			if err := beside(); err != nil {
				return err
			}
			if err := s.until(ctx, "nothing", func() bool { return s.ended == nil }); err != nil {
				return fmt.Errorf("after Check of another process: %w", err)
			}
			p.kill()
			r.try("killed the first, started a new one")
			return nil
		})
	}
	_, s, err := r.connectedSink(ctx)
	if err != nil {
		return err
	}
	if err := s.works(ctx, r); err != nil {
		return err
	}
	blind := r.observable() != nil
	var was, is []string
	if !blind {
		if was, err = r.look(ctx); err != nil {
			return err
		}
	}
	r.try("had a stream at work")
	if err := beside(); err != nil {
		return err
	}
	if !blind {
		if is, err = r.look(ctx); err != nil {
			return err
		}
		if !slices.Equal(was, is) {
			return fmt.Errorf("the target had %s before Check, and has %d after it", count(len(was), "event"), len(is))
		}
	}
	if err := s.works(ctx, r); err != nil {
		return fmt.Errorf("after Check of another process: %w", err)
	}
	r.saw("the stream went on")
	if blind {
		r.saw("whether the target is the same was not looked at (`observe`)")
	} else {
		r.saw("the target is the same")
	}
	return s.stop(ctx)
}

func checkUnreachable(ctx context.Context, r *attempt) error {
	config, err := r.unreachableConfig()
	if err != nil {
		return err
	}
	p, err := r.connected(ctx)
	if err != nil {
		return err
	}
	good, err := r.askCheck(ctx, p, r.config)
	if err != nil {
		return err
	}
	r.try("called Check of a target that can't be reached")
	findings, err := r.askCheck(ctx, p, config)
	switch {
	case err != nil:
		return err
	case len(good) == 0 && len(findings) == 0:
		return doesNotApply("Check of this plugin looks at nothing")
	}
	bad := errorsOf(findings)
	if len(bad) == 0 {
		return fmt.Errorf("there is no finding of severity ERROR: %s", tally(findings))
	}
	r.saw("%s", strings.Join(bad, "; "))
	return nil
}

// unreachable opens a stream where nothing answers. A sink that opens all the same must not ack.
func unreachable(ctx context.Context, r *attempt) error {
	config, err := r.unreachableConfig()
	if err != nil {
		return err
	}
	p, err := r.connected(ctx)
	if err != nil {
		return err
	}
	r.try("opened a stream to a target that can't be reached")
	const long = 3 * time.Second
	var e *ending
	if r.described.GetKind() == pluginv1.PluginKind_PLUGIN_KIND_SOURCE {
		s, err := r.readSource(ctx, p, sourceOptions{config: config})
		if err != nil {
			return err
		}
		e = &s.ending
		if err := s.settles(ctx, long, "an answer", func() bool { return s.over() || s.accepted }); err != nil {
			return err
		}
	} else {
		s, err := r.writeSink(ctx, p, config)
		if err != nil {
			return err
		}
		e = &s.ending
		if err := s.settles(ctx, long, "an answer", func() bool { return s.over() || s.accepted }); err != nil {
			return err
		}
		if s.opens() {
			r.try("sent an event")
			if err := r.notAcked(ctx, s); err != nil {
				return err
			}
		}
	}
	var said string
	e.look(func() {
		switch f := e.fault; {
		case f.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_PERMANENT:
			err = fmt.Errorf("the fault is %s; PERMANENT is for what only a person can decide, and a target that is away comes back", faultText(f))
		case f != nil:
			said = "fault " + faultText(f)
		case e.accepted:
			said = "the stream is open, and nothing was acked"
		default:
			said = fmt.Sprintf("it still tries after %v", long)
		}
	})
	if err != nil {
		return err
	}
	if err := p.healthy(ctx); err != nil {
		return err
	}
	r.saw("%s", said)
	r.saw("the process is healthy")
	return nil
}

// notAcked sends an event that can't be published.
func (r *attempt) notAcked(ctx context.Context, s *sinkStream) error {
	seq, err := s.send(r.event(r.key("unreachable")))
	if err != nil {
		return err
	}
	const long = 3 * time.Second
	if err := s.settles(ctx, long, "an answer", func() bool { return s.over() || s.numbers[seq-1].standing != open }); err != nil {
		return err
	}
	s.look(func() {
		switch n := s.numbers[seq-1]; {
		case n.standing == acked:
			err = errors.New("an event was acked by a sink whose target can't be reached")
		case n.failure.GetClass() == pluginv1.ErrorClass_ERROR_CLASS_PERMANENT:
			err = fmt.Errorf("a usual event failed for good because the target can't be reached: %s", n.failure.GetMessage())
		}
	})
	return err
}

// over says whether the stream has ended with a Fault. Called under the lock.
func (e *ending) over() bool { return e.fault != nil }

// opens says whether Opened has come and the stream is of use.
func (e *ending) opens() (yes bool) {
	e.look(func() { yes = e.accepted && e.fault == nil })
	return yes
}

// unreachableConfig lays `unreachable` over the config.
func (r *attempt) unreachableConfig() ([]byte, error) {
	if r.spec.Unreachable == nil {
		return nil, needs("unreachable")
	}
	c := maps.Clone(r.spec.Config)
	if c == nil {
		c = map[string]any{}
	}
	maps.Copy(c, r.spec.Unreachable)
	data, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	return data, nil
}

// errorsOf are the findings of severity ERROR.
func errorsOf(findings []*pluginv1.Finding) (texts []string) {
	for _, f := range findings {
		if f.GetSeverity() == pluginv1.Severity_SEVERITY_ERROR {
			texts = append(texts, findingText(f))
		}
	}
	return texts
}

func findingText(f *pluginv1.Finding) string { return f.GetCode() + ": " + f.GetMessage() }

// tally counts findings by severity.
func tally(findings []*pluginv1.Finding) string {
	if len(findings) == 0 {
		return "no findings: the plugin has no check of its own"
	}
	by := map[pluginv1.Severity]int{}
	for _, f := range findings {
		by[f.GetSeverity()]++
	}
	var parts []string
	for s, name := range []string{1: "ok", 2: "to be warned of", 3: "wrong"} {
		if n := by[pluginv1.Severity(s)]; n > 0 { //nolint:gosec // one of three
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	return count(len(findings), "finding") + ": " + strings.Join(parts, ", ")
}

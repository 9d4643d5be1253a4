package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relevo-io/relevo/sdk"
)

const (
	// minDuplicateWindow is what a drain (30 s) and a restart after it may take.
	minDuplicateWindow = time.Minute
	commonPayload      = 1 << 20 // the server's default max_payload
)

// findings collects what a check has seen.
type findings []sdk.Finding

func (f *findings) add(s sdk.Severity, code, path, hint, format string, a ...any) {
	*f = append(*f, sdk.Finding{Severity: s, Code: code, Path: path, Hint: hint, Message: fmt.Sprintf(format, a...)})
}

func (f *findings) fault(e *sdk.Error, path string) {
	f.add(sdk.Problem, e.Code, path, e.Hint, "%v", e)
}

// check looks at the servers, the stream and our permissions, for relevo doctor. It publishes nothing.
func check(ctx context.Context, c Config, r sdk.CheckRequest) ([]sdk.Finding, error) {
	var f findings
	l, err := dial(ctx, c, connectionName(r.Instance)+"/doctor")
	if err != nil {
		e := sdk.ErrorOf(err)
		f.fault(e, connectPath(e.Code))
		return f, nil
	}
	defer l.Close()
	f.add(sdk.OK, "connected", "", "", "%s, NATS %s%s", l.nc.ConnectedUrlRedacted(), l.nc.ConnectedServerVersion(), as(c))
	f.payload(l.nc.MaxPayload())

	if _, err := subscribe(l, c); err != nil {
		f.fault(sdk.ErrorOf(err), "/inbox_prefix")
		return f, nil
	}
	js, err := jetstream.New(l.nc)
	if err != nil {
		return nil, fmt.Errorf("make a JetStream client: %w", err)
	}
	if info := f.stream(ctx, js, l, c, r.ConstantDestination); info != nil {
		f.settings(&info.Config, info.State.Consumers, hasBatches(l.nc), c)
		if facts := factsOf(&info.Config); r.ConstantDestination != "" && !facts.captures(r.ConstantDestination) {
			f.fault(notCaptured(info.Config.Name, r.ConstantDestination), "/stream")
		}
	}
	f.permission(ctx, l, r.ConstantDestination)
	return f, nil
}

func as(c Config) string {
	if k := c.Auth.kind(); k != "" {
		return ", logged in by " + k
	}
	return ", not logged in"
}

// connectPath is the configuration key that a fault of connecting is about.
func connectPath(code string) string {
	switch {
	case strings.HasPrefix(code, "auth"), strings.HasPrefix(code, "credentials"):
		return "/auth"
	case strings.HasPrefix(code, "tls"):
		return "/tls"
	}
	return "/servers"
}

func (f *findings) payload(limit int64) {
	if limit < commonPayload {
		f.add(sdk.Warning, "max_payload_small", "", "max_payload: 1MB in the server's configuration",
			"the server takes messages of at most %d bytes; a larger event is refused for good", limit)
		return
	}
	f.add(sdk.OK, "max_payload", "", "", "messages of up to %d bytes", limit)
}

// stream looks for the stream; nil: there is none to look at.
func (f *findings) stream(ctx context.Context, js jetstream.JetStream, l *link, c Config, constant string) *jetstream.StreamInfo {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if _, err := js.AccountInfo(ctx); err != nil {
		if apiDenied(l) {
			f.add(sdk.Warning, "api_denied", "/auth", "grant the user to publish to $JS.API.INFO, $JS.API.STREAM.NAMES and $JS.API.STREAM.INFO.*",
				"the user may not ask the JetStream API: streams and their limits are not known")
			return nil
		}
		f.add(sdk.Problem, "jetstream_unavailable", "", "enable JetStream at the server and for the account", "JetStream does not answer: %v", err)
		return nil
	}
	name := c.Stream
	switch {
	case name == "" && constant == "":
		f.add(sdk.OK, "streams_by_subject", "", "", "the stream of each subject is looked up when its first event comes")
		return nil
	case name == "":
		var err error
		if name, err = js.StreamNameBySubject(ctx, constant); errors.Is(err, jetstream.ErrStreamNotFound) {
			f.add(sdk.Problem, "no_stream", "", fmt.Sprintf("nats stream add --subjects %q", constant), "no stream captures subject %q", constant)
			return nil
		} else if err != nil {
			f.add(sdk.Problem, "api_failed", "", "", "look up the stream of %q: %v", constant, err)
			return nil
		}
	}
	s, err := js.Stream(ctx, name)
	switch {
	case apiMissing(err) && c.CreateStream != nil:
		f.add(sdk.OK, "stream_to_create", "/create_stream", "", "stream %s does not exist and will be created", name)
		return nil
	case apiMissing(err):
		f.fault(streamMissing(name), "/stream")
		return nil
	case err != nil:
		f.add(sdk.Problem, "api_failed", "/stream", "", "look at stream %s: %v", name, err)
		return nil
	}
	return s.CachedInfo()
}

// settings judges a stream's configuration by what this relay promises.
func (f *findings) settings(s *jetstream.StreamConfig, consumers int, canBatch bool, c Config) {
	f.add(sdk.OK, "stream", "/stream", "", "stream %s over %s, %d replicas, %v storage", s.Name, strings.Join(s.Subjects, ", "), s.Replicas, s.Storage)
	edit := "nats stream edit " + s.Name
	if e := unusable(s); e != nil {
		f.fault(e, "/stream")
	}
	switch {
	case s.AllowAtomicPublish && c.Publish != publishKeySerial:
		f.add(sdk.OK, "batches", "/publish", "", "events go in atomic batches")
	case c.Publish == publishBatch:
		f.fault(atomicMissing(s.Name), "/publish")
	case canBatch && c.Publish == publishAuto:
		f.add(sdk.OK, "batches_off", "/publish", edit+" --allow-batch", "events go singly, one of a key at a time; atomic batches are faster where keys are few or the server syncs always")
	}
	switch {
	case s.Storage == jetstream.MemoryStorage:
		f.add(sdk.Warning, "memory_storage", "/stream", "make the stream with --storage file", "the stream is in memory: confirmed events are gone when its servers restart")
	case s.Replicas < 2:
		f.add(sdk.Warning, "one_replica", "/stream", edit+" --replicas 3, or jetstream { sync_interval: always } in the server's configuration",
			"one copy in a file, which the server syncs every two minutes unless sync_interval says otherwise: power loss can take confirmed events")
	}
	if s.Duplicates < minDuplicateWindow {
		f.add(sdk.Warning, "duplicate_window_short", "/stream", edit+" --dupe-window 2m",
			"the stream drops repeats for %v only: a drain and restart may take longer, and consumers then see them", s.Duplicates)
	}
	if s.Discard == jetstream.DiscardOld && (s.MaxMsgs > 0 || s.MaxBytes > 0 || s.MaxMsgsPerSubject > 0) {
		f.add(sdk.Warning, "discard_old", "/stream", edit+" --discard new", "when the stream is full it drops its oldest events, read or not")
	}
	if s.Retention == jetstream.InterestPolicy && consumers == 0 {
		f.add(sdk.Warning, "no_interest", "/stream", "create the consumers first", "the stream keeps only what a consumer waits for, and has none: events are confirmed and dropped")
	}
	if s.MaxMsgSize > 0 && s.MaxMsgSize < commonPayload {
		f.add(sdk.Warning, "max_msg_size_small", "/stream", edit+" --max-msg-size 1MB", "the stream takes messages of at most %d bytes; a larger event is refused for good", s.MaxMsgSize)
	}
}

// permission finds out whether we may publish to the subject. A message that is traced only is checked like any other
// and delivered to nobody; servers before 2.11 would deliver it, and are not asked.
func (f *findings) permission(ctx context.Context, l *link, subject string) {
	if subject == "" || validSubject(subject) != nil {
		f.add(sdk.OK, "publish_unchecked", "", "", "permission to publish was not checked: the subjects are not known before the events")
		return
	}
	if !atLeast(l.nc, 2, 11) {
		f.add(sdk.OK, "publish_unchecked", "", "", "permission to publish was not checked: the server is older than 2.11")
		return
	}
	m := &nats.Msg{Subject: subject, Header: nats.Header{"Nats-Trace-Dest": {l.nc.NewInbox()}, "Nats-Trace-Only": {"true"}}}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if err := l.nc.PublishMsg(m); err != nil {
		f.add(sdk.Problem, "publish_failed", "", "", "publish to %q: %v", subject, err)
		return
	}
	// The server answers in order: after the flush a refusal is known.
	if err := l.nc.FlushWithContext(ctx); err != nil {
		f.add(sdk.Problem, "publish_failed", "", "", "publish to %q: %v", subject, err)
		return
	}
	if errors.Is(l.nc.LastError(), nats.ErrPermissionViolation) {
		if s, ok := deniedSubject(l.nc.LastError()); ok && s == subject {
			f.fault(denied(subject).sdk(), "/auth")
			return
		}
	}
	f.add(sdk.OK, "may_publish", "", "", "may publish to %s", subject)
}

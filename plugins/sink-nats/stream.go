package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relevo-io/relevo/sdk"
)

const (
	apiPrefix = "$JS.API."
	// apiTimeout bounds one request of the JetStream API.
	apiTimeout = 5 * time.Second
)

// streamFacts is what the sink needs to know of a stream.
type streamFacts struct {
	name       string // "": not known, since the API may not be asked
	subjects   []string
	atomic     bool // takes atomic batches
	maxMessage int  // of headers and payload; 0: no limit
}

func factsOf(c *jetstream.StreamConfig) streamFacts {
	f := streamFacts{name: c.Name, subjects: c.Subjects, atomic: c.AllowAtomicPublish}
	if c.MaxMsgSize > 0 {
		f.maxMessage = int(c.MaxMsgSize)
	}
	return f
}

// captures reports whether the stream's subjects, as far as they are known, take this one.
func (f *streamFacts) captures(subject string) bool {
	for _, p := range f.subjects {
		if matches(p, subject) {
			return true
		}
	}
	return false
}

// resolve finds the one stream that takes every event: the configured one, which is created if that was asked for, or the
// one that captures the constant destination. Nil: there is no such one, each subject has to be looked up.
func resolve(ctx context.Context, js jetstream.JetStream, l *link, c Config, constant string) (*streamFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if c.Stream == "" && constant == "" {
		return nil, nil
	}
	name, err := c.Stream, error(nil)
	if name == "" {
		name, err = js.StreamNameBySubject(ctx, constant)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, sdk.Config(fmt.Errorf("no stream captures subject %q", constant)).WithCode("no_stream").
				WithHint(fmt.Sprintf("nats stream add --subjects %q, or set stream and create_stream", constant))
		}
	}
	var s jetstream.Stream
	if err == nil {
		s, err = js.Stream(ctx, name)
	}
	if apiMissing(err) {
		if c.CreateStream == nil {
			return nil, streamMissing(name)
		}
		s, err = create(ctx, js, c)
	}
	switch {
	case err == nil:
		config := &s.CachedInfo().Config
		if e := unusable(config); e != nil {
			return nil, e
		}
		f := factsOf(config)
		return &f, nil
	case apiUnanswered(err) && apiDenied(l):
		// The user may publish and nothing else. Limits are not known then, and batches are used only if asked for.
		return &streamFacts{name: c.Stream, atomic: c.Publish == publishBatch}, nil
	}
	if e, ok := errors.AsType[*sdk.Error](err); ok {
		return nil, e
	}
	return nil, sdk.Transient(fmt.Errorf("look up the stream: %w", err)).WithCode("jetstream_unavailable").
		WithHint("check that JetStream is enabled at the server and for the account")
}

// unusable says why no event can be published to a stream; nil: one can.
func unusable(s *jetstream.StreamConfig) *sdk.Error {
	switch {
	case s.NoAck:
		// Nothing published to it could ever be acked.
		return sdk.Config(fmt.Errorf("stream %q confirms nothing (no_ack)", s.Name)).WithCode("stream_no_ack").
			WithHint("nats stream edit " + s.Name + " --ack")
	case s.Sealed:
		return sdk.Config(fmt.Errorf("stream %q is sealed", s.Name)).WithCode("stream_sealed").WithHint("publish to another stream")
	case s.Mirror != nil:
		return sdk.Config(fmt.Errorf("stream %q is a mirror", s.Name)).WithCode("stream_mirror").WithHint("publish to the stream that it mirrors")
	}
	return nil
}

func streamMissing(name string) *sdk.Error {
	return sdk.Config(fmt.Errorf("stream %q does not exist", name)).WithCode("stream_missing").
		WithHint(fmt.Sprintf("nats stream add %s, or set create_stream", name))
}

func notCaptured(name, subject string) *sdk.Error {
	return sdk.Config(fmt.Errorf("stream %q does not capture subject %q", name, subject)).WithCode("subject_not_captured").
		WithHint("change to, or the stream's subjects: nats stream edit " + name)
}

func inboxDenied(err error, c Config) *sdk.Error {
	return sdk.Config(fmt.Errorf("subscribe to confirmations: %w", err)).WithCode("inbox_denied").
		WithHint("grant the user to subscribe to " + c.InboxPrefix + ".>, or set inbox_prefix")
}

// apiDenied reports whether the server refused a request of the JetStream API for want of permission.
func apiDenied(l *link) bool {
	for _, s := range l.look().denied {
		if strings.HasPrefix(s, apiPrefix) {
			return true
		}
	}
	return false
}

func create(ctx context.Context, js jetstream.JetStream, c Config) (jetstream.Stream, error) {
	want := c.CreateStream
	config := jetstream.StreamConfig{
		Name: c.Stream, Subjects: want.Subjects, Replicas: max(1, want.Replicas),
		Duplicates: time.Duration(want.DuplicateWindow), MaxAge: time.Duration(want.MaxAge), MaxBytes: int64(want.MaxBytes),
		Discard: jetstream.DiscardNew,
		// An old server does not know the field and ignores it.
		AllowAtomicPublish: want.AllowAtomic == nil || *want.AllowAtomic,
	}
	if config.MaxBytes == 0 {
		config.MaxBytes = -1
	}
	s, err := js.CreateStream(ctx, config)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return js.Stream(ctx, c.Stream) // somebody was faster
	}
	if e, ok := errors.AsType[jetstream.JetStreamError](err); ok && e.APIError() != nil && e.APIError().Code == 400 {
		return nil, sdk.Config(fmt.Errorf("create stream %q: %w", c.Stream, err)).WithCode("create_stream_refused").
			WithHint("change create_stream, or create the stream by hand")
	}
	return s, err
}

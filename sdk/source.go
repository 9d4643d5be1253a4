package sdk

import (
	"context"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Source makes a source plugin. run is one attempt: it connects, calls s.Opened, sends batches and obeys the requests
// until Stop or until s.Requests is closed, then returns nil. It keeps within the window: a number leaves it when its
// ack has taken effect upstream, or when Hold returns it. An error ends the stream, with its class (see Error). While
// it connects it reports StateConnecting and tries again by itself. ctx ends when the host has gone.
func Source[C any](spec Spec[C], run func(ctx context.Context, o SourceOpen[C], s *SourceStream) error) Plugin {
	r := newRegistration(spec, pluginv1.PluginKind_PLUGIN_KIND_SOURCE)
	r.read = func(ctx context.Context, open *pluginv1.SourceOpen, s *SourceStream) error {
		c, err := decodeOpen(spec, open.GetConfig())
		if err != nil {
			return err
		}
		o := SourceOpen[C]{
			Config:       c,
			Instance:     instanceOf(open.GetInstance()),
			Window:       windowOf(open.GetWindow()),
			DrainTimeout: drainOf(open.GetDrainTimeout()),
			HeldKeys:     open.GetHeldKeys(),
			HeldIDs:      open.GetHeldIds(),
		}
		if p := open.GetPosition(); len(p) > 0 {
			o.Position = p
		}
		return run(ctx, o, s)
	}
	return r
}

// SourceOpened says what holds for this configuration and server.
type SourceOpened struct {
	HoldsKeys    bool
	HasPositions bool
	Order        string // "per key", "best effort"
}

// SourceState is what a source is doing.
type SourceState int

// States of a source, as in the protocol.
const (
	StateConnecting SourceState = 1
	StateStandby    SourceState = 2
	StateSnapshot   SourceState = 3
	StateStreaming  SourceState = 4
)

// SourceStatus tells how a source is doing.
type SourceStatus struct {
	State SourceState
	Text  string
	// OldestUnpublished is the age of the oldest event that is committed and not acked; negative: not known.
	OldestUnpublished time.Duration
	// LagBytes and Backlog are negative when not known.
	LagBytes, Backlog int64
	Metrics           []Metric
}

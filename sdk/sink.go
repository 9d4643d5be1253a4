package sdk

import (
	"context"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// StreamSink makes a plugin that publishes asynchronously. run is one attempt: it connects, calls s.Opened, publishes
// what s.Requests brings and ends every Item exactly once (Ack, Fail or Return), until Stop has come and everything has
// ended or the drain time-out is over, then returns nil. While its broker is away it reports SinkDown, keeps what it has
// and goes on by itself. An error ends the stream with its class. ctx ends when the host has gone.
func StreamSink[C any](spec Spec[C], run func(ctx context.Context, o SinkOpen[C], s *SinkStream) error) Plugin {
	r := newRegistration(spec, pluginv1.PluginKind_PLUGIN_KIND_SINK)
	r.write = func(ctx context.Context, open *pluginv1.SinkOpen, s *SinkStream) error {
		c, err := decodeOpen(spec, open.GetConfig())
		if err != nil {
			return err
		}
		return run(ctx, SinkOpen[C]{
			Config:              c,
			Instance:            instanceOf(open.GetInstance()),
			Window:              windowOf(open.GetWindow()),
			DrainTimeout:        drainOf(open.GetDrainTimeout()),
			ConstantDestination: open.GetConstantDestination(),
		}, s)
	}
	return r
}

// Item is one event with its number at this sink.
type Item struct {
	Event
	Seq         uint64
	Destination string // "" where the sink has none
	Redelivered bool   // an earlier process of this sink may have published it
	Size        int    // encoded, in bytes
}

// Events is a batch that arrived, in order. With KeepsOrder, what must be returned because its key has failed has been
// returned already and is not in it.
type Events struct{ Items []Item }

// SinkState is how a sink is doing.
type SinkState int

// States of a sink, as in the protocol.
const (
	SinkOK   SinkState = 1
	SinkSlow SinkState = 2
	SinkDown SinkState = 3
)

// SinkStatus tells how a sink is doing.
type SinkStatus struct {
	State SinkState
	Text  string
	// OldestUnconfirmed is the age of the oldest event given to the broker and not confirmed; negative: not known.
	OldestUnconfirmed time.Duration
	Metrics           []Metric
}

// SinkOpened says what holds for this configuration and broker.
type SinkOpened struct {
	// KeepsOrder: the sink may be given several events of one key at once. False: it never has two of one key.
	KeepsOrder bool
}

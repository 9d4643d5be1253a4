package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/relevo-io/relevo/host/plugin"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// alone is the source plugin as the host runs it, with nobody behind it: every batch is acked when it arrives.
type alone struct {
	p      *plugin.Process
	remove func()
	end    context.CancelFunc
	done   chan error // the one outcome of relaying
}

// startSource launches the plugin and reads from it with the host's default window. source is its configuration beside
// dsn.
func (b *bench) startSource(ctx context.Context, source conf) (*alone, error) {
	dir, remove, err := plugin.RuntimeDir()
	if err != nil {
		return nil, err
	}
	p, err := plugin.Launch(ctx, plugin.Settings{
		Kind: plugin.KindSource, Name: "postgres-poll", Path: filepath.Join(b.bin, "source-postgres-poll"),
		Pipeline: pipelineName, Instance: "source", RuntimeDir: dir,
	})
	if err != nil {
		remove()
		return nil, err
	}
	config, err := json.Marshal(b.withDSN(source))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	life, end := context.WithCancel(ctx)
	s := &alone{p: p, remove: remove, end: end, done: make(chan error, 1)}
	r, err := p.Read(life, &pluginv1.SourceOpen{
		Config:       config,
		Instance:     &pluginv1.Instance{Pipeline: pipelineName, Name: "source", Attempt: 1},
		Window:       &pluginv1.Window{Events: 10_000, Bytes: 64 << 20},
		DrainTimeout: durationpb.New(patience),
	})
	if err != nil {
		s.stop()
		return nil, err
	}
	go func() { s.done <- ackAll(r) }() // stop waits for it
	return s, nil
}

// ackAll acks until the stream ends.
func ackAll(r *plugin.ReadStream) error {
	for {
		batch, response, err := r.Recv()
		switch {
		case err != nil:
			return err
		case batch != nil:
			err = r.Send(&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Ack{
				// A source without positions is told numbers.
				Ack: &pluginv1.SourceAck{Ranges: []*pluginv1.SeqRange{{First: batch.FirstSeq, Last: batch.FirstSeq + uint64(batch.Count) - 1}}},
			}})
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
		case response.GetFault() != nil:
			return fmt.Errorf("the source gave up: %s", response.GetFault())
		}
	}
}

func (s *alone) pid() int { return s.p.PID() }

// stop cuts the stream and ends the process.
func (s *alone) stop() {
	s.end()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.p.Close(ctx)
	s.remove()
}

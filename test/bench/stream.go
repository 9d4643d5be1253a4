package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const streamName = "ORDERS"

// stream is a stream on a broker of its own. What it holds is counted by the server, and the times of messages are the
// server's, when it stored them: both sides of a comparison are measured by the same clock at the same place.
type stream struct {
	k  *broker
	nc *nats.Conn
	js jetstream.JetStream
	s  jetstream.Stream
}

// startStream starts a broker with one empty stream. atomic: it takes atomic batches. always: it syncs each confirmation.
func (b *bench) startStream(ctx context.Context, atomic, always bool) (*stream, error) {
	k, err := b.startBroker(always)
	if err != nil {
		return nil, err
	}
	s := &stream{k: k}
	if s.nc, err = nats.Connect(k.url); err == nil {
		s.js, err = jetstream.New(s.nc)
	}
	if err == nil {
		s.s, err = s.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: streamName, Subjects: []string{"orders.>"}, Storage: jetstream.FileStorage, AllowAtomicPublish: atomic,
		})
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("make a stream: %w", err)
	}
	return s, nil
}

func (s *stream) stop() {
	if s.nc != nil {
		s.nc.Close()
	}
	s.k.stop()
}

// holds waits until it holds n messages.
func (s *stream) holds(ctx context.Context, n int) error {
	return until(ctx, fmt.Sprintf("the stream holds %d messages", n), 20*time.Millisecond, func(ctx context.Context) (bool, error) {
		info, err := s.s.Info(ctx)
		if err == nil && info.State.Msgs > uint64(n) {
			err = fmt.Errorf("the stream holds %d messages, more than the %d there are", info.State.Msgs, n)
		}
		return err == nil && info.State.Msgs == uint64(n), err
	})
}

// reaches waits until it holds n messages or more, and returns how many.
func (s *stream) reaches(ctx context.Context, n int) (holds int, err error) {
	err = until(ctx, fmt.Sprintf("the stream holds %d messages", n), 5*time.Millisecond, func(ctx context.Context) (bool, error) {
		info, err := s.s.Info(ctx)
		if err == nil {
			holds = int(info.State.Msgs)
		}
		return holds >= n, err
	})
	return holds, err
}

// stored is when the message with a number was stored.
func (s *stream) stored(ctx context.Context, seq int) (time.Time, error) {
	m, err := s.s.GetMsg(ctx, uint64(seq))
	if err != nil {
		return time.Time{}, fmt.Errorf("look at message %d: %w", seq, err)
	}
	return m.Time, nil
}

// rate is how fast n messages were stored, the first tenth left out.
func (s *stream) rate(ctx context.Context, n int) (perSecond float64, err error) {
	if err := s.holds(ctx, n); err != nil {
		return 0, err
	}
	from, err := s.stored(ctx, max(1, warm(n)))
	if err != nil {
		return 0, err
	}
	to, err := s.stored(ctx, n)
	return per(n-warm(n), from, to), err
}

// times are when each message was stored, by the event's id.
func (s *stream) times(ctx context.Context) (map[string]time.Time, error) {
	c, err := s.s.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true})
	if err != nil {
		return nil, err
	}
	n := int(c.CachedInfo().NumPending)
	all := make(map[string]time.Time, n)
	for read := 0; read < n; {
		batch, err := c.Fetch(min(1000, n-read), jetstream.FetchMaxWait(10*time.Second))
		if err != nil {
			return nil, err
		}
		before := read
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			all[m.Headers().Get("id")] = meta.Timestamp
			read++
		}
		if err := batch.Error(); err != nil {
			return nil, err
		}
		if read == before {
			return nil, fmt.Errorf("read %d messages of %d, and no more come", read, n)
		}
	}
	return all, nil
}

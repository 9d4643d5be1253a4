package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

// batchMessages is the size of atomic batches, the sink's own.
const batchMessages = 500

// event is a row in the memory of the bare client.
type event struct {
	ID            string
	AggregateID   string
	AggregateType string
	Type          string
	Payload       []byte
	Time          time.Time
}

// eventColumns are what readEvents takes.
const eventColumns = "id::text, aggregate_id::text, aggregate_type, type, payload::text::bytea, created_at"

// events reads the outbox into memory, in its order.
func (b *bench) events(ctx context.Context) ([]event, error) {
	return readEvents(b.admin.Query(ctx, "select "+eventColumns+" from outbox order by seq"))
}

func readEvents(rows pgx.Rows, err error) ([]event, error) {
	if err != nil {
		return nil, err
	}
	var all []event
	for rows.Next() {
		var e event
		if err := rows.Scan(&e.ID, &e.AggregateID, &e.AggregateType, &e.Type, &e.Payload, &e.Time); err != nil {
			rows.Close()
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}

// message is what the sink makes of an event, made the usual way.
func message(e *event) *nats.Msg {
	return &nats.Msg{Subject: "orders." + e.Type, Data: e.Payload, Header: nats.Header{
		"Nats-Msg-Id": {pipelineName + "/nats/" + e.ID}, "id": {e.ID}, "type": {e.Type}, "aggregate_type": {e.AggregateType},
		"content_type": {"application/json"}, "time": {e.Time.Format(time.RFC3339Nano)},
	}}
}

// publisher is the bare client: publish returns once it can take more, finish once everything is confirmed.
type publisher interface {
	publish(ctx context.Context, all []event) error
	finish(ctx context.Context) error
}

func (s *stream) publisher(atomic bool, keys int) (publisher, error) {
	if atomic {
		return &batches{js: s.js, msgs: make([]*nats.Msg, 0, batchMessages)}, nil
	}
	js, err := jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(2*keys), jetstream.WithPublishAsyncTimeout(time.Minute))
	return &serial{js: js, flying: make([]jetstream.PubAckFuture, keys)}, err
}

// batches publishes with the sink's guarantees: atomic batches, one in flight, so that no later event is stored when an
// earlier one is refused.
type batches struct {
	js   jetstream.JetStream
	msgs []*nats.Msg
}

func (p *batches) publish(ctx context.Context, all []event) error {
	for len(all) > 0 {
		n := min(batchMessages, len(all))
		p.msgs = p.msgs[:0]
		for i := range all[:n] {
			p.msgs = append(p.msgs, message(&all[i]))
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		_, err := jetstreamext.PublishMsgBatch(ctx, p.js, p.msgs, jetstreamext.BatchFlowControl{})
		cancel()
		if err != nil {
			return fmt.Errorf("publish a batch: %w", err)
		}
		all = all[n:]
	}
	return nil
}

func (p *batches) finish(context.Context) error { return nil }

// serial publishes one message at a time for each key, asynchronously over all keys. Rows of the outbox take the keys in
// turn, so the one before of the same key is always the same distance away.
type serial struct {
	js     jetstream.JetStream
	flying []jetstream.PubAckFuture // by key
	sent   int
}

func (p *serial) publish(ctx context.Context, all []event) error {
	for i := range all {
		f := &p.flying[p.sent%len(p.flying)]
		if err := settle(ctx, f); err != nil {
			return err
		}
		var err error
		if *f, err = p.js.PublishMsgAsync(message(&all[i]), jetstream.WithRetryAttempts(0)); err != nil {
			return fmt.Errorf("publish a message: %w", err)
		}
		p.sent++
	}
	return nil
}

func (p *serial) finish(ctx context.Context) error {
	for i := range p.flying {
		if err := settle(ctx, &p.flying[i]); err != nil {
			return err
		}
	}
	return nil
}

// settle waits for one confirmation, if there is one to come, and forgets it: a future tells its outcome once.
func settle(ctx context.Context, f *jetstream.PubAckFuture) error {
	if *f == nil {
		return nil
	}
	select {
	case <-(*f).Ok():
		*f = nil
		return nil
	case err := <-(*f).Err():
		return fmt.Errorf("publish a message: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

package main

import (
	"context"
	"fmt"
	"time"

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

// events reads the outbox into memory, in its order.
func (b *bench) events(ctx context.Context) ([]event, error) {
	rows, err := b.admin.Query(ctx, "select id::text, aggregate_id::text, aggregate_type, type, payload::text::bytea, created_at from outbox order by seq")
	if err != nil {
		return nil, err
	}
	var all []event
	var e event
	for rows.Next() {
		if err := rows.Scan(&e.ID, &e.AggregateID, &e.AggregateType, &e.Type, &e.Payload, &e.Time); err != nil {
			return nil, err
		}
		e.Payload = append([]byte(nil), e.Payload...)
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

// publishBatches is the bare client with the sink's guarantees: atomic batches, one in flight, so that no later event is
// stored when an earlier one is refused.
func publishBatches(ctx context.Context, s *stream, all []event) error {
	msgs := make([]*nats.Msg, 0, batchMessages)
	for len(all) > 0 {
		n := min(batchMessages, len(all))
		msgs = msgs[:0]
		for i := range all[:n] {
			msgs = append(msgs, message(&all[i]))
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		_, err := jetstreamext.PublishMsgBatch(ctx, s.js, msgs, jetstreamext.BatchFlowControl{})
		cancel()
		if err != nil {
			return fmt.Errorf("publish a batch: %w", err)
		}
		all = all[n:]
	}
	return nil
}

// publishSerially is the bare client with one message in flight for each key, asynchronously over all keys. Rows of the
// outbox take the keys in turn, so the one before of the same key is always the same distance away.
func publishSerially(_ context.Context, s *stream, all []event, keys int) error {
	js, err := jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(2*keys))
	if err != nil {
		return err
	}
	flying := make([]jetstream.PubAckFuture, keys) // by key
	settle := func(f jetstream.PubAckFuture) error {
		if f == nil {
			return nil
		}
		select {
		case <-f.Ok():
			return nil
		case err := <-f.Err():
			return fmt.Errorf("publish a message: %w", err)
		}
	}
	for i := range all {
		key := i % keys
		if err := settle(flying[key]); err != nil {
			return err
		}
		if flying[key], err = js.PublishMsgAsync(message(&all[i]), jetstream.WithRetryAttempts(0)); err != nil {
			return fmt.Errorf("publish a message: %w", err)
		}
	}
	for _, f := range flying {
		if err := settle(f); err != nil {
			return err
		}
	}
	return nil
}

package main

import "context"

func measureBatch(ctx context.Context, b *bench, r *Result) error {
	return measureJetStream(ctx, b, r, delivery{rows: b.sizes.batchRows, atomic: true})
}

func measureBatchSync(ctx context.Context, b *bench, r *Result) error {
	return measureJetStream(ctx, b, r, delivery{rows: b.sizes.batchRows, atomic: true, always: true})
}

func measureSerial(ctx context.Context, b *bench, r *Result) error {
	return measureJetStream(ctx, b, r, delivery{rows: b.sizes.serialRows})
}

func measureSerialSync(ctx context.Context, b *bench, r *Result) error {
	return measureJetStream(ctx, b, r, delivery{rows: b.sizes.syncedRows, always: true})
}

// delivery is one way to publish.
type delivery struct {
	rows   int
	atomic bool
	always bool // the server syncs each confirmation
}

// measureJetStream: the whole way from a full outbox to the stream, against the bare client that has the same events in
// memory and publishes them with the same guarantees. The bare client has the machine for itself and its server;
// the relay shares it with PostgreSQL.
func measureJetStream(ctx context.Context, b *bench, r *Result, d delivery) error {
	limit := func(ctx context.Context) (float64, error) {
		if err := b.fill(ctx, d.rows); err != nil {
			return 0, err
		}
		all, err := b.events(ctx)
		if err != nil {
			return 0, err
		}
		s, err := b.startStream(ctx, d.atomic, d.always)
		if err != nil {
			return 0, err
		}
		defer s.stop()
		client, server := usedHere(), used(s.k.pid())
		if d.atomic {
			err = publishBatches(ctx, s, all)
		} else {
			err = publishSerially(ctx, s, all, b.sizes.keys)
		}
		if err != nil {
			return 0, err
		}
		r.add("client processor time, bare", "µs/event", usedHere().since(client, d.rows))
		r.add("NATS server processor time, bare", "µs/event", used(s.k.pid()).since(server, d.rows))
		return s.rate(ctx, d.rows)
	}
	relay := func(ctx context.Context) (float64, error) {
		if err := b.fill(ctx, d.rows); err != nil {
			return 0, err
		}
		s, err := b.startStream(ctx, d.atomic, d.always)
		if err != nil {
			return 0, err
		}
		defer s.stop()
		database, server := used(family(b.pg.PID())...), used(s.k.pid())
		l, err := b.startRelay(natsSink(s.k))
		if err != nil {
			return 0, err
		}
		defer l.kill()
		if err := l.running(ctx); err != nil {
			return 0, err
		}
		v, err := s.rate(ctx, d.rows)
		if err != nil {
			return 0, err
		}
		for _, p := range []struct {
			name string
			used usage
			was  usage
		}{
			{"NATS server", used(s.k.pid()), server},
			{"database", used(family(b.pg.PID())...), database},
			{"host", used(l.pids.host), 0},
			{"source", used(l.pids.source), 0},
			{"sink", used(l.pids.sink), 0},
		} {
			r.add(p.name+" processor time, relay", "µs/event", p.used.since(p.was, d.rows))
		}
		return v, l.stop()
	}
	return b.compare(ctx, r, limit, rate{"relay", 0.8, relay})
}

package main

import (
	"context"
	"runtime"
)

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
// memory and publishes them with the same guarantees, and against a relay by hand. The bare client has the machine
// for itself and its server; both relays share it with PostgreSQL.
func measureJetStream(ctx context.Context, b *bench, r *Result, d delivery) error {
	var byHand float64 // of this round
	return b.compare(ctx, r,
		func(ctx context.Context) (float64, error) { return b.runBare(ctx, r, d) },
		rate{name: "by hand", run: func(ctx context.Context) (v float64, err error) {
			byHand, err = b.runByHand(ctx, r, d)
			return byHand, err
		}},
		rate{name: "relay", goal: 0.8, run: func(ctx context.Context) (float64, error) {
			v, err := b.runRelay(ctx, r, d)
			if err == nil {
				r.add("relay / by hand", "ratio", v/byHand)
			}
			return v, err
		}},
	)
}

func (b *bench) runBare(ctx context.Context, r *Result, d delivery) (float64, error) {
	if err := deletingBox(b).fill(ctx, d.rows); err != nil {
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
	p, err := s.publisher(d.atomic, b.sizes.keys)
	if err != nil {
		return 0, err
	}
	shares := b.shares(s, nil)
	if err := p.publish(ctx, all); err != nil {
		return 0, err
	}
	if err := p.finish(ctx); err != nil {
		return 0, err
	}
	shares.report(r, "bare", d.rows)
	return s.rate(ctx, d.rows)
}

func (b *bench) runByHand(ctx context.Context, r *Result, d delivery) (float64, error) {
	if err := deletingBox(b).fill(ctx, d.rows); err != nil {
		return 0, err
	}
	s, err := b.startStream(ctx, d.atomic, d.always)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	p, err := s.publisher(d.atomic, b.sizes.keys)
	if err != nil {
		return 0, err
	}
	shares := b.shares(s, nil)
	if err := b.byHand(ctx, p); err != nil {
		return 0, err
	}
	shares.report(r, "by hand", d.rows)
	return s.rate(ctx, d.rows)
}

func (b *bench) runRelay(ctx context.Context, r *Result, d delivery) (float64, error) {
	if err := deletingBox(b).fill(ctx, d.rows); err != nil {
		return 0, err
	}
	s, err := b.startStream(ctx, d.atomic, d.always)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	l, err := b.startRelay(conf{}, natsSink(s.k))
	if err != nil {
		return 0, err
	}
	defer l.kill()
	if err := l.running(ctx); err != nil {
		return 0, err
	}
	done, err := s.reaches(ctx, warm(d.rows)) // the start is not the events' cost
	if err != nil {
		return 0, err
	}
	shares := b.shares(s, l)
	v, err := s.rate(ctx, d.rows)
	if err != nil {
		return 0, err
	}
	if _, err := deletingBox(b).gone(ctx, d.rows); err != nil {
		return 0, err
	}
	shares.report(r, "relay", max(1, d.rows-done))
	return v, l.stop()
}

// shares is who has used how much of the processors since some moment.
type shares struct {
	b                                            *bench
	s                                            *stream
	l                                            *relay // nil: this process publishes
	database, broker, client, host, source, sink usage
}

func (b *bench) shares(s *stream, l *relay) *shares {
	h := &shares{b: b, s: s, l: l, database: used(family(b.pg.PID())...), broker: used(s.k.pid()), client: usedHere()}
	if l != nil {
		h.host, h.source, h.sink = used(l.pids.host), used(l.pids.source), used(l.pids.sink)
	}
	return h
}

func (h *shares) report(r *Result, who string, events int) {
	client := usedHere()
	all := 0.0
	add := func(name string, now, then usage) {
		v := now.since(then, events)
		r.add("processor time, "+who+": "+name, "µs/event", v)
		all += v
	}
	add("NATS server", used(h.s.k.pid()), h.broker)
	if who != "bare" {
		add("database", used(family(h.b.pg.PID())...), h.database)
	}
	if h.l == nil {
		add("client", client, h.client)
	} else {
		add("host", used(h.l.pids.host), h.host)
		add("source", used(h.l.pids.source), h.source)
		add("sink", used(h.l.pids.sink), h.sink)
	}
	r.add("processor time, "+who+": all", "µs/event", all)
	if all > 0 {
		r.add("what the processors allow, "+who, "events/s", float64(runtime.NumCPU())*1e6/all)
	}
}

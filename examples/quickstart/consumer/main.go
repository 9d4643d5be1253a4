// Consumer handles order events from JetStream, each exactly once: an inbox table in its own database drops the ids that it
// has seen. The demo runs it twice, as the shipping department and as the sender of e-mails.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

//go:embed schema.sql
var schema string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		slog.Error("consumer ended", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var h handler
	flags := flag.NewFlagSet("consumer", flag.ExitOnError)
	migrate := flags.Bool("migrate", false, "create the tables and exit")
	name := flags.String("name", "", "name of the durable consumer")
	flags.StringVar(&h.verb, "verb", "handle", "what the work is called")
	flags.IntVar(&h.crashAfter, "crash-after", 0, "kill this process between the commit and the ack of its n-th event")
	_ = flags.Parse(args) // exits

	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return fmt.Errorf("connect to DATABASE_URL: %w", err)
	}
	defer db.Close(context.WithoutCancel(ctx))
	if *migrate {
		_, err := db.Exec(ctx, schema)
		return err
	}
	h.db = db

	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.Name(*name))
	if err != nil {
		return fmt.Errorf("connect to NATS_URL: %w", err)
	}
	defer nc.Close()
	cons, err := durable(ctx, nc, *name)
	if err != nil {
		return err
	}
	return consume(ctx, cons, &h)
}

// durable returns the consumer with that name, once the stream is there.
func durable(ctx context.Context, nc *nats.Conn, name string) (jetstream.Consumer, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		cons, err := js.CreateOrUpdateConsumer(ctx, "ORDERS", jetstream.ConsumerConfig{
			Durable:   name,
			AckPolicy: jetstream.AckExplicitPolicy,
			AckWait:   2 * time.Second,
			// One message at a time. JetStream redelivers what was not acked, but not before it delivers what is new:
			// with more on the way, a crash here would change the order of events.
			MaxAckPending: 1,
		})
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return cons, err
		}
		select {
		case <-tick.C: // the relay makes the stream when it starts
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// consume handles and acks events until ctx is done. The ack comes after the commit: a crash in between brings the event
// again, and the inbox drops it.
func consume(ctx context.Context, cons jetstream.Consumer, h *handler) error {
	messages, err := cons.Messages(jetstream.PullMaxMessages(1))
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("wait for an event: %w", err)
		}
		if err := h.handle(ctx, msg); err != nil {
			return err
		}
		if err := msg.DoubleAck(ctx); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
	}
}

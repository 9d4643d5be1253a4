// Orderservice is a service with a transactional outbox: it changes an order and writes the event that says so in one
// transaction. It knows nothing of brokers or of Relevo.
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

	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schema string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("order service ended", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var w workload
	flags := flag.NewFlagSet("orderservice", flag.ExitOnError)
	migrate := flags.Bool("migrate", false, "create the tables and exit")
	flags.IntVar(&w.events, "events", 4000, "transactions to commit, one event each, before exiting")
	flags.IntVar(&w.rate, "rate", 250, "transactions a second")
	flags.IntVar(&w.workers, "workers", 6, "sessions that work side by side")
	flags.Float64Var(&w.declined, "declined", 0.1, "share of transactions that are rolled back after the event was written")
	_ = flags.Parse(args) // exits

	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return fmt.Errorf("connect to DATABASE_URL: %w", err)
	}
	defer db.Close()
	if *migrate {
		_, err := db.Exec(ctx, schema)
		return err
	}
	return w.run(ctx, &shop{db: db})
}

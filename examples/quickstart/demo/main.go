// Demo runs the quickstart from end to end on one machine: a throw-away PostgreSQL, a NATS server with JetStream, the order
// service, the relay, a shipping and an e-mail consumer, each a process of its own. It shows what happens, kills the relay
// half-way, lets it start again, and ends with counts taken from the tables of the service and the consumers.
//
// The exit code is 1 if a promise was broken: an event lost, invented, out of order or handled twice.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "nats" {
		if err := serveNATS(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "nats:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (ok bool, err error) {
	exe, err := os.Executable()
	if err != nil {
		return false, err
	}
	var s settings
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	flags.StringVar(&s.bin, "bin", filepath.Dir(exe), "directory of relevo, its plugins, orderservice and consumer")
	flags.StringVar(&s.pipeline, "pipeline", "examples/quickstart/pipeline.yaml", "pipeline of the relay")
	flags.IntVar(&s.events, "events", 4000, "events to write")
	flags.IntVar(&s.rate, "rate", 250, "transactions a second")
	keep := flags.Bool("keep", false, "keep the logs, and say where")
	_ = flags.Parse(args) // exits
	s.self = exe

	s.dir, err = os.MkdirTemp("", "relevo-demo-")
	if err != nil {
		return false, err
	}
	ok, err = conduct(ctx, s)
	if *keep || !ok && ctx.Err() == nil {
		fmt.Printf("Logs are in %s\n", s.dir)
		return ok, err
	}
	return ok, joinRemove(err, s.dir)
}

// Bench measures Relevo on this machine: each figure beside what limits it, in one run.
//
//	go run ./test/bench [flags] [figure…]
//
// It builds relevo and its plugins, starts a PostgreSQL and NATS servers of its own, and prints a table; -json writes the
// same as data. Without names every figure is measured; -h lists them. docs/performance.md explains each.
//
// Rates are compared in turns (bare, relay, bare again) and given as the median over the rounds; the two bare runs of a
// round are the A/A pair that says how much of a difference is noise. The first tenth of each run is warm-up and is
// not counted.
//
//	main.go        flags, the list of figures       report.go    measures, table, JSON
//	bench.go       what all figures share           process.go   processor time and memory of processes
//	relay.go       relevo run as a child            source.go    the source plugin alone
//	outbox.go      the tables, the bare SQL loop    broker.go    a NATS server as a child
//	stream.go      a stream and its messages        publish.go   the bare NATS client
//	byhand.go      a relay as one would write it by hand
//
// The other files are one figure each.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/relevo-io/relevo/internal/pgserver"
)

// figure is one thing to measure.
type figure struct {
	name, about string
	measure     func(context.Context, *bench, *Result) error
}

var figures = []figure{
	{"drain", "source-postgres-poll, alone and in a pipeline, against the bare SQL read-and-delete loop", measureDrain},
	{"mark", "the same where published rows are marked, against the bare SQL read-and-update loop", measureMark},
	{"shared", "two and three sources that share one outbox, against one", measureShared},
	{"batch", "outbox to JetStream in atomic batches, against the bare client", measureBatch},
	{"batch-sync", "the same, each commit synced to disk", measureBatchSync},
	{"serial", "outbox to JetStream with one message per key in flight, against the bare client", measureSerial},
	{"serial-sync", "the same, each message synced to disk", measureSerialSync},
	{"latency", "from the service's commit to the stream, at a fixed rate", measureLatency},
	{"memory", "resident memory of all processes: idle, draining, broker down with a full window", measureMemory},
	{"start", "from exec of relevo run to the first message in the stream", measureStart},
	{"backlog", "cost of an event with a small and a large backlog, to a source that deletes", measureBacklog},
}

// sizes of the measurements.
type sizes struct {
	rounds       int
	drainRows    int
	batchRows    int
	serialRows   int
	syncedRows   int // of serial-sync
	keys         int
	payload      int // bytes
	rate         int // events a second, of latency
	latencyTicks int // seconds
	memoryRows   int
	starts       int
	small, large int           // backlogs
	watch        time.Duration // of a state's memory, until it counts as what it stays like
}

func fullSizes() sizes {
	return sizes{
		rounds: 5, drainRows: 250_000, batchRows: 200_000, serialRows: 200_000, syncedRows: 20_000, keys: 1000, payload: 500,
		rate: 1000, latencyTicks: 10, memoryRows: 300_000, starts: 10, small: 100_000, large: 5_000_000, watch: 3 * time.Second,
	}
}

func main() {
	serveBroker()
	if err := command(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		os.Exit(1)
	}
}

func command(args []string, stdout, stderr io.Writer) (err error) {
	z := fullSizes()
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	jsonFile := flags.String("json", "", "write the measurements to this `file`, too")
	flags.StringVar(&o.bin, "bin", "", "`directory` with relevo and its plugins; built from this module if empty")
	flags.IntVar(&z.rounds, "rounds", z.rounds, "how often each comparison is repeated")
	flags.BoolVar(&o.fsync, "fsync", true, "PostgreSQL flushes to disk, as in earnest")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: go run ./test/bench [flags] [figure…]")
		flags.PrintDefaults()
		for _, f := range figures {
			fmt.Fprintf(stderr, "  %-12s %s\n", f.name, f.about)
		}
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(flags.Args())
	if err != nil {
		return err
	}
	if z.rounds < 1 {
		return errors.New("-rounds must be at least 1")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pg, err := pgserver.Start(ctx, pgserver.Options{Settings: serverSettings(o.fsync)})
	if err != nil {
		return err
	}
	b := &bench{pg: pg, sizes: z, progress: stderr}
	defer func() {
		err = errors.Join(err, b.close(), pg.Close())
	}()
	if err := b.prepare(ctx, o); err != nil {
		return err
	}
	rep, err := b.run(ctx, chosen)
	err = errors.Join(err, rep.print(stdout))
	if *jsonFile != "" {
		err = errors.Join(err, rep.writeJSON(*jsonFile))
	}
	return err
}

// choose finds figures by name; none: all of them.
func choose(names []string) ([]figure, error) {
	if len(names) == 0 {
		return figures, nil
	}
	var chosen []figure
	for _, name := range names {
		i := slices.IndexFunc(figures, func(f figure) bool { return f.name == name })
		if i < 0 {
			var known []string
			for _, f := range figures {
				known = append(known, f.name)
			}
			return nil, fmt.Errorf("no figure is called %q; there are %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, figures[i])
	}
	return chosen, nil
}

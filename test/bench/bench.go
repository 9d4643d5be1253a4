package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

const module = "github.com/relevo-io/relevo/"

// executables by file name. The plugins stand beside the host, which finds them there.
var executables = map[string]string{
	"relevo":               "host/cmd/relevo",
	"source-postgres-poll": "plugins/source-postgres-poll",
	"sink-nats":            "plugins/sink-nats",
	"sink-null":            "test/plugins/nullsink",
}

// patience bounds every wait for a server or a relay, and every run.
const patience = 5 * time.Minute

type options struct {
	bin   string
	race  bool
	fsync bool
}

// database is a server of the run's own; *pgserver.Server and *pgtest.Postgres are one.
type database interface {
	DSN() string
	PID() int
}

// bench is what the figures share. One goroutine measures; nothing else runs meanwhile.
type bench struct {
	pg       database
	sizes    sizes
	progress io.Writer

	dir   string // everything that a run writes, apart from the servers' data; short, for sockets
	bin   string
	admin *pgx.Conn
	runs  int // numbers files and streams
}

// serverSettings are those of a small server in earnest. Autovacuum would start in some runs and not in others: each run
// begins with a vacuumed table instead.
func serverSettings(fsync bool) map[string]string {
	s := map[string]string{
		"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "30min", "autovacuum": "off",
		"wal_level": "replica", "fsync": "on", "full_page_writes": "on",
	}
	if !fsync {
		s["fsync"] = "off"
	}
	return s
}

// prepare builds the executables and makes the table.
func (b *bench) prepare(ctx context.Context, o options) (err error) {
	if b.dir, err = os.MkdirTemp("", "relevo-bench-"); err != nil {
		return err
	}
	if b.bin = o.bin; b.bin == "" {
		b.bin = filepath.Join(b.dir, "bin")
		b.say("building relevo and its plugins")
		if err := build(ctx, b.bin, o.race); err != nil {
			return err
		}
	}
	if b.admin, err = pgx.Connect(ctx, b.pg.DSN()); err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return b.createOutbox(ctx)
}

func build(ctx context.Context, dir string, race bool) error {
	for _, name := range slices.Sorted(maps.Keys(executables)) {
		args := []string{"build", "-o", filepath.Join(dir, name)}
		if race {
			args = append(args, "-race")
		}
		out, err := exec.CommandContext(ctx, "go", append(args, module+executables[name])...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("go build %s: %w\n%s", executables[name], err, out)
		}
	}
	return nil
}

func (b *bench) close() error {
	var errs []error
	if b.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		errs = append(errs, b.admin.Close(ctx))
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	return errors.Join(errs...)
}

// run measures one figure after the other. The report holds what there is also when it returns an error.
func (b *bench) run(ctx context.Context, chosen []figure) (*Report, error) {
	rep := &Report{Machine: b.machine(ctx)}
	for _, f := range chosen {
		r := &Result{Figure: f.name, About: f.about}
		rep.Results = append(rep.Results, r)
		began := time.Now()
		b.say("%s: %s", f.name, f.about)
		if err := f.measure(ctx, b, r); err != nil {
			return rep, fmt.Errorf("measure %s: %w", f.name, err)
		}
		r.Seconds = time.Since(began).Seconds()
	}
	return rep, nil
}

func (b *bench) say(format string, a ...any) { fmt.Fprintf(b.progress, format+"\n", a...) }

// number is another one each time.
func (b *bench) number() int {
	b.runs++
	return b.runs
}

// compare measures rates and their limit in turns: limit, rates, limit again. The limit's two runs of a round are its A/A
// pair.
func (b *bench) compare(ctx context.Context, r *Result, limit func(context.Context) (float64, error), rates ...rate) error {
	r.measure("bare", "events/s") // they come first in the table
	for _, k := range rates {
		r.measure(k.name, "events/s")
	}
	for _, k := range rates {
		r.measure(k.name+" / bare", "ratio")
	}
	r.measure(noise, "ratio")
	for range b.sizes.rounds {
		before, err := limit(ctx)
		if err != nil {
			return err
		}
		got := make([]float64, len(rates))
		for i, k := range rates {
			if got[i], err = k.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
		after, err := limit(ctx)
		if err != nil {
			return err
		}
		r.add("bare", "events/s", before, after)
		r.add(noise, "ratio", after/before)
		b.say("  bare %.0f and %.0f", before, after)
		for i, k := range rates {
			r.add(k.name, "events/s", got[i])
			r.add(k.name+" / bare", "ratio", 2*got[i]/(before+after))
			b.say("  %s %.0f", k.name, got[i])
		}
	}
	for _, k := range rates {
		// Whatever else the machine does makes a run slower, never faster: where noise is large the best of each side are
		// more alike than their medians.
		r.add(k.name+" / bare, best of each", "ratio", r.measure(k.name, "").Max/r.measure("bare", "").Max)
		if k.goal > 0 {
			r.atLeast(k.name+" / bare", k.goal)
		}
	}
	return nil
}

// noise is the A/A pair.
const noise = "noise: bare / bare"

// rate is one side of a comparison.
type rate struct {
	name string
	goal float64 // of its ratio to the limit; 0: none
	run  func(context.Context) (float64, error)
}

// per is a rate: n in the time between two moments.
func per(n int, from, to time.Time) float64 { return float64(n) / to.Sub(from).Seconds() }

// warm is how many of n are warm-up.
func warm(n int) int { return n / 10 }

// until polls what other processes do.
func until(ctx context.Context, what string, every time.Duration, ok func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		done, err := ok(ctx)
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

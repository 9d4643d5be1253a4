package conformance

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// What the author of the plugin lets the suite do: each a function, or else a command.

// breakTarget takes the target away.
func (r *attempt) breakTarget(ctx context.Context) error {
	r.try("took the target away (`break`)")
	return r.hook(ctx, r.spec.OnBreak, r.spec.Break)
}

// mendTarget brings it back.
func (r *attempt) mendTarget(ctx context.Context) error {
	r.try("brought the target back (`mend`)")
	return r.hook(ctx, r.spec.OnMend, r.spec.Mend)
}

func (r *attempt) canBreak() bool { return r.spec.OnBreak != nil || len(r.spec.Break) > 0 }

func (s *suite) canObserve() bool { return s.spec.OnObserve != nil || len(s.spec.Observe) > 0 }

func (r *attempt) canPut() bool { return r.spec.OnPut != nil || len(r.spec.Put) > 0 }

func (r *attempt) canPutRejected() bool {
	return r.spec.OnPutRejected != nil || len(r.spec.PutRejected) > 0
}

// put puts events into the source. A source that makes its own needs no help.
func (r *attempt) put(ctx context.Context, events int) error {
	if r.noEvents == nil && r.canPut() {
		r.try("put %d events over %d keys", events, someKeys)
	}
	return r.feed(ctx, events, someKeys)
}

// feed does the same and says nothing of it.
func (r *attempt) feed(ctx context.Context, events, keys int) error {
	switch {
	case r.noEvents != nil:
		return r.noEvents
	case !r.canPut():
		return nil
	}
	if r.spec.OnPut != nil {
		return r.spec.OnPut(ctx, events, keys)
	}
	return r.commandOf(ctx, r.spec.Put, events, keys)
}

// putKeyless puts events without a key.
func (r *attempt) putKeyless(ctx context.Context, events int) error {
	switch {
	case r.spec.OnPutKeyless != nil:
		return r.spec.OnPutKeyless(ctx, events)
	case len(r.spec.PutKeyless) > 0:
		return r.commandOf(ctx, r.spec.PutKeyless, events, 0)
	}
	return needs("put_keyless")
}

// putRejected puts rows that can't be made into events.
func (r *attempt) putRejected(ctx context.Context, events, keys int) error {
	switch {
	case r.spec.OnPutRejected != nil:
		return r.spec.OnPutRejected(ctx, events, keys)
	case len(r.spec.PutRejected) > 0:
		return r.commandOf(ctx, r.spec.PutRejected, events, keys)
	}
	return needs("put_rejected")
}

// putOther has the log move on without an event.
func (r *attempt) putOther(ctx context.Context) error {
	if r.spec.OnPutOther == nil && len(r.spec.PutOther) == 0 {
		return needs("put_other")
	}
	return r.hook(ctx, r.spec.OnPutOther, r.spec.PutOther)
}

// hook calls the author's function, or runs the command in its place.
func (r *attempt) hook(ctx context.Context, f func(context.Context) error, argv []string) error {
	if f != nil {
		return f(ctx)
	}
	_, err := r.command(ctx, argv)
	return err
}

// commandOf runs a command that puts events, {events} and {keys} replaced.
func (r *attempt) commandOf(ctx context.Context, argv []string, events, keys int) error {
	fill := strings.NewReplacer("{events}", strconv.Itoa(events), "{keys}", strconv.Itoa(keys))
	filled := make([]string, len(argv))
	for i, a := range argv {
		filled[i] = fill.Replace(a)
	}
	_, err := r.command(ctx, filled)
	return err
}

// command runs one of the author's commands and returns what it prints to stdout.
func (r *attempt) command(ctx context.Context, argv []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // from the author of the plugin under test
	cmd.Dir = r.spec.dir
	cmd.WaitDelay = time.Second
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("run %q of conformance.yaml: %w\n%s", strings.Join(argv, " "), err, strings.TrimSpace(words.String()+out.String()))
	}
	return out.Bytes(), nil
}

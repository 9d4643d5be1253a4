package conformance

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// How long a plugin may outlive its host.
const (
	eofGrace  = 2 * time.Second  // from the end of stdin
	lostGrace = 5 * time.Second  // from the loss of the connection
	noHost    = 15 * time.Second // from the start, when nobody connects
	slack     = 3 * time.Second  // for a busy machine
	lookTwice = 500 * time.Millisecond
)

// everyPlugin are the checks of sources and sinks alike, in order: the first ones find out what the others need.
var everyPlugin = []check{
	{
		name: "handshake", anchor: startRule.anchor, run: handshake, rule: startRule.text,
	},
	{name: "describe", anchor: "describe", finds: true, run: describe, rule: "Describe answers without a configuration, with name, version, kind and summary."},
	{name: "describe-command", anchor: "describe", run: describeCommand, rule: "`<exe> describe` prints the same answer as JSON, without a handshake."},
	{name: "config-schema", anchor: "configuration", finds: true, run: configSchema, rule: "config_schema is a JSON Schema, and the test's config is valid by it."},
	observes,
	{
		name: "unknown-key", anchor: "configuration", config: true, run: unknownKey,
		rule: "A configuration with an unknown key ends the stream with a Fault of class CONFIG that names the key.",
	},
	{name: "opened-first", anchor: "open", config: true, run: openedFirst, rule: "Open is answered with Opened, once, before anything but Status."},
	{name: "quiet-stdout", anchor: "handshake", config: true, run: quietStdout, rule: "Nothing but the handshake line goes to stdout."},
	{
		name: "bare-environment", anchor: "environment", config: true, run: bareEnvironment,
		rule: "The plugin works with nothing in its environment but what the handshake needs.",
	},
	{
		name: "signals", anchor: "ending", config: true, run: signals,
		rule: "SIGTERM and SIGINT end neither the plugin nor anything that it is doing: the host ends it, after its drain.",
	},
	{name: "stdin-eof", anchor: "ending", config: true, run: stdinEOF, rule: "The plugin exits within 2 s when its stdin ends, also with a stream open."},
	{name: "connection-lost", anchor: "ending", config: true, run: connectionLost, rule: "The plugin exits within 5 s when the host's connection is lost."},
	{name: "second-stream", anchor: "open", config: true, run: secondStream, rule: "After Stopped another stream can be opened on the same process."},
}

// nobodyConnects takes as long as all the others together, and runs beside them.
var nobodyConnects = check{
	name: "nobody-connects", anchor: "ending", least: 2 * noHost, rule: "The plugin exits by itself when no host connects within 15 s.",
	run: func(ctx context.Context, r *attempt) error {
		r.try("started the plugin and did not connect")
		start := time.Now()
		p, err := r.start(ctx, r.usualEnv())
		if err != nil {
			return err
		}
		if err := p.exits(ctx, noHost+slack); err != nil {
			return err
		}
		r.saw("it exited after %v", time.Since(start).Round(100*time.Millisecond))
		return nil
	},
}

func handshake(ctx context.Context, r *attempt) error {
	r.try("started the plugin, connected, asked for its health")
	start := time.Now()
	if _, err := r.connected(ctx); err != nil {
		return err
	}
	r.saw("SERVING after %v", time.Since(start).Round(time.Millisecond))
	return nil
}

// opened starts the plugin and opens a stream.
func (r *attempt) opened(ctx context.Context) (*process, opened, error) {
	p, err := r.connected(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := r.open(ctx, p)
	return p, s, err
}

// opened is an open stream of either kind.
type opened interface {
	stop(ctx context.Context) error
	// works demands that the stream is still of use.
	works(ctx context.Context, r *attempt) error
}

func (r *attempt) open(ctx context.Context, p *process) (opened, error) {
	if r.described.GetKind() == pluginv1.PluginKind_PLUGIN_KIND_SOURCE {
		return r.openSource(ctx, p, sourceOptions{})
	}
	return r.openSink(ctx, p)
}

func openedFirst(ctx context.Context, r *attempt) error {
	r.try("opened a stream and stopped it")
	_, s, err := r.opened(ctx)
	if err != nil {
		return err
	}
	if err := s.stop(ctx); err != nil {
		return err
	}
	r.saw("Opened, Stopped, the end of the stream")
	return nil
}

func quietStdout(ctx context.Context, r *attempt) error {
	p, s, err := r.opened(ctx)
	if err != nil {
		return err
	}
	r.try("used a stream, stopped it, closed stdin")
	if err := s.works(ctx, r); err != nil {
		return err
	}
	if err := s.stop(ctx); err != nil {
		return err
	}
	if err := p.stdin.Close(); err != nil {
		return fmt.Errorf("close stdin: %w", err)
	}
	_ = p.exits(ctx, eofGrace+slack) // its own check
	if n := p.junk.size(); n > 0 {
		return fmt.Errorf("%d bytes came behind the handshake, the last of them: %q", n, p.junk.lines())
	}
	r.saw("one line on stdout")
	return nil
}

func bareEnvironment(ctx context.Context, r *attempt) error {
	r.try("started the plugin with no PATH, HOME, LANG, …, opened a stream and stopped it")
	p, err := r.start(ctx, r.authorEnv())
	if err != nil {
		return errors.New(err.Error()) // what is broken is not the handshake
	}
	if err := p.connect(ctx, r.spec.startTimeout()); err != nil {
		return err
	}
	s, err := r.open(ctx, p)
	if err != nil {
		return err
	}
	if err := s.stop(ctx); err != nil {
		return err
	}
	r.saw("it works")
	return nil
}

func signals(ctx context.Context, r *attempt) error {
	p, s, err := r.opened(ctx)
	if err != nil {
		return err
	}
	r.try("sent SIGTERM and SIGINT to the process group while events were on their way")
	for _, sig := range []struct {
		syscall.Signal
		name string
	}{{syscall.SIGTERM, "SIGTERM"}, {syscall.SIGINT, "SIGINT"}} {
		if k, ok := s.(*sinkStream); ok { // a relay is never asked to stop when it has nothing to do
			if err := k.batches(ctx, r, 1, 100, k.keysFor(r, 20, 100)); err != nil {
				return err
			}
		}
		if err := p.signal(sig.Signal); err != nil {
			return err
		}
		if err := p.stays(ctx, lookTwice); err != nil {
			return fmt.Errorf("after %s: %w", sig.name, err)
		}
		if err := s.works(ctx, r); err != nil {
			return fmt.Errorf("after %s: %w", sig.name, err)
		}
	}
	if k, ok := s.(*sinkStream); ok {
		if err := k.allAcked(ctx); err != nil {
			return fmt.Errorf("after the signals: %w", err)
		}
	}
	if err := s.stop(ctx); err != nil {
		return err
	}
	r.saw("it went on")
	return nil
}

func stdinEOF(ctx context.Context, r *attempt) error {
	p, _, err := r.opened(ctx)
	if err != nil {
		return err
	}
	r.try("opened a stream, closed stdin")
	start := time.Now()
	if err := p.stdin.Close(); err != nil {
		return fmt.Errorf("close stdin: %w", err)
	}
	if err := p.exits(ctx, eofGrace); err != nil {
		return err
	}
	r.saw("it exited after %v", time.Since(start).Round(time.Millisecond))
	return nil
}

func connectionLost(ctx context.Context, r *attempt) error {
	p, _, err := r.opened(ctx)
	if err != nil {
		return err
	}
	r.try("opened a stream, closed the connection, left stdin open")
	start := time.Now()
	if err := p.conn.Close(); err != nil {
		return fmt.Errorf("close the connection: %w", err)
	}
	if err := p.exits(ctx, lostGrace); err != nil {
		return err
	}
	r.saw("it exited after %v", time.Since(start).Round(time.Millisecond))
	return nil
}

func secondStream(ctx context.Context, r *attempt) error {
	p, s, err := r.opened(ctx)
	if err != nil {
		return err
	}
	r.try("opened three streams one after the other on one process, used and stopped each")
	for range 2 {
		if err := s.works(ctx, r); err != nil {
			return err
		}
		if err := s.stop(ctx); err != nil {
			return err
		}
		if s, err = r.open(ctx, p); err != nil {
			return fmt.Errorf("open another stream: %w", err)
		}
	}
	if err := p.healthy(ctx); err != nil {
		return err
	}
	r.saw("all worked, and the process is healthy")
	return s.stop(ctx)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/relevo-io/relevo/host/pipeline"
)

// pipelineName is that of every pipeline here.
const pipelineName = "bench"

// conf is JSON, which is YAML.
type conf map[string]any

// relay is one `relevo run`, with a state file of its own.
type relay struct {
	cmd   *exec.Cmd
	began time.Time // just before exec
	log   string    // path
	addr  string
	pids  relayPIDs
	ended chan struct{}
}

type relayPIDs struct{ host, source, sink int }

func (p relayPIDs) all() []int { return []int{p.host, p.source, p.sink} }

// startRelay starts a pipeline from the outbox to a sink, everything else as it comes, and does not wait for anything.
// source is the source's configuration beside dsn.
func (b *bench) startRelay(source, sink conf) (*relay, error) {
	n := strconv.Itoa(b.number())
	file := filepath.Join(b.dir, "relay"+n+".yaml")
	text, err := json.MarshalIndent(conf{
		"version": 1, "name": pipelineName,
		"source": conf{"plugin": "postgres-poll", "config": b.withDSN(source)},
		"sinks":  []conf{sink},
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	r := &relay{log: filepath.Join(b.dir, "relay"+n+".log"), ended: make(chan struct{})}
	log, err := os.Create(r.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	r.cmd = exec.Command(filepath.Join(b.bin, "relevo"), "run", "--listen", "127.0.0.1:0", "--log-format", "json",
		"--state", filepath.Join(b.dir, "relay"+n+".db"), file)
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.began = time.Now()
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start relevo: %w", err)
	}
	go func() { // stop and every wait for it end with ended
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	return r, nil
}

// withDSN is a source's configuration with the run's own server.
func (b *bench) withDSN(source conf) conf {
	c := maps.Clone(source)
	c["dsn"] = b.pg.DSN()
	return c
}

// natsSink publishes to the stream of startStream.
func natsSink(k *broker) conf {
	return conf{
		"name": "nats", "plugin": "nats", "to": "orders.{type}",
		"config": conf{"servers": []string{k.url}, "stream": streamName},
	}
}

// nullSink takes everything and keeps the order by itself.
func nullSink() conf {
	return conf{"name": "null", "plugin": "null", "to": "null", "config": conf{"keeps_order": true}}
}

// running waits until both plugins are at work, and learns the processes.
func (r *relay) running(ctx context.Context) error {
	_, err := r.until(ctx, "the pipeline runs", func(s pipeline.Status) bool {
		return s.State == pipeline.Running && s.Source.PID != 0 && s.Sinks[0].PID != 0
	})
	return err
}

// until waits for a state of the pipeline.
func (r *relay) until(ctx context.Context, what string, ok func(pipeline.Status) bool) (s pipeline.Status, err error) {
	err = until(ctx, what, 5*time.Millisecond, func(ctx context.Context) (bool, error) {
		select {
		case <-r.ended:
			return false, errEnded
		default:
		}
		var there bool
		if s, there = r.status(ctx); !there {
			return false, nil
		}
		r.pids = relayPIDs{host: r.cmd.Process.Pid, source: s.Source.PID, sink: s.Sinks[0].PID}
		return ok(s), nil
	})
	if err != nil {
		err = fmt.Errorf("%w; the pipeline is %s %s\n%s", err, s.State, s.Reason, r.logs())
	}
	return s, err
}

// status asks the API; false: it does not answer yet.
func (r *relay) status(ctx context.Context) (s pipeline.Status, ok bool) {
	if r.addr == "" && !r.listens() {
		return s, false
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+"/api/v1/pipelines/"+pipelineName, nil)
	if err != nil {
		return s, false
	}
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		return s, false
	}
	defer res.Body.Close()
	return s, res.StatusCode == http.StatusOK && json.NewDecoder(res.Body).Decode(&s) == nil && len(s.Sinks) == 1
}

// listens looks for the address in the log.
func (r *relay) listens() bool {
	for line := range strings.Lines(r.logs()) {
		var l struct{ Msg, Listen string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "relevo starts" {
			r.addr = l.Listen
		}
	}
	return r.addr != ""
}

func (r *relay) logs() string {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// stop drains it.
func (r *relay) stop() error {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-r.ended:
	case <-t.C:
		r.kill()
		return errors.New("relevo does not stop")
	}
	if !r.cmd.ProcessState.Success() {
		return fmt.Errorf("relevo ended with %s:\n%s", r.cmd.ProcessState, r.logs())
	}
	return nil
}

// kill ends it, unless it has ended, and waits for it. Its plugins follow.
func (r *relay) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.ended
}

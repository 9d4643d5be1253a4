package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
	"github.com/relevo-io/relevo/internal/langtest"
	"github.com/relevo-io/relevo/internal/natstest"
)

// The sinks of examples/, written in other languages against the protocol alone. What they have published is looked at
// where it went: an HTTP server, a file.

const examples = "../../examples"

// strangers are the examples: install puts one together in a directory of its own, and use makes it the sink of a system
// and returns how to see what has been published.
var strangers = map[string]struct {
	install func(t *testing.T) (dir string)
	use     func(s *system) (published func() []delivery)
}{
	"python": {installPython, func(s *system) func() []delivery { return s.postTo(newReceiver(s.t)) }},
	"node":   {installNode, (*system).appendToFile},
}

// installPython does what `make` does there, with an interpreter that has the packages.
func installPython(t *testing.T) string {
	t.Helper()
	python := langtest.Python(t)
	dir := copyExample(t, "sink-python")
	bin := filepath.Join(dir, "venv", "bin")
	require.NoError(t, os.MkdirAll(bin, 0o700))
	wrapper := fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\"\n", python)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "python"), []byte(wrapper), 0o700)) //nolint:gosec // to be run
	gen := filepath.Join(dir, "gen")
	require.NoError(t, os.Mkdir(gen, 0o700))
	protos, err := filepath.Glob("../../proto/relevo/plugin/v1/*.proto")
	require.NoError(t, err)
	args := append([]string{"-m", "grpc_tools.protoc", "-I", "../../proto", "--python_out=" + gen, "--grpc_python_out=" + gen}, protos...)
	out, err := exec.Command(python, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// installNode does what npm does there.
func installNode(t *testing.T) string {
	t.Helper()
	modules := langtest.NodeModules(t, filepath.Join(examples, "sink-node"))
	dir := copyExample(t, "sink-node")
	proto, err := filepath.Abs("../../proto")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	require.NoError(t, os.Symlink(proto, filepath.Join(dir, "proto")))
	return dir
}

// copyExample copies the files of an example, and nothing that was built there.
func copyExample(t *testing.T, name string) string {
	t.Helper()
	dir := natstest.Dir(t)
	files, err := os.ReadDir(filepath.Join(examples, name))
	require.NoError(t, err)
	for _, f := range files {
		if !f.Type().IsRegular() {
			continue
		}
		info, err := f.Info()
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(examples, name, f.Name()))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name()), text, info.Mode().Perm()))
	}
	return dir
}

// receiver is an HTTP server that remembers what it has confirmed.
type receiver struct {
	url string

	mu     sync.Mutex
	answer func(delivery) (status int) // nil: 204
	got    []delivery
	faults []string
}

const receiverToken = "Zk3-only-the-receiver-knows"

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	r.url = srv.URL + "/events?from=relevo"
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	payload, err := io.ReadAll(q.Body)
	if err != nil {
		return // the sink was killed
	}
	d, err := deliveryOf(q.Header.Get("Idempotency-Key"), payload)
	r.mu.Lock()
	defer r.mu.Unlock()
	subject := strconv.FormatInt(d.key, 10)
	switch {
	case err != nil:
		r.faults = append(r.faults, err.Error())
	case q.Method != http.MethodPost || q.URL.RequestURI() != "/events?from=relevo" ||
		q.Header.Get("Authorization") != "Bearer "+receiverToken || q.Header.Get("Content-Type") != "application/json" ||
		q.Header.Get("ce-type") != "moved" || d.key != 0 && q.Header.Get("ce-subject") != subject:
		r.faults = append(r.faults, fmt.Sprintf("%s %s %v", q.Method, q.URL, q.Header))
	}
	status := http.StatusNoContent
	if r.answer != nil {
		status = r.answer(d)
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if status/100 == 2 {
		r.got = append(r.got, d)
	}
	w.WriteHeader(status)
}

// answers sets how it answers from now on.
func (r *receiver) answers(f func(delivery) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

// postTo makes sink-http the sink of the system.
func (s *system) postTo(r *receiver) (published func() []delivery) {
	s.pipe["sinks"] = []conf{{"plugin": "http", "config": conf{"url": r.url, "token": receiverToken}}}
	return func() []delivery {
		r.mu.Lock()
		defer r.mu.Unlock()
		require.Empty(s.t, r.faults)
		return slices.Clone(r.got)
	}
}

// appendToFile makes sink-jsonl the sink of the system. Its file begins with what a crash may leave behind.
func (s *system) appendToFile() (published func() []delivery) {
	path := filepath.Join(s.dir, "events.jsonl")
	require.NoError(s.t, os.WriteFile(path, []byte(`{"id":"torn","payload":{"k`), 0o600))
	s.pipe["sinks"] = []conf{{"plugin": "jsonl", "config": conf{"path": path, "rotate_mib": 1}}}
	return func() (got []delivery) {
		files, err := filepath.Glob(path + ".*")
		require.NoError(s.t, err)
		s.t.Logf("the file was rotated %d times", len(files))
		for _, file := range append(slices.Sorted(slices.Values(files)), path) {
			text, err := os.ReadFile(file)
			require.NoError(s.t, err)
			require.True(s.t, bytes.HasSuffix(text, []byte("\n")), "%s ends in the middle of a line", file)
			for line := range bytes.Lines(text) {
				var e struct {
					ID      string
					Payload json.RawMessage
				}
				require.NoError(s.t, json.Unmarshal(line, &e), "%s", line)
				d, err := deliveryOf(e.ID, e.Payload)
				require.NoError(s.t, err, "%s", line)
				got = append(got, d)
			}
		}
		return got
	}
}

// awaitPublished waits until n more events have left the outbox.
func (s *system) awaitPublished(n int) {
	s.t.Helper()
	gone := func() (n int) {
		s.query(func(ctx context.Context, c *pgx.Conn) error {
			return c.QueryRow(ctx, "select (select count(*) from journal) - (select count(*) from outbox)").Scan(&n)
		})
		return n
	}
	target := gone() + n
	eventually(s.t, fmt.Sprintf("%d more events are published", n), patience, func() bool { return gone() >= target })
}

// The host is killed: a plugin in any language follows it. The plugin is killed: the host starts another one. Whoever it is,
// and whenever: nothing is lost, and the first deliveries of each key are in its order.
func TestStrangersKilled(t *testing.T) {
	t.Parallel()
	for name, stranger := range strangers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := stranger.install(t)
			takePlace(t)
			s := newSystem(t, parts{})
			published := stranger.use(s)
			here := launch{env: []string{"RELEVO_PLUGIN_PATH=" + dir}}
			l := s.load(loadConfig{})
			wait := moments(t)
			const hosts, sinks = 2, 2 // sinks for each host
			for range hosts {
				h := s.start(here)
				s.killSource(h)
				for i := range sinks {
					before := h.running()
					s.awaitPublished(100)
					wait()
					require.NoError(t, syscall.Kill(before.Sinks[0].PID, syscall.SIGKILL))
					after := h.until("the sink runs again", func(st pipeline.Status) bool {
						n := st.Sinks[0]
						return n.Restarts == i+1 && n.PID != 0 && n.PID != before.Sinks[0].PID && st.State == pipeline.Running
					})
					require.Equal(t, before.Source.PID, after.Source.PID, "the source's process")
				}
				s.awaitPublished(100)
				plugins := h.running()
				wait()
				h.kill()
				eventually(t, "no plugin outlives its host", 2*time.Second, func() bool {
					return gone(plugins.Source.PID) && gone(plugins.Sinks[0].PID)
				})
			}
			h := s.start(here)
			s.awaitPublished(100)
			l.stop()
			s.awaitEmpty()
			h.stop()
			require.NotContains(t, h.logs(), receiverToken)
			require.LessOrEqual(t, s.judge(published()).repeats, hosts*(1+sinks+1)*window)
		})
	}
}

// killSource kills the source. The host cuts the sink's stream and opens another: that is no reason for the sink to exit, now
// or a few seconds later.
func (s *system) killSource(h *host) {
	s.t.Helper()
	before := h.running()
	require.NoError(s.t, syscall.Kill(before.Source.PID, syscall.SIGKILL))
	h.until("the source runs again", func(st pipeline.Status) bool {
		return st.Source.PID != 0 && st.Source.PID != before.Source.PID && st.State == pipeline.Running
	})
	s.awaitPublished(3000)
	require.Equal(s.t, before.Sinks[0].PID, h.running().Sinks[0].PID, "the sink's process")
}

// A receiver that is away, or asks for a pause, gets everything later. One event that it refuses for good holds its key and
// nothing else.
func TestHTTPReceiverRefuses(t *testing.T) {
	t.Parallel()
	dir := installPython(t)
	takePlace(t)
	s := newSystem(t, parts{})
	r := newReceiver(t)
	published := s.postTo(r)
	l := s.load(loadConfig{small: true})
	h := s.start(launch{env: []string{"RELEVO_PLUGIN_PATH=" + dir}})
	h.running()
	s.awaitPublished(100)

	var refused atomic.Int64
	r.answers(func(delivery) int {
		return []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusBadGateway}[refused.Add(1)%3]
	})
	eventually(t, "the sink has heard every refusal", patience, func() bool { return refused.Load() >= 5 })
	before := len(published())
	l.awaitCommitted(100)
	require.Len(t, published(), before, "it refuses everything")

	const key, behind = 5000, 100
	poison := s.emit(key)
	s.emitMany(key, behind)
	r.answers(func(d delivery) int {
		if d.id == poison {
			return http.StatusUnprocessableEntity
		}
		return http.StatusNoContent
	})
	st := h.until("the key is held, and no other", func(st pipeline.Status) bool { return st.HeldKeys == 1 && st.State == pipeline.Running })
	require.Equal(t, poison, st.Held[0].EventID)
	require.Equal(t, "refused", st.Held[0].Code)
	require.Equal(t, "permanent", st.Held[0].Class)
	require.Contains(t, st.Held[0].Message, "422")
	s.othersFlow(l, key)
	require.False(t, slices.ContainsFunc(published(), func(d delivery) bool { return d.key == key }), "something of the key came through")

	r.answers(nil)
	h.stop() // or it would try the key again only after a minute
	h = s.start(launch{env: []string{"RELEVO_PLUGIN_PATH=" + dir}})
	l.stop()
	s.awaitEmpty()
	h.stop()
	require.NotContains(t, h.logs(), receiverToken)
	require.Zero(t, s.judge(published()).repeats)
}

// The examples pass the suite as their READMEs say.
func TestStrangersConform(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("publishes 60,000 events")
	}
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		dir := installPython(t)
		takePlace(t)
		port := startReceiver(t, dir)
		edit(t, filepath.Join(dir, "conformance.yaml"), map[string]string{
			":8099": ":" + port, "down]": fmt.Sprintf("down, %q]", port), "up]": fmt.Sprintf("up, %q]", port), "ids]": fmt.Sprintf("ids, %q]", port),
		})
		conforms(t, dir, "sink-http", "order-per-key")
	})
	t.Run("node", func(t *testing.T) {
		t.Parallel()
		dir := installNode(t)
		takePlace(t)
		require.NoError(t, os.Mkdir(filepath.Join(dir, "out"), 0o700))
		conforms(t, dir, "sink-jsonl", "refused-event", "refused-without-key", "refused-at-target")
	})
}

// conforms runs `relevo plugins test` in the directory of the plugin; every check passes but those that are not for it. The
// pipeline in its README is valid.
func conforms(t *testing.T, dir, exe string, notRun ...string) {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	_, pipe, _ := strings.Cut(string(readme), "```yaml\n")
	pipe, _, ok := strings.Cut(pipe, "```\n")
	require.True(t, ok, "README.md has a pipeline")
	file := filepath.Join(natstest.Dir(t), "pipeline.yaml")
	require.NoError(t, os.WriteFile(file, []byte(pipe), 0o600))
	validate := exec.Command(executable(t, "relevo"), "validate", "--allow-missing-env", "--plugin-dir", dir, file)
	said, err := validate.CombinedOutput()
	require.NoError(t, err, "%s", said)
	cmd := exec.Command(executable(t, "relevo"), "plugins", "test", "--json", "--timeout", "3m", "./"+exe)
	cmd.Dir = dir
	out, err := cmd.Output()
	outcomes := map[string]string{}
	for line := range bytes.Lines(out) {
		var r struct{ Name, Outcome string }
		require.NoError(t, json.Unmarshal(line, &r), "%s", line)
		outcomes[r.Name] = r.Outcome
		if r.Outcome == "fail" {
			t.Errorf("%s", line)
		}
	}
	require.NoError(t, err)
	require.Greater(t, len(outcomes), 20)
	maps.DeleteFunc(outcomes, func(_, outcome string) bool { return outcome == "pass" })
	require.ElementsMatch(t, notRun, slices.Collect(maps.Keys(outcomes)))
}

// startReceiver starts the receiver of the example, and returns its port.
func startReceiver(t *testing.T, dir string) (port string) {
	t.Helper()
	cmd := exec.Command("python3", "receiver.py", "0")
	cmd.Dir = dir
	cmd.SysProcAttr = ownGroup()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	var rest sync.WaitGroup
	rest.Go(func() { _, _ = io.Copy(io.Discard, lines) })
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		rest.Wait()
		_ = cmd.Wait()
	})
	_, port, ok := strings.Cut(strings.TrimSuffix(strings.TrimSpace(line), "/"), "127.0.0.1:")
	require.True(t, ok, "%q", line)
	return port
}

// edit replaces in a file what has to be in it.
func edit(t *testing.T, path string, replace map[string]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for old, by := range replace {
		require.Contains(t, string(text), old)
		text = []byte(strings.ReplaceAll(string(text), old, by))
	}
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

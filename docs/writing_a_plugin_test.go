// Package docs holds what the pages say against what is there.
package docs

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/conformance"
	"github.com/relevo-io/relevo/internal/langtest"
	"github.com/relevo-io/relevo/sdk/sdktest"
)

const page = "writing-a-plugin.md"

var fenced = regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```\\w*\n(.*?\n)```\n")

// files are those that the page shows, by name.
func files(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	all := map[string]string{}
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		require.NotContains(t, all, m[1])
		all[m[1]] = m[2]
	}
	return all
}

// write puts files of the page into a directory.
func write(t *testing.T, dir string, names ...string) {
	t.Helper()
	all := files(t)
	for _, name := range names {
		require.Contains(t, all, name)
		mode := os.FileMode(0o600)
		if strings.HasPrefix(all[name], "#!") {
			mode = 0o700
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), []byte(all[name]), mode))
	}
}

// run runs a command in a directory, with more in its environment.
func run(t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
}

// requireConforms tests a sink of the page as its reader would, with the page's conformance.yaml; only the target is in a
// directory of the test. It returns the names of the checks.
func requireConforms(t *testing.T, exe string) (checks []string) {
	t.Helper()
	dir := t.TempDir()
	lines := filepath.Join(dir, "lines")
	require.NoError(t, os.Mkdir(lines, 0o700))
	events := filepath.Join(lines, "events.jsonl")
	require.NoError(t, os.WriteFile(events, nil, 0o600))

	yaml := files(t)["conformance.yaml"]
	require.Contains(t, yaml, "/tmp/lines/events.jsonl")
	file := filepath.Join(dir, "conformance.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(yaml, "/tmp/lines", lines)), 0o600))
	spec, err := conformance.Load(file)
	require.NoError(t, err)
	if _, err := exec.LookPath(spec.Observe[0]); err != nil { // jq
		spec.Observe = []string{os.Args[0], observeArg, events}
	}
	// A check publishes 20,000 events, each with its own fsync: on a busy machine that takes more than a minute.
	target := conformance.Target{Path: exe, Spec: spec, CheckTimeout: 5 * time.Minute}
	require.NoError(t, conformance.Run(t.Context(), target, func(r conformance.Result) {
		checks = append(checks, r.Name)
		if r.Outcome == conformance.Fail {
			t.Errorf("%s:\n%s", r.Name, r.Text())
		}
		if r.Outcome == conformance.NotRun && len(r.Needs) > 0 {
			t.Errorf("%s needs %v in the page's conformance.yaml", r.Name, r.Needs)
		}
	}))
	return checks
}

// observeArg has this test binary do what the page has jq do, on a machine without it.
const observeArg = "observe"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == observeArg {
		observe(os.Args[2])
		return
	}
	os.Exit(m.Run())
}

func observe(file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var line struct{ ID string }
		if err := d.Decode(&line); err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString(line.ID + "\n")
	}
}

// The sink in Go, and every check that the table of rules names.
func TestGoSink(t *testing.T) {
	t.Parallel()
	exe := goSink(t)
	checks := requireConforms(t, exe)

	text, err := os.ReadFile(page)
	require.NoError(t, err)
	_, rules, _ := strings.Cut(string(text), "\n## The rules\n")
	rules, _, _ = strings.Cut(rules, "\n## ")
	named := 0
	for row := range strings.Lines(rules) {
		cells := strings.Split(row, " | ")
		if len(cells) < 4 {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(cells[len(cells)-1], -1) {
			named++
			require.True(t, slices.Contains(checks, m[1]), "the suite has no check %q", m[1])
		}
	}
	require.Greater(t, named, 15)
}

// goSink builds the page's program, and its test, in a module of its own. What that needs is what this module needs:
// nothing is downloaded.
func goSink(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "go/main.go", "main_test.go")
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(mod), "module github.com/relevo-io/relevo\n")
	require.True(t, ok)
	text := "module example.com/sink-lines\n" + rest +
		"require github.com/relevo-io/relevo v0.0.0\nreplace github.com/relevo-io/relevo => " + root + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o600))
	sum, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o600))
	offline := []string{"GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off"}
	run(t, dir, offline, "go", "build")
	run(t, dir, offline, "go", "vet")
	return filepath.Join(dir, "sink-lines")
}

func TestPythonSink(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("half a minute")
	}
	python := langtest.Python(t)
	dir := t.TempDir()
	write(t, dir, "py/sink_lines.py", "py/sink-lines")
	protos, err := filepath.Glob("../proto/relevo/plugin/v1/*.proto")
	require.NoError(t, err)
	run(t, ".", nil, python, slices.Concat([]string{"-m", "grpc_tools.protoc", "-I", "../proto", "--python_out=" + dir, "--grpc_python_out=" + dir}, protos)...)
	bin := filepath.Join(dir, ".venv", "bin")
	require.NoError(t, os.MkdirAll(bin, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "python"), []byte("#!/bin/sh\nexec "+python+" \"$@\"\n"), 0o700))
	requireConforms(t, filepath.Join(dir, "sink-lines"))
}

func TestNodeSink(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("half a minute")
	}
	modules := langtest.NodeModules(t, "../examples/sink-node")
	dir := t.TempDir()
	write(t, dir, "node/sink-lines")
	proto, err := filepath.Abs("../proto")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(proto, filepath.Join(dir, "proto")))
	require.NoError(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	requireConforms(t, filepath.Join(dir, "sink-lines"))
}

// The pipelines of the page and of the example are valid.
func TestPipelines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "pipeline.yaml")
	plugins := filepath.Join(dir, "plugins")
	require.NoError(t, os.Mkdir(plugins, 0o700))
	for name, exe := range map[string]string{
		"sink-lines":           goSink(t),
		"sink-webhook":         sdktest.Build(t, "../examples/sink-webhook"),
		"source-postgres-poll": sdktest.Build(t, "../plugins/source-postgres-poll"),
	} {
		require.NoError(t, os.Symlink(exe, filepath.Join(plugins, name)))
	}
	relevo := sdktest.Build(t, "../host/cmd/relevo")
	for _, file := range []string{filepath.Join(dir, "pipeline.yaml"), "../examples/sink-webhook/pipeline.yaml"} {
		run(t, ".", nil, relevo, "validate", "--allow-missing-env", "--plugin-dir", plugins, file)
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)

// Links lead somewhere: to a file, and to a heading of it.
func TestLinks(t *testing.T) {
	t.Parallel()
	for _, from := range []string{page, "../examples/sink-webhook/README.md"} {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to := filepath.Join(filepath.Dir(from), m[1])
			if m[1] == "" {
				to = from
			}
			require.FileExists(t, fileAt(to), "%s: %s", from, m[0])
			if m[2] == "" {
				continue
			}
			there, err := os.ReadFile(to)
			require.NoError(t, err)
			require.Contains(t, anchors(string(there)), m[2], "%s: %s", from, m[0])
		}
	}
}

// fileAt is the path, or for a directory something in it: an empty one is not in the repository.
func fileAt(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		if entries, err := os.ReadDir(path); err == nil && len(entries) > 0 {
			return filepath.Join(path, entries[0].Name())
		}
	}
	return path
}

// anchors are the headings of a page as links name them.
func anchors(text string) (all []string) {
	for row := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(row, "#"), " "); ok && strings.HasPrefix(row, "#") {
			slug := strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-' || r == '_' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9':
					return r
				}
				return -1
			}, strings.ToLower(strings.TrimSpace(title)))
			all = append(all, "#"+slug)
		}
	}
	return all
}

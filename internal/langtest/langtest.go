// Package langtest gives tests the interpreters and packages of the examples in other languages.
package langtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/langtest/langenv"
)

// Python is an interpreter with the packages of examples/sink-python: the one that the environment names, else the
// python3 in the path if it has them. Without either the test is skipped.
func Python(t testing.TB) string {
	t.Helper()
	if p := os.Getenv(langenv.Python); p != "" {
		return p
	}
	p, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("no Python: set %s, as make test does: %v", langenv.Python, err)
	}
	if out, err := exec.Command(p, "-c", "import grpc, grpc_health, grpc_tools, urllib3").CombinedOutput(); err != nil {
		lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
		t.Skipf("no Python with gRPC: set %s, as make test does: %v: %s", langenv.Python, err, lines[len(lines)-1])
	}
	return p
}

// NodeModules is a node_modules with the packages of examples/sink-node, given in the absence of a directory of its own
// by the environment; dir is the example, whose own one is taken if somebody has made it. Without either, or without
// Node, the test is skipped.
func NodeModules(t testing.TB, dir string) string {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skipf("no Node: %v", err)
	}
	if m := os.Getenv(langenv.Node); m != "" {
		return m
	}
	m, err := filepath.Abs(filepath.Join(dir, "node_modules"))
	require.NoError(t, err)
	if _, err := os.Stat(m); err != nil {
		t.Skipf("no packages for Node: set %s, as make test does, or run npm ci there: %v", langenv.Node, err)
	}
	return m
}

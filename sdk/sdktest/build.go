package sdktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// builds are the executables of this test binary, by package and directory of the caller.
var builds = struct {
	mu   sync.Mutex
	exes map[string]func() (string, error)
}{exes: map[string]func() (string, error){}}

// Build builds the plugin in the Go package pkg ("." or an import path) and returns the path of its executable. A
// package is built once per test binary, with the race detector if the test binary has it.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	builds.mu.Lock()
	build, ok := builds.exes[pkg+" in "+dir]
	if !ok {
		n := len(builds.exes)
		build = sync.OnceValues(func() (string, error) { return goBuild(pkg, strconv.Itoa(n)) })
		builds.exes[pkg+" in "+dir] = build
	}
	builds.mu.Unlock()
	exe, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func goBuild(pkg, sub string) (string, error) {
	root, err := buildDir()
	if err != nil {
		return "", fmt.Errorf("make a directory for the plugin: %w", err)
	}
	exe := filepath.Join(root, sub, "plugin")
	args := []string{"build", "-o", exe}
	if raceEnabled {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, pkg)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return exe, nil
}

// buildDir is the directory of this process. A test binary has no moment behind its last test at which it could remove
// it, so each removes those of processes that are gone.
var buildDir = sync.OnceValues(func() (string, error) {
	const prefix = "relevo-sdktest-"
	old, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), prefix))
		if err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = os.RemoveAll(dir)
		}
	}
	dir := filepath.Join(os.TempDir(), prefix+strconv.Itoa(os.Getpid()))
	return dir, os.MkdirAll(dir, 0o700)
})

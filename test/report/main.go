// Report runs go test and judges the run: it prints go test's own line for each package, the output of what failed, and
// every skipped test with its reason. A test that was skipped for a reason that is not in skips.txt counts as failed when
// RELEVO_REQUIRE_SERVICES is set: a run that promised all servers must not be green because they were missing.
//
//	go run ./test/report -race ./...
//
// The exit code is 0 only when every package passed and every skip is a known one.
package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/relevo-io/relevo/internal/pgtest/pgenv"
)

//go:embed skips.txt
var skips string

func main() {
	r := &report{out: os.Stdout, known: parseSkips(skips), strict: os.Getenv(pgenv.Require) != ""}
	if err := test(r, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
	if !r.summary() {
		os.Exit(1)
	}
}

// test runs go test -json and feeds what it prints to r.
func test(r *report, args []string) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	if err := r.read(out); err != nil {
		_, _ = io.Copy(io.Discard, out)
		return errors.Join(fmt.Errorf("read go test's events: %w", err), cmd.Wait())
	}
	err = cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		r.failed = true // also when no event says so
		return nil
	}
	return err
}

// parseSkips reads the reasons for which a test may be skipped: one a line, a part of the test's own words.
func parseSkips(text string) []string {
	var reasons []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			reasons = append(reasons, line)
		}
	}
	return reasons
}

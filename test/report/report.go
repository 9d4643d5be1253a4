package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// event is a line of go test -json, as `go doc test2json` has it.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build events
	Test        string
	Output      string
	FailedBuild string
}

type report struct {
	out    io.Writer
	known  []string
	strict bool

	failed   bool
	packages int
	passed   int
	broken   []string            // tests that failed
	skipped  map[string][]string // reason → tests
	output   map[[2]string][]string
}

func (r *report) read(in io.Reader) error {
	r.skipped = make(map[string][]string)
	r.output = make(map[[2]string][]string)
	for d := json.NewDecoder(in); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r.take(e)
	}
}

func (r *report) take(e event) {
	id := [2]string{e.Package, e.Test}
	switch e.Action {
	case "output":
		if e.Test == "" && packageLine.MatchString(e.Output) {
			fmt.Fprint(r.out, e.Output)
			return
		}
		r.output[id] = append(r.output[id], e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.failed = true
	case "pass":
		if e.Test == "" {
			r.packages++
		} else {
			r.passed++
		}
		delete(r.output, id)
	case "skip":
		if e.Test != "" {
			reason := skipReason(r.output[id])
			r.skipped[reason] = append(r.skipped[reason], e.Package+"."+e.Test)
		}
		delete(r.output, id)
	case "fail":
		r.failed = true
		r.packages += one(e.Test == "")
		if e.Test != "" {
			r.broken = append(r.broken, e.Package+"."+e.Test)
		}
		fmt.Fprint(r.out, strings.Join(r.output[id], ""))
		delete(r.output, id)
		if e.Test == "" {
			r.unfinished(e.Package)
		}
	}
}

// unfinished prints what the tests of a package said that had not ended when it did: one of them has crashed it, or hung.
func (r *report) unfinished(pkg string) {
	for id, lines := range r.output {
		if id[0] == pkg {
			r.broken = append(r.broken, id[0]+"."+id[1]+" (did not end)")
			fmt.Fprint(r.out, strings.Join(lines, ""))
			delete(r.output, id)
		}
	}
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// packageLine is the line with which go test ends a package.
var packageLine = regexp.MustCompile(`^(ok  |FAIL|\?   )\t|^FAIL\n$`)

// skipReason is what the test said, without its place, or an empty string.
func skipReason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		said = append(said, place.ReplaceAllString(line, ""))
	}
	return strings.TrimSpace(strings.Join(said, " "))
}

var place = regexp.MustCompile(`^[\w.-]+\.go:\d+: `)

// summary prints what was skipped and the figures, and says whether the run is good.
func (r *report) summary() bool {
	good := !r.failed
	skips := 0
	for _, reason := range slices.Sorted(maps.Keys(r.skipped)) {
		tests := r.skipped[reason]
		skips += len(tests)
		if !r.strict || r.knows(reason) {
			fmt.Fprintf(r.out, "skipped %d: %s\n", len(tests), reason)
			continue
		}
		good = false
		fmt.Fprintf(r.out, "SKIPPED for a reason that is not in test/report/skips.txt: %s\n", reason)
		for _, t := range tests {
			fmt.Fprintf(r.out, "    %s\n", t)
		}
	}
	for _, t := range r.broken {
		fmt.Fprintf(r.out, "failed: %s\n", t)
	}
	verdict := "PASS"
	if !good {
		verdict = "FAIL"
	}
	fmt.Fprintf(r.out, "%s: %d packages, %d tests passed, %d failed, %d skipped\n", verdict, r.packages, r.passed, len(r.broken), skips)
	return good
}

func (r *report) knows(reason string) bool {
	return slices.ContainsFunc(r.known, func(k string) bool { return strings.Contains(reason, k) })
}

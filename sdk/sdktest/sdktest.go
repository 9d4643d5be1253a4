// Package sdktest is the conformance suite for the tests of a plugin: it drives the built executable as a host would,
// and checks the rules of docs/plugin-protocol.md.
//
//	func TestConformance(t *testing.T) {
//		sdktest.Run(t, sdktest.Build(t, "."), sdktest.Spec{
//			Config:      map[string]any{"url": startBroker(t)},
//			Destination: "orders",
//			Refused:     &sdktest.EventSpec{PayloadBytes: 2 << 20},
//		})
//	}
package sdktest

import (
	"testing"

	"github.com/relevo-io/relevo/internal/conformance"
)

// Spec is what the suite can't know by itself: the same as conformance.yaml.
type Spec = conformance.Spec

// EventSpec says what an event looks like.
type EventSpec = conformance.EventSpec

// Run makes every check that applies to the plugin at path, each as a subtest. Checks for which the Spec lacks something
// are skipped with what it would take. A subtest has run already when it starts, so -run selects what is shown, not what
// is done.
func Run(t *testing.T, path string, s Spec) {
	t.Helper()
	err := conformance.Run(t.Context(), conformance.Target{Path: path, Spec: &s}, func(r conformance.Result) {
		t.Run(r.Name, func(t *testing.T) {
			switch r.Outcome {
			case conformance.Fail:
				t.Errorf("\n%s", r.Text())
			case conformance.NotRun:
				t.Skip(r.Text())
			case conformance.Pass:
				t.Log(r.Text())
			}
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// Command nullsource is a source without a database: it makes numbered events as fast as the window allows, and can be
// told to misbehave. Benchmarks and the host's tests use it.
package main

import "github.com/relevo-io/relevo/sdk"

func main() { sdk.Main(plugin()) }

func plugin() sdk.Plugin {
	return sdk.Source(sdk.Spec[config]{
		Name:         "null",
		Summary:      "Makes numbered events. For tests and benchmarks.",
		Defaults:     defaults,
		HoldsKeys:    true,
		HasPositions: true,
	}, run)
}

// Command nullsource is a source without a database: it makes numbered events as fast as the window allows, and can be
// told to misbehave. Benchmarks and the host's tests use it.
package main

import (
	"context"

	"github.com/relevo-io/relevo/sdk"
)

func main() { sdk.Main(plugin()) }

func plugin() sdk.Plugin {
	acked := &settled{some: map[uint64]bool{}}
	return sdk.Source(sdk.Spec[config]{
		Name:         "null",
		Summary:      "Makes numbered events. For tests and benchmarks.",
		Defaults:     defaults,
		HoldsKeys:    true,
		HasPositions: true,
	}, func(ctx context.Context, o sdk.SourceOpen[config], s *sdk.SourceStream) error {
		return run(ctx, o, s, acked)
	})
}

// Command nullsink is a sink without a broker: it accepts everything at once, and can be told to misbehave. Benchmarks
// and the host's tests use it.
package main

import (
	"context"

	"github.com/relevo-io/relevo/sdk"
)

func main() { sdk.Main(plugin()) }

func plugin() sdk.Plugin {
	refused := map[string]int{}
	return sdk.StreamSink(sdk.Spec[config]{
		Name:            "null",
		Summary:         "Accepts events and forgets them. For tests and benchmarks.",
		MaxMessageBytes: maxMessage,
		KeepsOrder:      true,
		Destination:     &sdk.Destination{Noun: "destination", MaxBytes: 255},
		Check:           check,
	}, func(ctx context.Context, o sdk.SinkOpen[config], s *sdk.SinkStream) error {
		return run(ctx, o, s, refused)
	})
}

// Command sink-webhook posts events to an HTTP endpoint, one request an event. It is the example of a sink that is written
// with the SDK: docs/writing-a-plugin.md starts from nothing, this is where one ends up.
//
// File map: config (what the user writes) · sink (one attempt, one event) · request (event → request, and what can be
// refused beforehand) · errors (what an answer means) · throttle (Retry-After) · doctor (a look without publishing).
package main

import "github.com/relevo-io/relevo/sdk"

func main() { sdk.Main(sdk.Sink(spec(), maxConcurrency, open)) }

func spec() sdk.Spec[Config] {
	return sdk.Spec[Config]{
		Name:     "webhook",
		Summary:  "Posts events to an HTTP endpoint, as CloudEvents in binary mode.",
		Defaults: DefaultConfig,
		// An event of the protocol's largest size: how large a body may be is the receiver's to say, with 413.
		MaxMessageBytes: 17 << 20,
		Destination: &sdk.Destination{
			Noun:     "path",
			MaxBytes: 2048,
			// An event's field fills one segment of the path: it can neither add one nor begin a query.
			Forbidden: `[/?#%\x00-\x1f\x7f]`,
		},
		Check: check,
	}
}

// Command sink-nats publishes events to NATS JetStream.
//
// File map: config (what the user writes) · connect (dialling, TLS, credentials) · stream (which stream takes a subject,
// and what it allows) · message (event → message, and what can be refused beforehand) · sink (one attempt, from Open to
// Stop) · engine (its loop) · lane (order per key) · outlet (what waits for one stream) · publish (giving to the broker,
// singly and in atomic batches) · reply (what the broker answers) · errors (what an answer means) · status (health and
// metrics) · doctor (checks without publishing).
package main

import "github.com/relevo-io/relevo/sdk"

func main() { sdk.Main(sdk.StreamSink(spec(), run)) }

func spec() sdk.Spec[Config] {
	return sdk.Spec[Config]{
		Name:     "nats",
		Summary:  "Publishes events to NATS JetStream, in atomic batches where the stream allows them.",
		Defaults: DefaultConfig,
		// An event of the protocol's largest size, so that what is too large for the server is refused with the server's
		// own figures.
		MaxMessageBytes: 17 << 20,
		KeepsOrder:      true,
		Destination: &sdk.Destination{
			Noun:     "subject",
			MaxBytes: maxSubject,
			// Dots pass: order.created and com.acme.Order are normal. Empty tokens are found before publishing.
			Forbidden: `[\s*>\x00-\x1f\x7f]`,
		},
		Check: check,
	}
}

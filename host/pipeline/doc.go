// Package pipeline is the data path of the host: it moves events from one source to its sinks.
//
// The Ledger is its pure core. It upholds, and cites where it does so:
//
//   - I1: a source is acked for an event only when the event is settled at every sink.
//   - I2: a position is durable before the source hears of it.
//   - I3: an ack is believed only if every earlier event of the same key at that sink has ended well.
//   - I4: a later event of a key is not offered while an earlier one can still be refused on its own.
//   - I5: after a crash, what is unsettled goes out again in the original order, before anything new of the same key.
//   - I6: each number ends once; a plugin that says otherwise loses its attempt.
//   - I7: what is kept is bounded by the window, in events and in bytes kept alive.
//   - I10: whatever a plugin says or fails to say, the loop goes on.
//   - I11: a refused event holds its own key and nothing else, as far as the source can.
//
// docs/guarantees.md has them in full; ARCHITECTURE.md shows who runs in which goroutine.
package pipeline

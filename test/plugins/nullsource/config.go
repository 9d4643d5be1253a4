package main

import (
	"fmt"

	"github.com/relevo-io/relevo/sdk"
)

// config of the source. All of it is optional.
type config struct {
	Count     int      `json:"count" doc:"How many events there are; 0 is no end. When they are sent, the source waits. Defaults to 0." jsonschema:"minimum=0"`
	Size      sdk.Size `json:"size" doc:"Bytes of payload of an event. Defaults to 500B."`
	Keys      int      `json:"keys" doc:"How many keys there are: event n has key 'key-<n modulo keys>'; 0 is no key. Defaults to 1000." jsonschema:"minimum=0"`
	Headers   int      `json:"headers" doc:"Headers of an event. Defaults to 0." jsonschema:"minimum=0,maximum=128"`
	Batch     int      `json:"batch" doc:"Most events of a batch. Defaults to 500." jsonschema:"minimum=1"`
	Rate      int      `json:"rate" doc:"Events per second; 0 is as fast as the window allows. Defaults to 0." jsonschema:"minimum=0"`
	Positions bool     `json:"positions" doc:"Give positions: the number of the last event, in decimal. The source then goes on behind the position of Open; without it every process starts at event 1, and goes on behind what it knows to be acked when its stream is opened again. Defaults to false."`
	HoldsKeys bool     `json:"holds_keys" doc:"Obey Hold and Release. Not together with positions. Defaults to false."`

	RejectEvery int    `json:"reject_every" doc:"Every so-manieth event is a row that cannot be made into an event; 0 is none. Defaults to 0." jsonschema:"minimum=0"`
	OpenFault   string `json:"open_fault" doc:"Refuse to open, with an error of this class. Defaults to none." jsonschema:"enum=transient,enum=permanent,enum=config"`
	FailAfter   int    `json:"fail_after" doc:"End the stream with a transient error once so many events of it have been sent; 0 is never. Defaults to 0." jsonschema:"minimum=0"`
	CrashAfter  int    `json:"crash_after" doc:"Exit with status 3 once so many events of a stream have been sent; 0 is never. Defaults to 0." jsonschema:"minimum=0"`
	CrashOnce   string `json:"crash_once" doc:"File that is made at a crash, and whose existence prevents another. Defaults to none."`
	HangOnStop  bool   `json:"hang_on_stop" doc:"Never answer Stop. Defaults to false."`
	SlowAck     bool   `json:"slow_ack" doc:"Let acks take effect only when half the window waits for it. Defaults to false."`
}

func defaults() config { return config{Size: 500, Keys: 1000, Batch: 500} }

func (c *config) Validate() error {
	switch {
	case c.Positions && c.HoldsKeys:
		return &sdk.ConfigError{Path: "/holds_keys", Message: "cannot be together with positions"}
	case c.Batch < 1:
		return &sdk.ConfigError{Path: "/batch", Message: "must be at least 1"}
	case c.Keys < 0 || c.Count < 0 || c.Size < 0 || c.Rate < 0:
		return &sdk.ConfigError{Message: "count, keys, size and rate must not be negative"}
	}
	switch c.OpenFault {
	case "", "transient", "permanent", "config":
		return nil
	}
	return &sdk.ConfigError{Path: "/open_fault", Message: fmt.Sprintf("%q is none of transient, permanent, config", c.OpenFault)}
}

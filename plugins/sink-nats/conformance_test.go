package main

import (
	"context"
	"testing"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/sdk/sdktest"
)

// The executable, as a host drives it, against a server in a process of its own.
func TestConformance(t *testing.T) {
	t.Parallel()
	exe := sdktest.Build(t, ".")
	modes(t, func(t *testing.T, atomic bool) {
		c := natstest.StartChild(t)
		js := natstest.JetStream(t, c.URL())
		orders(t, js, batches(atomic))
		sdktest.Run(t, exe, sdktest.Spec{
			Config:      map[string]any{"servers": []string{c.URL()}, "ack_timeout": "1s"},
			Unreachable: map[string]any{"servers": []string{"nats://127.0.0.1:1"}},
			Destination: "orders.created",
			Refused:     &sdktest.EventSpec{PayloadBytes: 2 << 20},
			OnBreak:     func(context.Context) error { c.Kill(); return nil },
			OnMend:      func(context.Context) error { c.Start(); return nil },
			OnObserve: func(context.Context) ([]string, error) {
				var ids []string
				for _, m := range natstest.Messages(t, js, "ORDERS") {
					ids = append(ids, m.Header.Get(headerID))
				}
				return ids, nil
			},
		})
	})
}

package main

import (
	"context"
	"net"
)

// dialer dials until the attempt is over: nats.go itself has no context.
//
//nolint:containedctx // nats.CustomDialer's method takes none.
type dialer struct{ ctx context.Context }

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(d.ctx, network, address)
}

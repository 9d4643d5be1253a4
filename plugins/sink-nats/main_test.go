package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/relevo-io/relevo/internal/natstest"
)

func TestMain(m *testing.M) {
	natstest.RunChild()
	goleak.VerifyTestMain(m,
		// Started once per process by the server's library and by its logger; they never end.
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/pse.ProcUsage"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).Start"),
	)
}

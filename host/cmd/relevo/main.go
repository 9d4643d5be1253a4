// Command relevo is the host: it runs pipelines that move the events of transactional outbox tables to message brokers.
package main

import (
	"os"

	"github.com/relevo-io/relevo/host/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr))
}

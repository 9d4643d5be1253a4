// Services brings up the real servers that the tests need, runs a command with their addresses in its environment, and
// takes them down again:
//
//	go run ./test/services -- go test ./...
//
// The command sees RELEVO_TEST_POSTGRES (and so on, one variable a server) and RELEVO_REQUIRE_SERVICES=1, under which a test
// whose server is missing fails rather than being skipped. The exit code is the command's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/relevo-io/relevo/internal/pgtest/pgenv"
	"github.com/relevo-io/relevo/test/services/bring"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: services -- COMMAND [ARGUMENT…]")
		os.Exit(2)
	}
	code, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "services:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	services, err := bring.All(ctx, func(format string, a ...any) {
		fmt.Fprintf(os.Stderr, "services: "+format+"\n", a...)
	})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, bring.Close(services)) }()

	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), pgenv.Require+"=1")
	for _, s := range services {
		cmd.Env = append(cmd.Env, s.Env...)
	}
	// The terminal's Ctrl-C reaches the command without us; a second signal to it does no harm.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status, ok := exit.Sys().(syscall.WaitStatus)
		if ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

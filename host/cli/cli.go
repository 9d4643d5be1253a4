// Package cli is the command line of the host: one file per command, and how results are shown.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit codes.
const (
	ExitOK          = 0 // done, or drained
	ExitFailed      = 1 // failed at run time, the drain timed out, second signal
	ExitUsage       = 2 // the configuration or the command line is wrong
	ExitEnvironment = 3 // the environment is not ready: port taken, state locked, plugin missing
)

// grammar is the command line. Each command has a Run method with the app and a context.
type grammar struct {
	Run      runCommand      `cmd:"" help:"Run pipelines until SIGTERM."`
	Validate validateCommand `cmd:"" help:"Check pipeline files without connecting to anything."`
	Doctor   doctorCommand   `cmd:"" help:"Check databases and brokers behind pipeline files; changes nothing."`
	Plugins  pluginsCommand  `cmd:"" help:"List, describe and test plugins."`
	Schema   schemaCommand   `cmd:"" help:"Print the JSON Schema of pipeline files, for editors."`
	Version  versionCommand  `cmd:"" help:"Print the version."`
}

const description = `Relevo moves the events of transactional outbox tables to message brokers: every event of a committed transaction, at
least once, in order per key.

Exit codes: 0 done, 1 failed at run time, 2 wrong configuration or command line, 3 the environment is not ready.`

// Main runs the command line and returns the exit code. The first SIGINT or SIGTERM ends a command; what it means to
// `run` is said there.
func Main(args []string, stdout, stderr io.Writer) int {
	a := newApp(stdout, stderr)
	exit := -1 // kong asks for an exit after --help, and goes on if there is none
	parser, err := kong.New(&grammar{},
		kong.Name("relevo"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
	)
	if err != nil {
		panic("BUG: grammar: " + err.Error())
	}
	command, err := parser.Parse(args)
	if exit >= 0 {
		return exit
	}
	if err != nil {
		a.err.printf("%s %s\n", a.err.paint(red, "relevo:"), err)
		a.err.printf("%s\n", usageHint(err))
		return ExitUsage // kong's own code is 80
	}
	ctx, stop := a.commandContext(command.Command())
	defer stop()
	command.BindTo(ctx, (*context.Context)(nil))
	return a.code(command.Run(a))
}

// usageHint names the help of the command that was meant.
func usageHint(err error) string {
	if p, ok := errors.AsType[*kong.ParseError](err); ok && p.Context != nil {
		if n := p.Context.Selected(); n != nil {
			return fmt.Sprintf("See %s --help.", n.FullPath())
		}
	}
	return "See relevo --help."
}

// commandContext ends at the first signal, but for run, which has a use for two.
func (*app) commandContext(command string) (context.Context, context.CancelFunc) {
	if strings.HasPrefix(command, "run ") {
		return context.WithCancel(context.Background())
	}
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

// exitError is an error with its exit code. An empty message was already shown.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// shown ends a command whose faults are already on the screen.
func shown(code int) error { return &exitError{code: code} }

// environment says that the machine is not ready.
func environment(err error) error { return &exitError{code: ExitEnvironment, err: err} }

// code turns the outcome of a command into an exit code, and shows the error.
func (a *app) code(err error) int {
	if err == nil {
		return ExitOK
	}
	code := ExitFailed
	if e, ok := errors.AsType[*exitError](err); ok {
		code = e.code
	}
	if text := err.Error(); text != "" {
		a.err.printf("%s %s\n", a.err.paint(red, "relevo:"), text)
	}
	return code
}

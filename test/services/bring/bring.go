// Package bring brings up the real servers that tests and the demo need: one file per service.
//
// Every service takes the first way that works: a server that the environment names; installed programs, on a private port
// with a throw-away directory; programs from the system's package manager, as root; programs from a package client that
// is there. It says plainly which one it took. Languages, whose packages examples need, and tools are brought the same way.
package bring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Service is a server that is up, or a promise that somebody else keeps one up.
type Service struct {
	Name  string
	Env   []string     // NAME=value, what tests find it by
	Close func() error // ends what was started; never nil
}

// Say tells the user what is being done, a line at a time.
type Say func(format string, args ...any)

// All brings up every service. If one can't be had, those that are up are closed again.
func All(ctx context.Context, say Say) ([]*Service, error) {
	var up []*Service
	for _, start := range []func(context.Context, Say) (*Service, error){Postgres, Python, Node, Promtool} {
		s, err := start(ctx, say)
		if err != nil {
			return nil, errors.Join(err, Close(up))
		}
		up = append(up, s)
	}
	return up, nil
}

// Close ends services, the last one first.
func Close(services []*Service) error {
	var errs []error
	for i := len(services) - 1; i >= 0; i-- {
		s := services[i]
		if err := s.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", s.Name, err))
		}
	}
	return errors.Join(errs...)
}

// run runs a program to its end. What it printed is part of the error.
func run(ctx context.Context, env []string, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		tail := strings.Join(lines[max(0, len(lines)-5):], " | ")
		return fmt.Errorf("run %s: %w: %s", name, err, tail)
	}
	return nil
}

func have(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/netproxy"
	"github.com/relevo-io/relevo/internal/pgserver"
	"github.com/relevo-io/relevo/test/services/bring"
)

type settings struct {
	self     string // the demo's own executable
	bin      string
	pipeline string
	events   int
	rate     int
	dir      string // state, streams, logs
}

// consumers, in the order in which they are shown. The e-mail consumer is the one that crashes.
var consumers = []struct{ name, title, verb string }{
	{"shipping", "shipping", "prepare"},
	{"email", "e-mail", "write about"},
}

// system is everything that runs.
type system struct {
	settings
	postgres *pgserver.Server
	nats     *process
	natsURL  string
	listen   string // of the relay

	orders    *process
	relay     *process
	consumers map[string]*process
}

// bringUp starts PostgreSQL and NATS and makes the databases.
func bringUp(ctx context.Context, s settings, say bring.Say) (*system, error) {
	sys := &system{settings: s, consumers: make(map[string]*process)}
	if err := sys.servers(ctx, say); err != nil {
		return nil, errors.Join(err, sys.down())
	}
	return sys, nil
}

func (s *system) servers(ctx context.Context, say bring.Say) error {
	bin, err := bring.PostgresPrograms(ctx, say)
	if err != nil {
		return err
	}
	if s.postgres, err = pgserver.Start(ctx, pgserver.Options{Binaries: bin}); err != nil {
		return err
	}
	say("PostgreSQL %d on %s", s.postgres.Version(), s.postgres.Addr())
	if s.nats, s.natsURL, err = startNATS(s.settings); err != nil {
		return err
	}
	say("NATS with JetStream on %s", strings.TrimPrefix(s.natsURL, "nats://"))
	for _, db := range []string{"shop", "shipping", "email"} {
		if err := s.createDatabase(ctx, db); err != nil {
			return err
		}
		program := "consumer"
		if db == "shop" {
			program = "orderservice"
		}
		p, err := start(s.dir, "migrate-"+db, s.env(db), filepath.Join(s.bin, program), "-migrate")
		if err != nil {
			return err
		}
		<-p.done
		if p.err != nil {
			return p.ended()
		}
	}
	port, err := netproxy.Port()
	if err != nil {
		return err
	}
	s.listen = "127.0.0.1:" + strconv.Itoa(port)
	return nil
}

func (s *system) createDatabase(ctx context.Context, name string) error {
	c, err := pgx.Connect(ctx, s.postgres.DSN())
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

func (s *system) databaseURL(db string) string {
	return strings.Replace(s.postgres.DSN(), "/postgres?", "/"+db+"?", 1)
}

// env is what the children read their addresses from.
func (s *system) env(db string) []string {
	return []string{"DATABASE_URL=" + s.databaseURL(db), "NATS_URL=" + s.natsURL}
}

func (s *system) startOrders() (err error) {
	s.orders, err = start(s.dir, "orderservice", s.env("shop"), filepath.Join(s.bin, "orderservice"),
		"-events", strconv.Itoa(s.events), "-rate", strconv.Itoa(s.rate))
	return err
}

func (s *system) startRelay() (err error) {
	s.relay, err = start(s.dir, "relay", s.env("shop"), filepath.Join(s.bin, "relevo"), "run",
		"--listen", s.listen, "--state", filepath.Join(s.dir, "relevo.db"), s.pipeline)
	return err
}

// startConsumer starts a consumer; crashAfter 0 lets it live.
func (s *system) startConsumer(name, verb string, crashAfter int) error {
	p, err := start(s.dir, name, s.env(name), filepath.Join(s.bin, "consumer"),
		"-name", name, "-verb", verb, "-crash-after", strconv.Itoa(crashAfter))
	if err != nil {
		return err
	}
	s.consumers[name] = p
	return nil
}

// down ends everything that runs, users before what they use.
func (s *system) down() error {
	const patience = 10 * time.Second
	for _, p := range []*process{s.orders, s.relay, s.consumers["shipping"], s.consumers["email"]} {
		if p != nil && p.running() {
			_ = p.stop(patience) // what matters was said before
		}
	}
	if s.nats != nil && s.nats.running() {
		_ = s.nats.stop(patience)
	}
	if s.postgres != nil {
		return s.postgres.Close()
	}
	return nil
}

func joinRemove(err error, dir string) error {
	return errors.Join(err, os.RemoveAll(dir))
}

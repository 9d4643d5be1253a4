package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// serveNATS is the NATS server, a process of its own: it prints its address and runs until its standard input ends.
func serveNATS(args []string) error {
	flags := flag.NewFlagSet("nats", flag.ExitOnError)
	dir := flags.String("dir", "", "where streams are stored")
	_ = flags.Parse(args) // exits
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: *dir,
		NoSigs: true, LogFile: os.DevNull,
	})
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("not ready after 10 s")
	}
	fmt.Println(s.ClientURL())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

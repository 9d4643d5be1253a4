package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// brokerEnv makes this executable a NATS server: its value is the directory of the store, with "+sync" behind it for a
// server that syncs before each confirmation.
const brokerEnv = "RELEVO_BENCH_BROKER"

const syncSuffix = "+sync"

// serveBroker is the server, in a process that startBroker started; elsewhere it does nothing. It prints its address and
// ends with its standard input.
func serveBroker() {
	dir, asked := os.LookupEnv(brokerEnv)
	if !asked {
		return
	}
	dir, always := strings.CutSuffix(dir, syncSuffix)
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, JetStreamMaxStore: 16 << 30, SyncAlways: always,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		os.Exit(2)
	}
	fmt.Fprintln(os.Stdout, s.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin) // its end is the signal
	s.Shutdown()
	s.WaitForShutdown()
	os.Exit(0)
}

// broker is a NATS server with JetStream in a process of its own, as it comes: files synced every two minutes.
type broker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	url   string
}

// startBroker starts one with an empty store. always: each confirmation waits for the disk.
func (b *bench) startBroker(always bool) (*broker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "js"+strconv.Itoa(b.number()))
	if always {
		dir += syncSuffix
	}
	k := &broker{cmd: exec.Command(exe)}
	k.cmd.Env = append(os.Environ(), brokerEnv+"="+dir)
	k.cmd.Stderr = os.Stderr
	if k.stdin, err = k.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a NATS server: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if k.url = strings.TrimSpace(line); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the NATS server: %w", err), k.cmd.Wait())
	}
	return k, nil
}

func (k *broker) pid() int { return k.cmd.Process.Pid }

// stop ends it. Nothing in its store is wanted any more.
func (k *broker) stop() {
	if k.cmd.ProcessState != nil {
		return
	}
	_ = k.cmd.Process.Kill() // it may have ended
	_ = k.cmd.Wait()         // "signal: killed" is what was asked for
	_ = k.stdin.Close()
}

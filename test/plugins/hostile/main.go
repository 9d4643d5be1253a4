// Hostile is a plugin that misbehaves, for the tests of host/plugin. $HOSTILE names the behaviour; `describe`, which
// gets no such variable, goes by the name of the executable. Whatever it does, it ends by itself after a minute, so that
// a test that goes wrong leaves nothing behind.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	time.AfterFunc(time.Minute, func() { os.Exit(99) })
	if len(os.Args) > 1 && os.Args[1] == "describe" {
		describe(filepath.Base(os.Args[0]))
		return
	}
	mode := os.Getenv("HOSTILE")
	before(mode)
	switch mode {
	case "stock":
		serveStock()
	case "stranger":
		stranger()
	default:
		serve(mode)
	}
}

// before is what happens ahead of the handshake.
func before(mode string) {
	out := bufio.NewWriter(os.Stdout)
	defer func() { _ = out.Flush() }()
	switch mode {
	case "crash":
		say("loading", "ERROR: cannot find libfoo.so")
		os.Exit(3)
	case "panic":
		panic("out of cheese")
	case "wrong-cookie":
		if os.Getenv("OTHER_PLUGIN") == "" {
			say("This binary is a plugin of something else.")
			os.Exit(1)
		}
	case "silent":
		say("thinking")
		forever()
	case "junk":
		_, _ = out.WriteString("Loading modules...\n\n1|2\n\x00\xff\xfe\nalmost|a|hand|shake\n")
	case "long-line":
		_, _ = out.WriteString(strings.Repeat("x", 200<<10) + "\n")
	case "gone": // at once after the handshake
		l, err := net.Listen("unix", filepath.Join(socketDir(), "s"))
		must(err)
		line(l.Addr().String())
		os.Exit(5)
	case "nobody":
		line(filepath.Join(socketDir(), "nobody"))
		forever()
	case "elsewhere":
		line("/tmp/relevo-elsewhere")
		forever()
	case "too-long":
		line(filepath.Join(socketDir(), strings.Repeat("x", 120)))
		forever()
	case "version":
		_, _ = fmt.Println("1|2|unix|" + filepath.Join(socketDir(), "s") + "|grpc")
		forever()
	case "core-version":
		_, _ = fmt.Println("2|1|unix|" + filepath.Join(socketDir(), "s") + "|grpc")
		forever()
	case "netrpc":
		_, _ = fmt.Println("1|1|unix|" + filepath.Join(socketDir(), "s"))
		forever()
	case "tcp":
		_, _ = fmt.Println("1|1|tcp|127.0.0.1:1|grpc")
		forever()
	case "stderr":
		hostileStderr()
	case "flood":
		w := bufio.NewWriter(os.Stderr)
		for i := range 50_000 {
			_, _ = fmt.Fprintln(w, "flood", i)
		}
		_ = w.Flush()
	case "escape":
		escape()
	}
}

// hostileStderr writes what has broken hosts.
func hostileStderr() {
	w := bufio.NewWriter(os.Stderr)
	defer func() { _ = w.Flush() }()
	for _, l := range []string{
		`{"@message":1}`,
		`{"@message":{"@message":1}}`,
		`{"@level":7,"@message":"odd level"}`,
		`{"@level":"warn","@message":"from hclog","@module":"m","@timestamp":"2026-01-02T15:04:05.000000Z","rows":12}`,
		`{"time":"2026-01-02T15:04:05Z","level":"ERROR","msg":"from slog","stream":"ORDERS","n":{"a":1.5,"b":[1,null]}}`,
		`{"level":30,"msg":"from pino"}`,
		`{"msg":"cut`, `{`, `{}`, `[]`, `null`, `{"msg":"two"}{"msg":"records"}`,
		strings.Repeat(`{"a":`, 12_000),
		"\x1b[31mred\x1b[0m \x00\xff\xfe binary",
		"[WARN] with a prefix",
		strings.Repeat("y", 1<<20),
		"after the long line",
	} {
		_, _ = w.WriteString(l + "\n")
	}
	_, _ = w.WriteString("no end of line")
}

// escape leaves a child outside the group that keeps stdout and stderr open.
func escape() (pid int) {
	cmd := exec.Command("sleep", "50")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(cmd.Start())
	say(fmt.Sprintf("escaped %d", cmd.Process.Pid))
	return cmd.Process.Pid
}

// stranger lets a process outside the group listen.
func stranger() {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOSTILE=good")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(cmd.Start())
	say(fmt.Sprintf("escaped %d", cmd.Process.Pid))
	_ = cmd.Wait()
}

// describe answers `<exe> describe`.
func describe(name string) {
	const good = `{"name":"good","version":"v1","kind":"PLUGIN_KIND_SINK","someday":{"a":[1]},"capabilities":{"keepsOrder":true}}`
	switch name {
	case "sink-junk":
		_, _ = fmt.Println("hello world, this is no plugin")
	case "sink-hang":
		forever()
	case "sink-exit":
		say("unknown command: describe")
		os.Exit(2)
	case "sink-nameless":
		_, _ = fmt.Println(`{"kind":"PLUGIN_KIND_SINK"}`)
	case "sink-huge":
		chunk := strings.Repeat("z", 1<<20)
		for range 16 {
			_, _ = fmt.Print(chunk)
		}
	case "sink-escape":
		pid := escape()
		must(os.WriteFile(os.Args[0]+".pid", fmt.Append(nil, pid), 0o600))
		_, _ = fmt.Println(good)
	default:
		_, _ = fmt.Println(good)
	}
}

// lifeline exits at EOF on stdin.
func lifeline(exit func()) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	exit()
}

func forever() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	select {}
}

func socketDir() string { return os.Getenv("PLUGIN_UNIX_SOCKET_DIR") }

func line(socket string) { _, _ = fmt.Printf("1|1|unix|%s|grpc\n", socket) }

func say(lines ...string) { _, _ = fmt.Fprintln(os.Stderr, strings.Join(lines, "\n")) }

func must(err error) {
	if err != nil {
		say("hostile: " + err.Error())
		os.Exit(98)
	}
}

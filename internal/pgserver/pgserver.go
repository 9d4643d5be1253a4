// Package pgserver runs throw-away PostgreSQL servers: for tests (through pgtest), for test/services and for the demo.
//
// A server is a child of the calling process, bound to 127.0.0.1 only, with its data in a directory of its own. It can be
// stopped, crashed as a power cut would, frozen, and started again on the same port with the same data. Servers and
// directories end with the process that started them, whatever ends it: see reaper.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/relevo-io/relevo/internal/netproxy"
)

// startTimeout bounds the wait for a server to answer, crash recovery included.
const startTimeout = 60 * time.Second

// stopTimeout bounds the wait for a server to end after it was told to.
const stopTimeout = 60 * time.Second

// Options says what kind of server to start. The zero value is a good server for tests.
type Options struct {
	// Binaries to run. Defaults to what Find(0) finds.
	Binaries Binaries

	// Settings are added to the defaults, or replace them (name → value). The defaults are those of a server for tests:
	// wal_level=logical and fsync=off. (Without fsync nothing committed was ever lost to a crash of processes; with
	// synchronous_commit=off it was, so that one stays on.)
	Settings map[string]string

	// HBA lines stand before the one that trusts everybody, so that a test can ask some users for a password.
	HBA []string
}

// StopMode is how a server is shut down.
type StopMode syscall.Signal

// The shutdown modes of PostgreSQL.
const (
	Smart     = StopMode(syscall.SIGTERM) // waits for clients to leave
	Fast      = StopMode(syscall.SIGINT)  // ends sessions, writes a checkpoint; waits for walsenders to be confirmed
	Immediate = StopMode(syscall.SIGQUIT) // as a crash: recovers at the next start
)

// ErrNotRunning is returned by Stop, Crash, Freeze and Thaw when there is no process to act on.
var ErrNotRunning = errors.New("PostgreSQL is not running")

// Server is one throw-away PostgreSQL. Start and Restart aside, its methods may be called side by
// side.
type Server struct {
	bin  Binaries
	dir  string // holds data, log and the unix socket
	port int
	args []string

	mu   sync.Mutex
	proc *process // nil when stopped
}

// process is one life of the postmaster.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has been reaped
}

// Start starts a server on a free port and returns once it answers. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	bin := o.Binaries
	if bin.Dir == "" {
		found, err := Find(0)
		if err != nil {
			return nil, err
		}
		bin = found
	}
	dir, err := newCluster(ctx, bin, o.HBA)
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir, args: settingArgs(dir, o.Settings)}
	for range 5 {
		if s.port, err = netproxy.Port(); err != nil {
			break
		}
		err = s.Restart(ctx)
		if err == nil || !strings.Contains(err.Error(), "Address already in use") {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func settingArgs(dir string, settings map[string]string) []string {
	all := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": dir,
		"wal_level":               "logical",
		"max_wal_senders":         "50",
		"max_replication_slots":   "50",
		"max_connections":         "200",

		"max_prepared_transactions": "20",

		"fsync":            "off",
		"full_page_writes": "off",
		"shared_buffers":   "64MB",
		// Each restart would otherwise leave a file in /dev/shm when the server is killed.
		"dynamic_shared_memory_type": "mmap",

		"timezone":         "UTC",
		"log_timezone":     "UTC",
		"lc_messages":      "C",
		"log_min_messages": "warning",
		"log_line_prefix":  "%m [%p] %q%a ",
	}
	maps.Copy(all, settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", name+"="+all[name])
	}
	return args
}

// DSN names the database postgres as its superuser.
func (s *Server) DSN() string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", s.Addr())
}

// Addr is host:port, the same for the life of the Server.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Version is the major version, such as 15.
func (s *Server) Version() int { return s.bin.Version }

// PID is the postmaster's, 0 when the server is stopped.
func (s *Server) PID() int {
	p := s.running()
	if p == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Log is what the server wrote so far, over all its lives.
func (s *Server) Log() string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }
func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }

// Restart starts the server again after Stop or Crash, on the same port and data, and returns once it answers. A server
// that still runs is stopped first (Fast).
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(Fast); err != nil && !errors.Is(err, ErrNotRunning) {
		return err
	}
	p, err := s.launch()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	if err := s.waitReady(ctx, p); err != nil {
		return errors.Join(err, s.Crash())
	}
	return nil
}

func (s *Server) launch() (*process, error) {
	r, err := theReaper()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd, err := s.bin.command("postgres", append([]string{"-D", s.dataDir(), "-p", strconv.Itoa(s.port)}, s.args...)...)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	r.add(cmd.Process.Pid)
	p := &process{cmd: cmd, done: make(chan struct{})}
	go p.reap(r)
	return p, nil
}

// reap waits for the postmaster; every path that ends one waits for reap in turn.
func (p *process) reap(r *reaper) {
	_ = p.cmd.Wait() // how it ended is in its log
	r.remove(p.cmd.Process.Pid)
	close(p.done)
}

// waitReady dials until the server answers a query, has ended, or the time is up.
func (s *Server) waitReady(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := pgx.Connect(ctx, s.DSN())
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("start postgres: it ended: %s", lastLines(s.Log(), 5))
		case <-ctx.Done():
			return fmt.Errorf("start postgres: %w: %w: %s", context.Cause(ctx), err, lastLines(s.Log(), 5))
		}
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// Stop shuts the server down and returns once its process has ended. While it waits, Crash may cut it short.
func (s *Server) Stop(mode StopMode) error {
	p := s.running()
	if p == nil {
		return ErrNotRunning
	}
	if err := p.cmd.Process.Signal(syscall.Signal(mode)); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
		s.ended(p)
		return nil
	case <-timer.C:
		return fmt.Errorf("stop postgres: still there after %s: %s", stopTimeout, lastLines(s.Log(), 5))
	}
}

// running is the process, nil when there is none.
func (s *Server) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

func (s *Server) ended(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == p {
		s.proc = nil
	}
}

// Close ends the server and removes its directory.
func (s *Server) Close() error {
	// A frozen server hears no signal but SIGKILL.
	if err := s.Thaw(); err != nil && !errors.Is(err, ErrNotRunning) {
		return err
	}
	if err := s.Stop(Immediate); err != nil && !errors.Is(err, ErrNotRunning) {
		return err
	}
	s.removeSharedMemory()
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("remove the cluster: %w", err)
	}
	return nil
}

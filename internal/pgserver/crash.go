package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Crash kills the server as the OOM killer or a power cut would: nothing is flushed, nobody is told. It returns once
// every process is gone, so that Restart finds no owner of the old shared memory.
func (s *Server) Crash() error {
	p := s.running()
	if p == nil {
		return ErrNotRunning
	}
	pid := p.cmd.Process.Pid
	// The postmaster is stopped first, so that it starts no child between the listing and the killing.
	kids, err := freeze(pid)
	if err != nil {
		return err
	}
	for _, kid := range kids {
		_ = syscall.Kill(kid, syscall.SIGKILL)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	<-p.done
	s.ended(p)
	return waitGone(kids)
}

// Freeze stops every process of the server where it is (SIGSTOP): connections stay open and answer nothing, as on a
// machine that hangs. Thaw lets them go on.
func (s *Server) Freeze() error {
	p := s.running()
	if p == nil {
		return ErrNotRunning
	}
	kids, err := freeze(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	for _, kid := range kids {
		_ = syscall.Kill(kid, syscall.SIGSTOP)
	}
	return nil
}

// Thaw undoes Freeze.
func (s *Server) Thaw() error {
	p := s.running()
	if p == nil {
		return ErrNotRunning
	}
	pid := p.cmd.Process.Pid
	kids, err := children(pid)
	if err != nil {
		return err
	}
	for _, frozen := range append(kids, pid) {
		_ = syscall.Kill(frozen, syscall.SIGCONT)
	}
	return nil
}

// freeze stops the postmaster and returns its children, which still run.
func freeze(pid int) ([]int, error) {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
		return nil, fmt.Errorf("freeze the postmaster: %w", err)
	}
	return children(pid)
}

// children lists the processes whose parent is pid. Every process of a server is a child of its postmaster.
func children(pid int) ([]int, error) {
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)); err == nil {
		return numbers(strings.Fields(string(b))), nil
	}
	out, err := exec.Command("ps", "-axo", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("list the server's processes: %w", err)
	}
	var kids []int
	for line := range strings.Lines(string(out)) {
		if n := numbers(strings.Fields(line)); len(n) == 2 && n[1] == pid {
			kids = append(kids, n[0])
		}
	}
	return kids, nil
}

func numbers(fields []string) []int {
	var ns []int
	for _, f := range fields {
		if n, err := strconv.Atoi(f); err == nil {
			ns = append(ns, n)
		}
	}
	return ns
}

// waitGone waits until none of the killed processes runs any more. They were inherited by pid 1, which may be slow to
// reap them: a zombie holds no memory, so it counts as gone.
func waitGone(pids []int) error {
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		pids = slices.DeleteFunc(pids, gone)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("crash postgres: processes %v outlived SIGKILL", pids)
		}
		<-tick.C
	}
}

func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false // no /proc on this system, or gone just now: the next look says ESRCH
	}
	return strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ")
}

// removeSharedMemory frees the System V segment that a crashed server leaves behind when it is never started again. Its
// id is the second number of line 7 of postmaster.pid, a file that only a crash leaves.
func (s *Server) removeSharedMemory() {
	b, err := os.ReadFile(filepath.Join(s.dataDir(), "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) < 7 {
		return
	}
	if key := numbers(strings.Fields(lines[6])); len(key) == 2 {
		_, _ = unix.SysvShmCtl(key[1], unix.IPC_RMID, nil)
	}
}

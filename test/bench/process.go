package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// clockTick is the unit of processor time in /proc: USER_HZ, 100 on every platform that Go supports.
const clockTick = 10 * time.Millisecond

// resident is the memory of a process that is in RAM, in bytes. Pages that several processes share count for each.
func resident(ctx context.Context, pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				return kilobytes(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			}
		}
		return 0, fmt.Errorf("read the memory of process %d: it has ended", pid)
	}
	if runtime.GOOS == "linux" {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, "ps", "-o", "rss=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return 0, fmt.Errorf("ask ps for process %d: %w", pid, err)
	}
	return kilobytes(string(out))
}

func kilobytes(text string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n << 10, err
}

// usage is processor time so far. Away from Linux it is always 0.
type usage time.Duration

// used is the processor time of processes, those of their children that have ended included.
func used(pids ...int) usage {
	var sum usage
	for _, pid := range pids {
		f := statFields(pid)
		for _, i := range []int{11, 12, 13, 14} { // utime, stime, and the same of children that were waited for
			if i < len(f) {
				n, _ := strconv.Atoi(f[i]) // the kernel's own
				sum += usage(time.Duration(n) * clockTick)
			}
		}
	}
	return sum
}

// usedHere is the processor time of this process alone.
func usedHere() usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic("BUG: " + err.Error())
	}
	return usage(r.Utime.Nano() + r.Stime.Nano())
}

// since is the processor time from an earlier usage to this one, in µs per event.
func (u usage) since(earlier usage, events int) float64 {
	return float64(time.Duration(u-earlier).Microseconds()) / float64(events)
}

// statFields are those of /proc/PID/stat behind the name; nil: there is none.
func statFields(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

// family is a process and its children that live.
func family(pid int) []int {
	pids := []int{pid}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	for _, dir := range all {
		child, err := strconv.Atoi(filepath.Base(dir))
		if f := statFields(child); err == nil && len(f) > 1 && f[1] == strconv.Itoa(pid) {
			pids = append(pids, child)
		}
	}
	return pids
}

// machine describes where we are.
func (b *bench) machine(ctx context.Context) Machine {
	m := Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), CPU: "unknown", Go: runtime.Version(),
		NATS: server.VERSION, Load: "unknown",
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(text))[:3], " ")
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	err := b.admin.QueryRow(ctx, "select current_setting('server_version'), current_setting('fsync')").Scan(&m.PostgreSQL, &m.FSync)
	if err != nil {
		m.PostgreSQL = err.Error()
	}
	return m
}

var errEnded = errors.New("the process has ended")

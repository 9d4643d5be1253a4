//go:build failpoint

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var (
	armed string
	left  atomic.Int64
	once  string
)

func init() {
	name, times, found := strings.Cut(os.Getenv("RELEVO_FAILPOINT"), ":")
	armed = name
	left.Store(1)
	if n, err := strconv.Atoi(times); found && err == nil {
		left.Store(int64(n))
	}
	once = os.Getenv("RELEVO_FAILPOINT_ONCE")
}

// Hit kills the process if the failpoint is armed and its turn has come.
func Hit(name string) {
	if name != armed || left.Add(-1) > 0 || !claim() {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// claim makes the file of RELEVO_FAILPOINT_ONCE. It fails where a life before this one has made it.
func claim() bool {
	if once == "" {
		return true
	}
	f, err := os.OpenFile(once, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return false
	}
	_ = f.Close() // nothing was written
	return true
}

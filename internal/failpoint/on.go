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
)

func init() {
	name, times, found := strings.Cut(os.Getenv("RELEVO_FAILPOINT"), ":")
	armed = name
	left.Store(1)
	if n, err := strconv.Atoi(times); found && err == nil {
		left.Store(int64(n))
	}
}

// Hit kills the process if the failpoint is armed and its turn has come.
func Hit(name string) {
	if name == armed && left.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}

package plugin

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitExit waits for the end of a child and leaves it a zombie. False: it could not wait.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

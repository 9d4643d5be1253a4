package plugin

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitExit waits for the end of a child and leaves it a zombie. False: it could not wait.
func awaitExit(pid int) bool {
	kq, err := unix.Kqueue()
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(kq) }()
	unix.CloseOnExec(kq)
	watch := []unix.Kevent_t{{
		Ident: uint64(pid), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_ONESHOT, Fflags: unix.NOTE_EXIT,
	}}
	var got [1]unix.Kevent_t
	for {
		n, err := unix.Kevent(kq, watch, got[:], nil)
		if !errors.Is(err, unix.EINTR) {
			if n == 1 && got[0].Flags&unix.EV_ERROR != 0 {
				err = unix.Errno(got[0].Data)
			}
			return err == nil || errors.Is(err, unix.ESRCH) // ESRCH: it is a zombie already
		}
	}
}

package e2e

import "syscall"

// ownGroup puts a host into a process group of its own, and has it killed when the test process ends in a way that runs
// no clean-up. Its plugins follow it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

package natstest

import "syscall"

// dieWithParent has a child killed when the test process ends in a way that runs no clean-up.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

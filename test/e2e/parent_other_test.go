//go:build !linux

package e2e

import "syscall"

// ownGroup puts a host into a process group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

//go:build !linux

package natstest

import "syscall"

// dieWithParent does nothing here: a test process that is killed leaves its children behind.
func dieWithParent() *syscall.SysProcAttr { return nil }

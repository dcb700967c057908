//go:build !linux

package cli

import "syscall"

// childAttributes are those of a node that dev starts: a process group of its
// own. Nothing here tells a child that its parent was killed.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

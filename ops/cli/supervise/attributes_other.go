//go:build unix && !linux

package supervise

import (
	"os"
	"syscall"
)

// attributes gives the command a group of its own and the foreground of the
// terminal if there is one. Only Linux can end it with its parent.
func attributes(tty *os.File) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if tty != nil {
		a.Foreground, a.Ctty = true, int(tty.Fd())
	}
	return a
}

// isStopped: only Linux tells of stops without taking the end as well.
func isStopped(int) bool { return false }

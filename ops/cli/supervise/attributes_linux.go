package supervise

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes gives the command a group of its own, the foreground of the
// terminal if there is one, and a death with its parent: a supervisor that was
// killed renews nothing, so its command must not go on.
func attributes(tty *os.File) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if tty != nil {
		a.Foreground, a.Ctty = true, int(tty.Fd())
	}
	return a
}

// isStopped takes the news that the process was stopped, if there is such; its
// end is left for Wait.
func isStopped(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

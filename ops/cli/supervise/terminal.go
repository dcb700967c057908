package supervise

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal hands the foreground to the command's group and back, as a shell
// does with its jobs. Ctrl-C and Ctrl-Z then reach the command alone.
type terminal struct {
	file  *os.File
	group int
	own   int
	stops chan os.Signal
}

// Foreground returns this process's controlling terminal if f is it and this
// process is in its foreground, else nil.
func Foreground(f *os.File) *os.File {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	if err != nil || group != syscall.Getpgrp() {
		return nil
	}
	return f
}

func takeTerminal(f *os.File, group int) *terminal {
	t := &terminal{file: f, group: group, own: syscall.Getpgrp(), stops: make(chan os.Signal, 8)}
	// Setting the foreground from the background stops the one who does it,
	// unless this signal is ignored.
	signal.Ignore(syscall.SIGTTOU)
	signal.Notify(t.stops, syscall.SIGCHLD)
	return t
}

// commandStopped is called on SIGCHLD. If the command was stopped (Ctrl-Z),
// this process stops, too, as the shell that started it expects. When it is
// continued, woke runs first: it finds out whether the lease is over.
func (t *terminal) commandStopped(woke func()) {
	if !isStopped(t.group) {
		return
	}
	t.foreground(t.own)
	syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	woke()
	t.foreground(t.group)
	syscall.Kill(-t.group, syscall.SIGCONT)
}

func (t *terminal) giveBack() {
	signal.Stop(t.stops)
	t.foreground(t.own)
	signal.Reset(syscall.SIGTTOU)
}

func (t *terminal) foreground(group int) {
	unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
}

package cli

import "syscall"

// childAttributes are those of a node that dev starts: a process group of its
// own, since Ctrl-C at the terminal is for dev, which then stops the nodes in
// order; and TERM when dev is gone without having stopped it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

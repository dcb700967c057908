package worker

import "fmt"

// raftLogger drops what raft says about every election of every shard; state
// changes are logged once by the worker itself. Panics must stay panics: raft
// relies on not going on after them.
type raftLogger struct{}

func (raftLogger) Debug(...any)            {}
func (raftLogger) Debugf(string, ...any)   {}
func (raftLogger) Error(...any)            {}
func (raftLogger) Errorf(string, ...any)   {}
func (raftLogger) Info(...any)             {}
func (raftLogger) Infof(string, ...any)    {}
func (raftLogger) Warning(...any)          {}
func (raftLogger) Warningf(string, ...any) {}
func (raftLogger) Fatal(v ...any)          { panic("raft: " + fmt.Sprint(v...)) }
func (raftLogger) Fatalf(f string, v ...any) {
	panic("raft: " + fmt.Sprintf(f, v...))
}
func (raftLogger) Panic(v ...any) { panic("raft: " + fmt.Sprint(v...)) }
func (raftLogger) Panicf(f string, v ...any) {
	panic("raft: " + fmt.Sprintf(f, v...))
}

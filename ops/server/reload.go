package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mortise-lock/mortise/ops/config"
)

// Reloads applies to a running process what its configuration says anew. Safe
// for use by several goroutines.
type Reloads struct {
	sources config.Sources
	log     *slog.Logger
	level   *slog.LevelVar

	mu sync.Mutex
	// inForce is what the process runs with: as it was started, and what was
	// applied since. So a change that needs a restart is named at each reload
	// until there was one.
	inForce config.Loaded
}

// NewReloads is for a process that was started with l, read from sources.
// level is what LeveledLogger returned.
func NewReloads(sources config.Sources, l *config.Loaded, log *slog.Logger, level *slog.LevelVar) *Reloads {
	return &Reloads{sources: sources, log: log, level: level, inForce: *l}
}

// Reload reads the configuration again, applies what can change at run time,
// and says in one log line, at whatever level: who sent the signal waits for
// it. It names the settings applied and those that need a restart. If the
// configuration has problems, nothing changes, and they are logged.
func (r *Reloads) Reload() {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, err := config.Load(r.sources)
	if err != nil {
		r.say(slog.LevelError, "the configuration was not reloaded: the file has problems, and what was in force stays so", "error", err)
		return
	}
	var applied, restart []string
	for _, c := range config.Changes(&r.inForce, next) {
		if c.Reloadable {
			c.Apply(&r.inForce.Config, &next.Config)
			applied = append(applied, c.String())
		} else {
			restart = append(restart, c.String())
		}
	}
	setLevel(r.level, r.inForce.Log.Level)
	if len(applied)+len(restart) == 0 {
		r.say(slog.LevelInfo, "the configuration was reloaded: nothing changed")
		return
	}
	level := slog.LevelInfo
	if len(restart) > 0 {
		level = slog.LevelWarn
	}
	r.say(level, "the configuration was reloaded", "applied", applied, "needs_restart", restart)
}

// say logs whatever the level in force is.
func (r *Reloads) say(level slog.Level, text string, args ...any) {
	line := slog.NewRecord(time.Now(), level, text, 0)
	line.Add(args...)
	_ = r.log.Handler().Handle(context.Background(), line) // as all logging: nobody to tell
}

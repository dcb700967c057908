package server

import (
	"io"
	"log/slog"

	"github.com/mortise-lock/mortise/ops/config"
)

// LeveledLogger makes the logger that a configuration asks for, and what sets
// its level, and that of all loggers derived from it, at any time.
func LeveledLogger(c config.Log, w io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	setLevel(level, c.Level)
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o)), level
	}
	return slog.New(slog.NewTextHandler(w, o)), level
}

// setLevel takes a level from a configuration, which was checked.
func setLevel(v *slog.LevelVar, name string) {
	var l slog.Level
	_ = l.UnmarshalText([]byte(name))
	v.Set(l)
}

// Package config reads the configuration of `mortise server run`: one YAML
// file, then MORTISE_* environment variables, then --set flags; the later
// wins. Everything that is wrong is reported at once, each problem with where
// it was written.
//
// The reference page docs/config.md is generated from the struct in
// settings.go, so it can't lag behind.
package config

//go:generate go run ./reference -source settings.go -out ../../docs/config.md

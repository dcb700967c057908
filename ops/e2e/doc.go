// Package e2e runs the built binary as real processes, kills and freezes them,
// and looks at what clients see: the SDK, HTTP, gRPC by reflection and the
// command line.
//
// The binary is the one that MORTISE_BIN names (make sets it); else it is built
// once per run. Clusters come in two kinds that behave alike: those that
// `mortise dev --processes` starts, and those made of configuration files with
// `mortise server run` and `mortise server init`. Every process is started,
// signalled and ended by its id; what a failing test leaves behind is killed
// too, and the ends of its logs are printed.
//
// Tests run one after the other, because many measure time. Figures are log
// lines that begin with "figure: "; only bounds that are promised are asserted.
// The flag -long runs the long forms:
//
//	go test ./ops/e2e -timeout 120m -args -long
package e2e

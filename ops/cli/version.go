package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Build describes this program.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// build is what the linker was told, and what the toolchain recorded.
func (e *Env) build() Build {
	b := Build{Version: e.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return b
}

func newVersion(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Long:  example("mortise version -o json") + "Shows the version of this program, not of a cluster; for that see mortise node\nls -o json.\n",
		Args:  exactArgs(0, "no argument"),
		RunE: func(*cobra.Command, []string) error {
			b := a.build()
			if a.output == "json" {
				return a.printJSON(b, "  ")
			}
			_, err := fmt.Fprintf(a.Out, "mortise %s %s %s\n", b.Version, b.Go, b.Platform)
			return err
		},
	}
	c.Flags().StringVarP(&a.output, "output", "o", "table", "table or json")
	return c
}

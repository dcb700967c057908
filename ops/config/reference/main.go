// Program reference writes the page of all settings from the comments of the
// configuration struct.
package main

import (
	"flag"
	"log"
	"os"

	"github.com/mortise-lock/mortise/ops/config"
)

func main() {
	source := flag.String("source", "settings.go", "file with the struct")
	out := flag.String("out", "", "page to write")
	flag.Parse()
	src, err := os.ReadFile(*source)
	if err != nil {
		log.Fatal(err)
	}
	page, err := config.Reference(src)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*out, page, 0o644); err != nil {
		log.Fatal(err)
	}
}

// Package cli is the command line of mortise: one file per command.
//
// Rules that all commands keep:
//
//	C1. Standard output carries the answer and nothing else; everything for
//	    people beside it goes to standard error.
//	C2. -o json is a contract: fields may be added, none changes its meaning.
//	    Durations are numbers with the unit in the name, times are RFC 3339.
//	C3. Commands return errors; the main program alone turns them into exit
//	    codes (Kind, and the table of `mortise help exit-codes`).
//	C4. Every error ends with the next command to try.
//	C5. Help begins with an example.
//	C6. A command that changes something asks, or takes --yes.
package cli

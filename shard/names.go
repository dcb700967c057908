package shard

import (
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// RuleError says which field breaks which rule.
type RuleError struct {
	// Field is the name of the field at fault.
	Field string
	// Rule is the rule in words, with its bound.
	Rule string
	// Got describes the offending value, never the value at length.
	Got string
}

// Error implements error.
func (e *RuleError) Error() string {
	return fmt.Sprintf("%s: %s (got %s)", e.Field, e.Rule, e.Got)
}

// ValidateName reports whether name may be a lock's name. The error is a
// *RuleError.
func ValidateName(name string) error { return validateText("name", name, MaxName) }

// ValidateClient reports whether client may be a session's client name. The
// error is a *RuleError.
func ValidateClient(client string) error { return validateText("client", client, MaxClient) }

func validateText(field, s string, limit int) error {
	if len(s) == 0 {
		return &RuleError{Field: field, Rule: fmt.Sprintf("must have 1 to %d bytes", limit), Got: "none"}
	}
	if len(s) > limit {
		return &RuleError{Field: field, Rule: fmt.Sprintf("must have 1 to %d bytes", limit), Got: fmt.Sprintf("%d bytes", len(s))}
	}
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < 0x20 || c == 0x7f {
				return &RuleError{Field: field, Rule: "must not contain control characters", Got: fmt.Sprintf("U+%04X at byte %d", c, i)}
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n <= 1 {
			return &RuleError{Field: field, Rule: "must be valid UTF-8", Got: fmt.Sprintf("byte 0x%02x at byte %d", c, i)}
		}
		if unicode.IsControl(r) {
			return &RuleError{Field: field, Rule: "must not contain control characters", Got: fmt.Sprintf("U+%04X at byte %d", r, i)}
		}
		i += n
	}
	return nil
}

// HashName is the hash that decides which shard owns a name: xxhash64 with
// seed 0. It is part of stored data and of the wire contract.
func HashName(name string) uint64 { return xxhash.Sum64String(name) }

package history

import "fmt"

var (
	kindNames    = [...]string{"", "invoke", "return", "belief begins", "belief ends", "paused", "resumed", "client died", "session opened", "session over", "write", "applied", "fault", "healed", "served", "baseline", "waiting", "forced"}
	opNames      = [...]string{"", "acquire", "release", "cancel", "describe", "close"}
	modeNames    = [...]string{"", "exclusive", "shared", "counted"}
	outcomeNames = [...]string{"unknown", "ok", "busy", "cancelled", "refused", "lost"}
)

func (k Kind) String() string    { return name(kindNames[:], "kind", uint8(k)) }
func (o Op) String() string      { return name(opNames[:], "op", uint8(o)) }
func (m Mode) String() string    { return name(modeNames[:], "mode", uint8(m)) }
func (o Outcome) String() string { return name(outcomeNames[:], "outcome", uint8(o)) }

func name(names []string, what string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", what, i)
}

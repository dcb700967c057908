package placement

import (
	"encoding/binary"
	"fmt"
)

// commandFormat is the first byte of every command. A newer format must be
// told apart from damage, so it is checked before anything else.
const commandFormat = 1

// MaxCommandBytes bounds one command.
const MaxCommandBytes = 64 << 10

// Kind is the kind of a command. The numbers are stored in logs: never reuse
// or renumber one.
type Kind uint8

// Kinds of commands.
const (
	KindUpdateNode Kind = 1
)

// Command is one change of the map.
type Command interface {
	kind() Kind
	appendTo(dst []byte) []byte
	// apply changes m, which the caller cloned, or refuses with a *RuleError and
	// leaves the clone to be thrown away. changed false: nothing to do.
	apply(m *mutableMap) (changed bool, err error)
}

// UpdateNode tells the cluster where a node is now. A nil field stays as it
// is. Repeating it changes nothing.
type UpdateNode struct {
	Node uint64
	// Address is host:port of the node's internal listener; never empty.
	Address *string
	// HTTPAddress is host:port of the node's own gateway's HTTP listener; empty
	// when it runs none.
	HTTPAddress *string
	// GatewayAddress is the same for gRPC.
	GatewayAddress *string
	// Zone is 1 to 64 bytes, or empty. Spread is not checked here: the map says
	// where a node is, and planners put right what follows from it.
	Zone *string
}

// EncodeCommand returns the command as the bytes of a log entry.
func EncodeCommand(c Command) []byte {
	b := []byte{commandFormat, byte(c.kind())}
	return c.appendTo(b)
}

// DecodeCommand reads a command. Every error means that this build can't apply the
// entry; the host must stop.
func DecodeCommand(data []byte) (Command, error) {
	if len(data) > MaxCommandBytes {
		return nil, fmt.Errorf("placement command has %d bytes, at most %d are legal: the log is damaged", len(data), MaxCommandBytes)
	}
	if len(data) < 2 {
		return nil, fmt.Errorf("placement command has %d bytes, too few for a format and a kind: the log is damaged", len(data))
	}
	if data[0] != commandFormat {
		return nil, fmt.Errorf("placement command has format %d, this build knows %d: run the build that wrote it, or a newer one", data[0], commandFormat)
	}
	r := &reader{b: data[2:]}
	var c Command
	switch k := Kind(data[1]); k {
	case KindUpdateNode:
		c = UpdateNode{Node: r.uvarint(), Address: r.optional(), HTTPAddress: r.optional(), GatewayAddress: r.optional(), Zone: r.optional()}
	default:
		return nil, fmt.Errorf("placement command has unknown kind %d: run the build that wrote it, or a newer one", k)
	}
	if r.bad || len(r.b) != 0 {
		return nil, fmt.Errorf("placement command of kind %d is malformed: the log is damaged", data[1])
	}
	return c, nil
}

func (UpdateNode) kind() Kind { return KindUpdateNode }

func (c UpdateNode) appendTo(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, c.Node)
	dst = appendOptional(dst, c.Address)
	dst = appendOptional(dst, c.HTTPAddress)
	dst = appendOptional(dst, c.GatewayAddress)
	return appendOptional(dst, c.Zone)
}

func (c UpdateNode) apply(m *mutableMap) (bool, error) {
	n := m.node(c.Node)
	if n == nil {
		return false, &RuleError{Field: "node", Rule: fmt.Sprintf("must be a node of the cluster; %d is not", c.Node)}
	}
	changed := false
	set := func(dst *string, v *string) {
		if v != nil && *v != *dst {
			*dst, changed = *v, true
		}
	}
	if c.Address != nil {
		if err := checkAddress("address", *c.Address, false); err != nil {
			return false, err
		}
		for _, o := range m.Nodes {
			if o.Id != c.Node && o.Address == *c.Address {
				return false, &RuleError{Field: "address", Rule: fmt.Sprintf("must be unique; %s is that of node %s", *c.Address, o.Name)}
			}
		}
	}
	if c.HTTPAddress != nil {
		if err := checkAddress("http_address", *c.HTTPAddress, true); err != nil {
			return false, err
		}
	}
	if c.GatewayAddress != nil {
		if err := checkAddress("gateway_address", *c.GatewayAddress, true); err != nil {
			return false, err
		}
	}
	if c.Zone != nil {
		if err := checkLabel("zone", *c.Zone, true); err != nil {
			return false, err
		}
	}
	set(&n.Address, c.Address)
	set(&n.HttpAddress, c.HTTPAddress)
	set(&n.GatewayAddress, c.GatewayAddress)
	set(&n.Zone, c.Zone)
	return changed, nil
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendOptional(dst []byte, s *string) []byte {
	if s == nil {
		return append(dst, 0)
	}
	return appendString(append(dst, 1), *s)
}

// reader takes fields off the front of b; after a malformed one bad is set and
// everything further is empty.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	// One value has one encoding, so that equal commands are equal bytes.
	if n <= 0 || (n > 1 && r.b[n-1] == 0) {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) string() string {
	n := r.uvarint()
	if r.bad || n > uint64(len(r.b)) {
		r.fail()
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) optional() *string {
	if len(r.b) == 0 || r.b[0] > 1 {
		r.fail()
		return nil
	}
	set := r.b[0] == 1
	r.b = r.b[1:]
	if !set {
		return nil
	}
	return new(r.string())
}

func (r *reader) fail() { r.bad, r.b = true, nil }

package config

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Print returns the configuration in force as YAML, each line with where its
// value was written. The cluster key is left out. The result, less a key that
// came from the environment or the file itself, is a configuration file.
func (l *Loaded) Print() ([]byte, error) {
	var b bytes.Buffer
	section := ""
	for _, f := range fields() {
		parent, key, nested := strings.Cut(f.path, ".")
		indent := ""
		if nested {
			indent = "  "
			if parent != section {
				fmt.Fprintf(&b, "%s:\n", parent)
			}
			section = parent
		} else {
			key = parent
			section = ""
		}
		origin := l.Origin[f.path]
		if origin == "" {
			origin = "default"
		}
		value := f.get(&l.Config)
		if f.path == "cluster_key" {
			if l.ClusterKey != "" {
				fmt.Fprintf(&b, "# cluster_key: (set, not shown) # %s\n", origin)
			}
			continue
		}
		var text []byte
		var err error
		if list, ok := value.([]string); ok {
			n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, s := range list {
				n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s})
			}
			text, err = yaml.Marshal(n)
		} else {
			text, err = yaml.Marshal(value)
		}
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s%s: %s # %s\n", indent, key, bytes.TrimSpace(text), origin)
	}
	return b.Bytes(), nil
}

// Write returns a configuration file with the settings that differ from the
// defaults.
func Write(c Config) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	base := Default()
	root := &yaml.Node{Kind: yaml.MappingNode}
	sections := make(map[string]*yaml.Node)
	for _, f := range fields() {
		if fmt.Sprint(f.get(&c)) == fmt.Sprint(f.get(&base)) {
			continue
		}
		into, key := root, f.path
		if parent, child, nested := strings.Cut(f.path, "."); nested {
			if sections[parent] == nil {
				sections[parent] = &yaml.Node{Kind: yaml.MappingNode}
				root.Content = append(root.Content, scalar(parent), sections[parent])
			}
			into, key = sections[parent], child
		}
		var v yaml.Node
		if err := v.Encode(f.get(&c)); err != nil {
			return nil, err
		}
		into.Content = append(into.Content, scalar(key), &v)
	}
	if err := enc.Encode(root); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

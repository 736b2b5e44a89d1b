package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/yamldoc"
)

// parse reads the text of a configuration file: one YAML mapping of keys to
// scalars, lists or mappings of scalars. Anchors, aliases and tags are refused,
// so that the text can't grow.
func parse(name string, data []byte, level Level, keys []Key) ([]Setting, error) {
	fail := func(line int, format string, args ...any) error {
		where := name
		if line > 0 {
			where = fmt.Sprintf("%s:%d", name, line)
		}
		err := &Error{fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...))}
		return sandpit.WithHint(err, "write lines of KEY: VALUE; see 'sandpit help config'")
	}

	body, err := yamldoc.Parse(data)
	var broken *yamldoc.Error
	if errors.As(err, &broken) {
		return nil, fail(broken.Line, "%s", broken.Text)
	}
	var entries []*ast.MappingValueNode
	switch body := body.(type) {
	case nil:
	case *ast.MappingNode:
		entries = body.Values
	case *ast.MappingValueNode:
		entries = append(entries, body)
	default:
		return nil, fail(lineOf(body), "it must be a list of KEY: VALUE lines")
	}

	var settings []Setting
	for _, entry := range entries {
		key, ok := scalar(entry.Key)
		if !ok {
			return nil, fail(lineOf(entry), "a key must be a plain word")
		}
		line := lineOf(entry.Key)
		known, ok := find(keys, key)
		if !ok {
			return nil, sandpit.WithHint(fail(line, "unknown key %q", key), "use the long names of the flags of sandpit run; see 'sandpit help config'")
		}
		values, err := valuesOf(entry.Value, known)
		if err != nil {
			return nil, fail(line, "%s: %s", key, err)
		}
		if len(values) == 0 {
			continue // an empty list
		}
		settings = append(settings, Setting{
			Key:    key,
			Values: values,
			Origin: Origin{Level: level, Where: fmt.Sprintf("%s:%d", name, line)},
		})
	}
	return settings, nil
}

// lineOf returns the line on which a node begins, or 0.
func lineOf(node ast.Node) int {
	if tok := node.GetToken(); tok != nil && tok.Position != nil {
		return tok.Position.Line
	}
	return 0
}

func find(keys []Key, name string) (Key, bool) {
	for _, key := range keys {
		if key.Name == name {
			return key, true
		}
	}
	return Key{}, false
}

// valuesOf returns the values of a key as text.
func valuesOf(node ast.Node, key Key) ([]string, error) {
	if text, ok := scalar(node); ok {
		return []string{text}, nil
	}
	switch node := node.(type) {
	case *ast.NullNode:
		return nil, errors.New("it has no value")
	case *ast.SequenceNode:
		if key.Kind == Scalar {
			return nil, errors.New("it must be one value, not a list")
		}
		values := make([]string, 0, len(node.Values))
		for _, item := range node.Values {
			text, ok := scalar(item)
			if !ok {
				return nil, errors.New("its items must be plain values")
			}
			values = append(values, text)
		}
		return values, nil
	case *ast.MappingNode:
		return pairs(node.Values, key)
	case *ast.MappingValueNode:
		return pairs([]*ast.MappingValueNode{node}, key)
	}
	return nil, errors.New("it must be a plain value or a list of them")
}

func pairs(nodes []*ast.MappingValueNode, key Key) ([]string, error) {
	if key.Kind != Map {
		return nil, errors.New("it can't be a mapping")
	}
	values := make([]string, 0, len(nodes))
	for _, node := range nodes {
		name, ok := scalar(node.Key)
		if !ok || strings.Contains(name, "=") {
			return nil, errors.New("a name in it is not a plain word")
		}
		value, ok := scalar(node.Value)
		if !ok {
			return nil, fmt.Errorf("the value of %s must be a plain value", name)
		}
		values = append(values, name+"="+value)
	}
	return values, nil
}

// scalar returns the text of a plain value as it stands in the file, so that
// 010 and 1e3 are what the person wrote.
func scalar(node ast.Node) (string, bool) {
	switch node := node.(type) {
	case *ast.StringNode:
		return node.Value, true
	case *ast.LiteralNode:
		return node.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, true
	}
	return "", false
}

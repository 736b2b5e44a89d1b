package file

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/yamldoc"
)

// lineError is what is wrong on a line.
type lineError struct {
	line int
	text string
	hint string
}

func (e *lineError) Error() string { return e.text }

func at(node ast.Node, format string, args ...any) *lineError {
	return atToken(node.GetToken(), format, args...)
}

func atToken(tok *token.Token, format string, args ...any) *lineError {
	e := &lineError{line: 1, text: fmt.Sprintf(format, args...)}
	if tok != nil && tok.Position != nil {
		e.line = tok.Position.Line
	}
	return e
}

// within puts an error of a value on the line of its node.
func within(node ast.Node, what string, err error) error {
	e := at(node, "%s: %s", what, err)
	e.hint = sandpit.Hint(err)
	return e
}

// parseYAML returns the one mapping of a document, nil for an empty one.
func parseYAML(data []byte) (ast.Node, error) {
	root, err := yamldoc.Parse(data)
	var broken *yamldoc.Error
	if errors.As(err, &broken) {
		return nil, &lineError{line: max(broken.Line, 1), text: broken.Text}
	}
	return root, err
}

// A field is an entry of a mapping.
type field struct {
	name  string
	key   ast.Node
	value ast.Node
}

// fields returns the entries of a mapping. Anchors, aliases, merges and tags are
// refused, so that what stands in the file is all there is.
func fields(node ast.Node, what string) ([]field, error) {
	var values []*ast.MappingValueNode
	switch node := node.(type) {
	case *ast.MappingNode:
		values = node.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{node}
	default:
		return nil, at(node, "%s must be lines of NAME: VALUE", what)
	}
	var all []field
	for _, v := range values {
		name, ok := scalar(v.Key)
		if !ok {
			return nil, at(v, "a name must be a plain word")
		}
		all = append(all, field{name, v.Key, v.Value})
	}
	return all, nil
}

// items returns the plain values of a list, with their nodes.
func items(f field) ([]string, []ast.Node, error) {
	list, ok := f.value.(*ast.SequenceNode)
	if !ok {
		return nil, nil, at(f.key, "%s must be a list", f.name)
	}
	if len(list.Values) > maxItems {
		return nil, nil, at(f.key, "%s has more than %d items", f.name, maxItems)
	}
	texts := make([]string, 0, len(list.Values))
	for _, item := range list.Values {
		text, ok := scalar(item)
		if !ok {
			return nil, nil, at(item, "an item of %s must be a plain value", f.name)
		}
		texts = append(texts, text)
	}
	return texts, list.Values, nil
}

// plain returns the one plain value of a field.
func plain(f field) (string, error) {
	text, ok := scalar(f.value)
	if !ok {
		return "", at(f.key, "%s must be one plain value", f.name)
	}
	return text, nil
}

// scalar returns the text of a plain value as it stands in the file.
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

// unknown is the error of a field that there is not. Among them are those for
// what this version can't do: they are refused, never ignored.
func unknown(f field, known ...string) error {
	e := at(f.key, "unknown field %q: not supported by this version", f.name)
	e.hint = "use one of " + strings.Join(known, ", ")
	return e
}

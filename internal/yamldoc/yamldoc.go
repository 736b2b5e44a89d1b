// Package yamldoc reads files of YAML that people write. A file is one document: a
// mapping of names to values. Nothing in it is ignored: an unknown field, a second
// document, an anchor, an alias, a tag or a value of another form is an error, which
// names the file, the line and the field.
//
// The values are read from the nodes and not by the decoder of the YAML library, whose
// strict mode is not strict enough. It decodes a mapping as empty if one of its keys is a
// number, reads 010 as 8 and 1.5 as 1, accepts a field without a value, and does not say
// on which line a value is that a custom type refuses.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Bounds of a list, in items, of a mapping, in names, of a path in an error, in bytes, and of
// nesting: in brackets, and in columns of indentation.
const (
	maxItems  = 1000
	maxNames  = 5000
	maxPath   = 200
	maxDepth  = 32
	maxIndent = 64
)

// Error says what is wrong with a file, and where. It matches sandpit.ErrInvalid.
type Error struct {
	File string
	Line int // 0 if unknown
	Err  error
}

// Error returns "FILE:LINE: FIELD: what is wrong".
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Err)
}

// Unwrap returns Err and sandpit.ErrInvalid.
func (e *Error) Unwrap() []error { return []error{e.Err, sandpit.ErrInvalid} }

// Decode reads the document from r, which may have limit bytes, and gives it to read. It
// does not call read if the document is empty. The error is an *Error that has name as
// its File, unless reading from r failed.
func Decode(name string, r io.Reader, limit int64, read func(Value) error) error {
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return err
	}
	if int64(len(text)) > limit {
		return &Error{File: name, Err: fmt.Errorf("the file is longer than %s", notation.FormatSize(limit))}
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if !utf8.Valid(line) || bytes.IndexByte(line, 0) >= 0 {
			return &Error{File: name, Line: i + 1, Err: errors.New("it is not text: it has a NUL, or bytes that are not UTF-8")}
		}
	}
	body, err := parse(bytes.TrimPrefix(text, []byte("\ufeff")))
	if err == nil && body != nil {
		err = read(Value{Line: lineOf(body.GetToken()), node: body})
	}
	var e *Error
	if errors.As(err, &e) {
		e.File = name
	}
	return err
}

// parse returns what the one document of a text contains: nil if that is empty. Empty
// documents before and after it are ignored.
func parse(text []byte) (ast.Node, error) {
	tokens := lexer.Tokenize(string(text))
	if err := check(tokens); err != nil {
		return nil, err
	}
	parsed, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, syntaxError(err)
	}
	var body ast.Node
	for _, doc := range parsed.Docs {
		switch doc.Body.(type) {
		case nil:
			// The parser leaves out what follows an empty document.
			if tok := following(doc.Start); tok != nil {
				return nil, notSingle(tok)
			}
		case *ast.NullNode, *ast.CommentGroupNode:
		default:
			if body != nil {
				return nil, notSingle(doc.Body.GetToken())
			}
			body = doc.Body
		}
	}
	return body, nil
}

// check refuses what the parser should not get: deep nesting, as the memory that it takes
// grows with the square of the depth; many names in a mapping or values in a row, as the time
// grows with the square of their number; tags, anchors and aliases; and what the parser reads
// differently than YAML does.
func check(tokens token.Tokens) error {
	var open []token.Type         // the ends of the brackets that are open
	row := 0                      // values since the last indicator
	names := [maxIndent + 1]int{} // of the mapping at each column
	for _, tok := range tokens {
		indent, wrong := 0, ""
		switch tok.Type {
		case token.TagType, token.AnchorType, token.AliasType:
			return &Error{Line: lineOf(tok), Err: sandpit.WithHint(errors.New("tags (!), anchors (&) and aliases (*) are not supported"), "quote a text that begins with such a character")}
		case token.SequenceStartType, token.SequenceEndType, token.MappingStartType, token.MappingEndType, token.CollectEntryType,
			token.SequenceEntryType, token.MappingKeyType, token.MappingValueType,
			token.DirectiveType, token.DocumentHeaderType, token.DocumentEndType, token.LiteralType, token.FoldedType:
			row = 0
		case token.CommentType:
		default:
			if row++; row > maxRow {
				return &Error{Line: lineOf(tok), Err: errors.New("it is not valid YAML: a comma, a colon or a dash between values is missing")}
			}
		}
		switch tok.Type {
		case token.SequenceStartType:
			open = append(open, token.SequenceEndType)
		case token.MappingStartType:
			open = append(open, token.MappingEndType)
		case token.SequenceEndType, token.MappingEndType:
			if n := len(open); n > 0 && open[n-1] == tok.Type {
				open = open[:n-1]
			}
		case token.SequenceEntryType, token.MappingKeyType:
			indent = tok.Position.Column
		case token.MappingValueType:
			if len(open) == 0 && tok.Prev != nil {
				indent = tok.Prev.Position.Column // of the name
			}
			if len(open) > 0 && touches(tok.Next, tok) && tok.Prev != nil && tok.Prev.Type == token.StringType {
				wrong = "write a space behind the colon, or quote the text"
			}
		case token.StringType:
			switch {
			case len(open) == 0:
			case strings.ContainsAny(tok.Value, "[]{}"):
				wrong = "quote the text that has a bracket in it"
			case strings.Contains(tok.Value, ": "):
				wrong = "write a comma before the next name, or quote the text"
			}
		}
		if wrong != "" {
			return &Error{Line: lineOf(tok), Err: sandpit.WithHint(errors.New("it is not valid YAML: a text in brackets is ambiguous"), wrong)}
		}
		if tok.Type == token.MappingValueType && 0 < indent && indent <= maxIndent {
			clear(names[indent+1:]) // of mappings that have ended
			if names[indent]++; names[indent] > maxNames {
				return &Error{Line: lineOf(tok), Err: fmt.Errorf("a mapping has more than %d names", maxNames)}
			}
		}
		if len(open) > maxDepth || indent > maxIndent {
			return &Error{Line: lineOf(tok), Err: fmt.Errorf("it is nested too deeply: at most %d brackets and %d columns of indentation are allowed", maxDepth, maxIndent)}
		}
	}
	return nil
}

// maxRow is how many values can follow each other: a value and the next name.
const maxRow = 2

// touches reports whether tok is a value right behind a colon.
func touches(tok, colon *token.Token) bool {
	return tok != nil && tok.Position.Line == colon.Position.Line && tok.Position.Column == colon.Position.Column+1
}

// syntaxError returns the parser's error with its first line as text.
func syntaxError(err error) error {
	var broken interface {
		GetToken() *token.Token
		GetMessage() string
	}
	line, text := 0, err.Error()
	if errors.As(err, &broken) {
		line, text = lineOf(broken.GetToken()), broken.GetMessage()
	}
	text, _, _ = strings.Cut(text, "\n")
	return &Error{Line: line, Err: errors.New("it is not valid YAML: " + text)}
}

func notSingle(tok *token.Token) error {
	return &Error{Line: lineOf(tok), Err: errors.New("it must be a single document")}
}

func lineOf(tok *token.Token) int {
	if tok == nil || tok.Position == nil {
		return 0
	}
	return tok.Position.Line
}

// following returns the first token after tok that is not a comment, or nil.
func following(tok *token.Token) *token.Token {
	if tok != nil {
		tok = tok.Next
	}
	for tok != nil && tok.Type == token.CommentType {
		tok = tok.Next
	}
	return tok
}

// A Value is the document, the value of a field, or an item of a list.
type Value struct {
	Name string // of the field
	Line int    // of the name or the item

	path string // of names and indexes, from the document to the value
	node ast.Node
}

// Fail returns err, with its hint, as an *Error at the value.
func (v Value) Fail(err error) error {
	if v.path != "" {
		err = fmt.Errorf("%s: %w", notation.Printable(v.path, maxPath), err)
	}
	return &Error{Line: v.Line, Err: err}
}

var errNoValue = errors.New("it has no value")

// IsNull reports whether the value is missing, or ~.
func (v Value) IsNull() bool { return v.node.Type() == ast.NullType }

// IsList reports whether the value is a list.
func (v Value) IsList() bool { return v.node.Type() == ast.SequenceType }

// IsMapping reports whether the value is a mapping.
func (v Value) IsMapping() bool {
	return v.node.Type() == ast.MappingType || v.node.Type() == ast.MappingValueType
}

// Text returns a plain value as text, without its quotes and escapes. Numbers and words are
// as they are in the file, so that 010 and 1e3 are what the person wrote.
func (v Value) Text() (string, error) {
	if text, ok := plain(v.node); ok {
		return text, nil
	}
	if v.IsNull() {
		return "", v.Fail(sandpit.WithHint(errNoValue, "write a value behind it, or remove the line"))
	}
	return "", v.Fail(errors.New("it must be one plain value"))
}

func plain(node ast.Node) (string, bool) {
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

// Items returns the items of a list.
func (v Value) Items() ([]Value, error) {
	list, ok := v.node.(*ast.SequenceNode)
	if !ok {
		return nil, v.Fail(errors.New("it must be a list"))
	}
	if len(list.Values) > maxItems {
		return nil, v.Fail(fmt.Errorf("it has more than %d items", maxItems))
	}
	items := make([]Value, len(list.Values))
	for i, node := range list.Values {
		items[i] = Value{v.Name, lineOf(node.GetToken()), fmt.Sprintf("%s[%d]", v.path, i), node}
	}
	return items, nil
}

// Fields returns the fields of a mapping, in the order of the file. A name without a value
// is an error and not an empty mapping: most likely the lines below it are missing.
func (v Value) Fields() ([]Value, error) {
	var entries []*ast.MappingValueNode
	switch node := v.node.(type) {
	case *ast.NullNode:
		return nil, v.Fail(sandpit.WithHint(errNoValue, "write lines of NAME: VALUE below it, indented, or {} if there are none, or remove the line"))
	case *ast.MappingNode:
		entries = node.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{node}
	default:
		return nil, v.Fail(errors.New("it must be lines of NAME: VALUE"))
	}
	fields := make([]Value, len(entries))
	for i, entry := range entries {
		name, ok := plain(entry.Key)
		if !ok {
			return nil, v.Fail(errors.New("a name in it is not a plain word"))
		}
		fields[i] = Value{name, lineOf(entry.Key.GetToken()), strings.TrimPrefix(v.path+"."+name, "."), entry.Value}
	}
	return fields, nil
}

// Mapping returns a function that reads a mapping: each field by the function of its
// name. A field that has none is an error.
func Mapping(of map[string]func(Value) error) func(Value) error {
	return func(v Value) error {
		fields, err := v.Fields()
		for i := 0; i < len(fields) && err == nil; i++ {
			read, known := of[fields[i].Name]
			if !known {
				v.Line = fields[i].Line
				return v.Fail(sandpit.WithHint(fmt.Errorf("unknown field %.80q", fields[i].Name), "use one of "+strings.Join(slices.Sorted(maps.Keys(of)), ", ")))
			}
			err = read(fields[i])
		}
		return err
	}
}

// Parse returns a function that sets *into to what parse makes of a plain value.
func Parse[T any](into *T, parse func(string) (T, error)) func(Value) error {
	return func(v Value) error {
		text, err := v.Text()
		if err != nil {
			return err
		}
		parsed, err := parse(text)
		if err != nil {
			return v.Fail(err)
		}
		*into = parsed
		return nil
	}
}

// List returns a function that sets *into to what parse makes of the items of a list. An
// empty list is not nil.
func List[T any](into *[]T, parse func(string) (T, error)) func(Value) error {
	return func(v Value) error {
		items, err := v.Items()
		if err != nil {
			return err
		}
		all := make([]T, len(items))
		for i, item := range items {
			if err := Parse(&all[i], parse)(item); err != nil {
				return err
			}
		}
		*into = all
		return nil
	}
}

// String parses any text.
func String(text string) (string, error) { return text, nil }

// Bool parses true and false.
func Bool(text string) (bool, error) {
	if text != "true" && text != "false" {
		return false, errors.New("it must be true or false")
	}
	return text == "true", nil
}

// Int returns a function that parses a whole number from low to high.
func Int(low, high int) func(string) (int, error) {
	return func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("it must be a whole number from %d to %d", low, high)
		}
		return n, nil
	}
}

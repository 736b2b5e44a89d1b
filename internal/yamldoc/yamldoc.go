// Package yamldoc reads files of YAML that people write: a single document each.
package yamldoc

import (
	"errors"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Error is why a text is not a single document of YAML.
type Error struct {
	Line int // where; 0 when that can't be told
	Text string
}

// Error returns Text.
func (e *Error) Error() string { return e.Text }

// Parse returns what the one document of a text holds: nil for an empty one. The
// error is an *Error. Empty documents before and behind it are none.
func Parse(text []byte) (ast.Node, error) {
	parsed, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, syntaxError(err)
	}
	var body ast.Node
	for _, doc := range parsed.Docs {
		switch doc.Body.(type) {
		case nil:
			// The parser leaves out what follows an empty document.
			if tok := behind(doc.Start); tok != nil {
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

// syntaxError is what the parser says, on one line.
func syntaxError(err error) *Error {
	var broken interface {
		GetToken() *token.Token
		GetMessage() string
	}
	e := &Error{Text: err.Error()}
	if errors.As(err, &broken) {
		e.Line, e.Text = lineOf(broken.GetToken()), broken.GetMessage()
	}
	e.Text, _, _ = strings.Cut(e.Text, "\n")
	e.Text = "it is not valid YAML: " + e.Text
	return e
}

func notSingle(tok *token.Token) *Error {
	return &Error{Line: lineOf(tok), Text: "it must be a single document"}
}

func lineOf(tok *token.Token) int {
	if tok == nil || tok.Position == nil {
		return 0
	}
	return tok.Position.Line
}

// behind returns what follows a token but for comments, or nil.
func behind(tok *token.Token) *token.Token {
	if tok != nil {
		tok = tok.Next
	}
	for tok != nil && tok.Type == token.CommentType {
		tok = tok.Next
	}
	return tok
}

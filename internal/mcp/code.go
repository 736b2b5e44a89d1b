package mcp

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
)

type codeIn struct {
	Sandbox  string  `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Code     string  `json:"code" jsonschema:"source code. The value of its last expression is returned, as in a notebook"`
	Language string  `json:"language,omitempty" jsonschema:"programming language. Default: python"`
	Context  string  `json:"context,omitempty" jsonschema:"ID of a context that an earlier result has named. Default: that of the language"`
	Timeout  float64 `json:"timeout_seconds,omitempty" jsonschema:"seconds after which the code is interrupted. Default: 300"`
}

func (r *registry) addCode() {
	add(r, tool{
		name: "run_code", group: groupCommands, title: "Run code", destructive: true, openWorld: true,
		text: "Run code in a sandbox as in a notebook: variables, imports and functions stay for the next call with the same language. Returns what it prints, the value of its last expression, images that it displays, and errors with their traceback. The sandbox's image must have the interpreter.",
		tune: func(s *jsonschema.Schema) {
			oneOf(s, "language", slices.Concat(sandpit.Languages(), sandpit.StatelessLanguages())...)
			between(s, "timeout_seconds", 0.1, maxSeconds)
		},
	}, runCode)
}

// shown collects what code displays.
type shown struct {
	mu       sync.Mutex
	values   clip          // guarded by mu, as the next three
	pictures []sdk.Content // of at most maxPicture bytes together
	size     int           // of the pictures, in bytes
	left     int           // pictures that were left out
}

func (s *shown) add(out sandpit.CodeOutput) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range [...]struct {
		data []byte
		kind string
	}{{out.PNG, "image/png"}, {out.JPEG, "image/jpeg"}} {
		switch {
		case len(p.data) == 0:
		case s.size+len(p.data) > maxPicture:
			s.left++
		default:
			s.size += len(p.data)
			s.pictures = append(s.pictures, &sdk.ImageContent{Data: slices.Clone(p.data), MIMEType: p.kind})
		}
	}
	for _, text := range []string{out.Markdown, out.Text, out.LaTeX, string(out.JSON), out.HTML, out.SVG} {
		if text != "" {
			s.values.write([]byte(text))
			s.values.write([]byte("\n"))
			break // the others are the same value in other formats
		}
	}
}

// runCode carries out run_code.
func runCode(ctx context.Context, c *call, in codeIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	out, values := new(output), new(shown)
	code := sandpit.Code{
		Source: in.Code, Language: in.Language, Context: in.Context, Timeout: defaultTimeout,
		Stdout: out.stream(&out.stdout), Stderr: out.stream(&out.stderr), Output: values.add,
	}
	if in.Timeout > 0 {
		code.Timeout = seconds(in.Timeout)
	}
	stop := c.progress(ctx, out.last)
	defer stop()
	res, err := sb.RunCode(ctx, code)
	if err != nil {
		return nil, err
	}
	a := say("%s after %s\n", codeEnding(res), res.Wall.Round(time.Millisecond))
	if res.StateLost != "" {
		a.addf("[it began without the state of earlier runs: %s]\n", res.StateLost)
	}
	cut := res.Truncated
	if e := res.Error; e != nil {
		text, left := clipText(strings.TrimSpace(fmt.Sprintf("%s: %s\n%s", e.Name, e.Value, e.Traceback)), budget/4)
		a.block("error", text)
		cut = cut || left
	}
	if values.values.size > 0 {
		text, left := values.values.text(budget / 4)
		a.block("value", text)
		cut = cut || left
	}
	if out.tell(a) || cut {
		a.addf("[output was left out: print less%s]\n", c.where("read_file", ", or write it to a file and call read_file"))
	}
	if values.left > 0 {
		a.addf("[%d images were left out%s]\n", values.left, c.where("read_file", ": save them to files and call read_file"))
	}
	a.parts = values.pictures
	return a, nil
}

// codeEnding says how code ended.
func codeEnding(res sandpit.CodeResult) string {
	text := "ended"
	switch {
	case res.TimedOut:
		text = "was interrupted because its time was over"
	case res.Error != nil:
		text = "ended with an error"
	case res.ExitCode != 0:
		text = fmt.Sprintf("ended with exit code %d", res.ExitCode)
	}
	if res.InterpreterEnd != "" {
		text += "; the interpreter ended, and its state is lost: " + res.InterpreterEnd
	}
	return text
}

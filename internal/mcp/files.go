package mcp

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

type readIn struct {
	Sandbox string `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Path    string `json:"path" jsonschema:"path of the file; relative paths begin in the working directory of the sandbox"`
	Line    int    `json:"line,omitempty" jsonschema:"number of the first line to read. Default: 1"`
	Lines   int    `json:"lines,omitempty" jsonschema:"how many lines to read. Default: as many as fit into a result"`
}

type writeIn struct {
	Sandbox  string `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Path     string `json:"path" jsonschema:"path of the file; relative paths begin in the working directory of the sandbox"`
	Content  string `json:"content" jsonschema:"the whole content of the file"`
	Encoding string `json:"encoding,omitempty" jsonschema:"encoding of content: text or base64. Default: text"`
	Append   bool   `json:"append,omitempty" jsonschema:"add the content at the end of the file"`
	Mode     string `json:"mode,omitempty" jsonschema:"permissions of a new file in octal, such as 0755. Default: 0644"`
}

type editIn struct {
	Sandbox string `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Path    string `json:"path" jsonschema:"path of the file"`
	Old     string `json:"old" jsonschema:"exact text to replace; it must occur exactly once, unless all is set"`
	New     string `json:"new" jsonschema:"text to put in its place"`
	All     bool   `json:"all,omitempty" jsonschema:"replace every occurrence"`
}

type listFilesIn struct {
	Sandbox string `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Path    string `json:"path,omitempty" jsonschema:"directory. Default: the working directory of the sandbox"`
	Glob    string `json:"glob,omitempty" jsonschema:"pattern of paths below the directory, such as **/*.go. Default: all"`
	Depth   int    `json:"depth,omitempty" jsonschema:"how many levels to list. Default: 1, or all with glob"`
	After   string `json:"after,omitempty" jsonschema:"position that an earlier result has named for the next page"`
}

type searchIn struct {
	Sandbox    string `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Pattern    string `json:"pattern" jsonschema:"regular expression (RE2)"`
	Path       string `json:"path,omitempty" jsonschema:"directory to search, with all below it. Default: the working directory of the sandbox"`
	Glob       string `json:"glob,omitempty" jsonschema:"pattern of paths of files to search, such as **/*.go. Default: all"`
	Fixed      bool   `json:"fixed,omitempty" jsonschema:"pattern is a text, not a regular expression"`
	IgnoreCase bool   `json:"ignore_case,omitempty" jsonschema:"ignore upper and lower case"`
	Context    int    `json:"context,omitempty" jsonschema:"lines to show before and after each match"`
}

// Bounds of work on files.
const (
	maxRead    = 64 << 20 // bytes of a file that read_file passes over to find a line
	maxPicture = 2 << 20  // bytes of the images that a result has
	maxMatches = 500      // lines of a result of search_files
)

func (r *registry) addFiles() {
	add(r, tool{
		name: "read_file", group: groupFiles, title: "Read a file", readOnly: true, idempotent: true,
		text: "Read a text file of a sandbox, or a part of it by lines. Images (PNG, JPEG, GIF, WebP) are returned as images. The content is exact, without line numbers.",
		tune: func(s *jsonschema.Schema) {
			between(s, "line", 1, 1<<31)
			between(s, "lines", 1, 1<<31)
		},
	}, readFile)
	add(r, tool{
		name: "write_file", group: groupFiles, title: "Write a file", destructive: true, idempotent: true,
		text: "Create a file of a sandbox or replace the whole of it, at once and atomically. Missing directories are created. To change a part of a file, use edit_file.",
		tune: func(s *jsonschema.Schema) {
			oneOf(s, "encoding", "text", "base64")
			property(s, "mode").Pattern = "^0?[0-7]{3}$"
		},
	}, writeFile)
	add(r, tool{
		name: "edit_file", group: groupFiles, title: "Edit a file", destructive: true,
		text: "Replace an exact text in a file of a sandbox by another one. It fails, and changes nothing, if the text does not occur, or more than once without all: give more of the text around it then. Read the file first.",
	}, editFile)
	add(r, tool{
		name: "list_files", group: groupFiles, title: "List files", readOnly: true, idempotent: true,
		text: "List a directory of a sandbox, or find files by a pattern of their paths. Each line has the permissions, the size in bytes, the time of the last change and the path; directories end with a slash.",
		tune: func(s *jsonschema.Schema) { between(s, "depth", 1, 1000) },
	}, listFiles)
	add(r, tool{
		name: "search_files", group: groupFiles, title: "Search files", readOnly: true, idempotent: true,
		text: "Search the content of files of a sandbox by a regular expression. Returns matching lines as PATH:NUMBER:TEXT, and lines around them as PATH-NUMBER-TEXT.",
		tune: func(s *jsonschema.Schema) { between(s, "context", 0, 20) },
	}, searchFiles)
}

// open opens a file of a sandbox.
func open(ctx context.Context, sb sandpit.Sandbox, name string) (io.ReadCloser, error) {
	f, err := sb.Files().Open(ctx, name, 0, -1)
	if errors.Is(err, sandpit.ErrIsDirectory) {
		err = sandpit.WithHint(err, "call list_files")
	}
	return f, err
}

// readFile carries out read_file.
func readFile(ctx context.Context, c *call, in readIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	f, err := open(ctx, sb, in.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := bufio.NewReaderSize(f, 64<<10)
	start, err := buf.Peek(64 << 10)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if kind := http.DetectContentType(start); isPicture(kind) {
		return picture(ctx, sb, in.Path, kind, buf)
	}
	if isBinary(start) {
		info, err := sb.Files().Stat(ctx, in.Path)
		if err != nil {
			return nil, err
		}
		uri := fileURI(sb.Name(), in.Path)
		a := say("%s is not text: it has %d bytes. Read the resource %s%s.", in.Path, info.Size, uri, c.where("run_command", ", or use run_command with a program that understands it"))
		a.link(uri, path.Base(in.Path), octets)
		return a, nil
	}
	return readLines(c, buf, in)
}

// isBinary reports whether the start of a file is not text. Its last character may be incomplete.
func isBinary(start []byte) bool {
	if strings.ContainsRune(string(start), 0) {
		return true
	}
	for range utf8.UTFMax - 1 {
		if utf8.Valid(start) {
			return false
		}
		if len(start) > 0 {
			start = start[:len(start)-1]
		}
	}
	return !utf8.Valid(start)
}

func isPicture(kind string) bool {
	switch kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return true
	}
	return false
}

// picture returns a file that is an image.
func picture(ctx context.Context, sb sandpit.Sandbox, name, kind string, r io.Reader) (*answer, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPicture+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxPicture {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "the image %s has more than %s", fault.Clip(name), notation.FormatSize(maxPicture)), "make a smaller one with run_command")
	}
	a := say("%s, %s", name, kind)
	a.parts = append(a.parts, &sdk.ImageContent{Data: data, MIMEType: kind})
	return a, ctx.Err()
}

// readLines returns the lines that are asked for, as far as they fit.
func readLines(c *call, r *bufio.Reader, in readIn) (*answer, error) {
	number, passed := 1, 0
	for ; number < in.Line; number++ {
		n, end, err := passLine(r)
		if err != nil {
			return nil, err
		}
		if end {
			if n == 0 {
				number--
			}
			return nil, tooFewLines(number)
		}
		if passed += n; passed > maxRead {
			return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "line %d is more than %s into the file", in.Line, notation.FormatSize(maxRead)), "use run_command with sed -n or tail")
		}
	}
	a := new(answer)
	for shown := 0; in.Lines == 0 || shown < in.Lines; shown++ {
		line, whole, err := readLine(r, budget-a.text.Len())
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		switch {
		case !whole && shown == 0:
			a.addf("%s\n[line %d is longer than a result%s]", clean(string(line)), number, c.where("run_command", ": use run_command with cut -b to read the rest of it"))
			return a, nil
		case !whole:
			a.addf("[the file goes on: call read_file with line=%d]", number)
			return a, nil
		case len(line) == 0 && shown == 0 && number > 1:
			return nil, tooFewLines(number - 1)
		case len(line) == 0 && shown == 0:
			return say("[the file is empty]"), nil
		}
		a.text.Write(line)
		if err != nil {
			return a, nil
		}
		number++
	}
	if _, err := r.Peek(1); err == nil {
		a.addf("[the file goes on: call read_file with line=%d]", number)
	}
	return a, nil
}

func tooFewLines(n int) error {
	return fault.Invalidf("the argument line: the file has only %d lines", n)
}

// passLine passes over a line, and reports its length and whether the file ends with it.
func passLine(r *bufio.Reader) (n int, end bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		n += len(part)
		switch {
		case err == nil:
			return n, false, nil
		case errors.Is(err, bufio.ErrBufferFull):
			if n > maxRead {
				return n, false, nil
			}
		case errors.Is(err, io.EOF):
			return n, true, nil
		default:
			return n, false, err
		}
	}
}

// readLine reads a line with its end. If it has more than so many bytes, it returns these, and that they are not the whole line.
func readLine(r *bufio.Reader, most int) (line []byte, whole bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > most {
			return append(line, part[:most-len(line)]...), false, nil
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, true, err
		}
	}
}

// writeFile carries out write_file.
func writeFile(ctx context.Context, c *call, in writeIn) (*answer, error) {
	content := io.Reader(strings.NewReader(in.Content))
	if in.Encoding == "base64" {
		data, err := base64.StdEncoding.DecodeString(in.Content)
		if err != nil {
			return nil, badArgument("content", "it is not base64")
		}
		content = strings.NewReader(string(data))
	}
	opt := sandpit.WriteOptions{Append: in.Append, Parents: true}
	if in.Mode != "" {
		var bits uint64
		if _, err := fmt.Sscanf(in.Mode, "%o", &bits); err != nil {
			return nil, badArgument("mode", "it is not an octal number")
		}
		opt.Mode = notation.ParseModeBits(bits)
	}
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	n, err := sb.Files().Write(ctx, in.Path, content, opt)
	if err != nil {
		return nil, err
	}
	return say("wrote %d bytes to %s", n, in.Path), nil
}

// editFile carries out edit_file.
func editFile(ctx context.Context, c *call, in editIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := sb.Files().Edit(ctx, in.Path, []sandpit.Edit{{Old: in.Old, New: in.New, All: in.All}}); err != nil {
		return nil, err
	}
	return say("edited %s", in.Path), nil
}

// listFiles carries out list_files.
func listFiles(ctx context.Context, c *call, in listFilesIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	after, err := base64.RawURLEncoding.DecodeString(in.After)
	if err != nil {
		return nil, badArgument("after", "no result has named this position")
	}
	q := sandpit.FindQuery{Glob: in.Glob, Depth: in.Depth, After: string(after)}
	if q.Depth == 0 && q.Glob == "" {
		q.Depth = 1
	}
	root := in.Path
	if root == "" {
		root = "."
	}
	entries, more, err := sb.Files().Find(ctx, root, q)
	if err != nil {
		return nil, err
	}
	a := new(answer)
	last := q.After
	for _, e := range entries {
		name := e.Name
		switch {
		case e.IsDir():
			name += "/"
		case e.Target != "":
			name += " -> " + e.Target
		}
		line := fmt.Sprintf("%s %9d %s %s\n", e.Mode, e.Size, e.ModTime.UTC().Format(time.DateTime), printable(name))
		if a.text.Len()+len(line) > budget {
			more = true
			break
		}
		a.text.WriteString(line)
		last = e.Name
	}
	switch {
	case more:
		a.addf("[there are more: call list_files with after=%q]\n", base64.RawURLEncoding.EncodeToString([]byte(last))) // names may be no text
	case a.text.Len() == 0:
		a.addf("there are no such files\n")
	}
	return a, nil
}

// printable quotes names of files with characters that would be taken for something else in a list.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
		return fmt.Sprintf("%q", name)
	}
	return name
}

// searchFiles carries out search_files.
func searchFiles(ctx context.Context, c *call, in searchIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	root := in.Path
	if root == "" {
		root = "."
	}
	res, err := sb.Files().Grep(ctx, root, sandpit.GrepQuery{Pattern: in.Pattern, Fixed: in.Fixed, IgnoreCase: in.IgnoreCase, Glob: in.Glob, Context: in.Context, Limit: maxMatches})
	if err != nil {
		return nil, err
	}
	a := new(answer)
	for _, l := range res.Lines {
		sep := "-"
		if l.Match {
			sep = ":"
		}
		line := fmt.Sprintf("%s%s%d%s%s\n", printable(l.Path), sep, l.Line, sep, l.Text)
		if a.text.Len()+len(line) > budget {
			res.Truncated = true
			break
		}
		a.text.WriteString(line)
	}
	switch {
	case res.Truncated:
		a.addf("[there are more matches: search with a narrower pattern, glob or path]\n")
	case a.text.Len() == 0:
		a.addf("nothing matches\n")
	}
	return a, nil
}

package interpreter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// The lines of JSON of a channel. The program greets each new connection, when no run is in
// progress. The host then sends a request, and the program any number of outputs, and done. The host
// reads as many outputs as a run may have, and then looks for done only.

// request asks for a run.
type request struct {
	Begin string   `json:"begin"` // the nonce of the mark at the start
	Run   string   `json:"run"`   // and at the end
	Code  string   `json:"code"`
	Env   []string `json:"env,omitempty"`
}

// message is a line from the program. One of the pointers and Done is set.
type message struct {
	// Hello is 1: the version of the channel. The program repeats how it was started.
	Hello int             `json:"hello"`
	Dir   string          `json:"dir"`
	Env   json.RawMessage `json:"env"`  // a list of strings
	Runs  *int            `json:"runs"` // how many there were; nil in programs of earlier versions

	Output    *output `json:"output"`
	After     int     `json:"after"`     // the number of its place in standard output; 0: that has none
	Truncated bool    `json:"truncated"` // some of it is missing

	Done   string     `json:"done"` // the nonce
	Count  int        `json:"count"`
	Marked int        `json:"marked"` // the outputs that have the mark: 1, 2 or their sum
	Error  *codeError `json:"error"`
	Unable bool       `json:"unable"` // the interpreter can't run the language; see language.tooOld

	exitCode int // of the last command, of a bash
}

type codeError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

type output struct {
	Main       bool            `json:"main"`
	Text       string          `json:"text"`
	HTML       string          `json:"html"`
	Markdown   string          `json:"markdown"`
	SVG        string          `json:"svg"`
	LaTeX      string          `json:"latex"`
	JavaScript string          `json:"javascript"`
	PNG        []byte          `json:"png"`
	JPEG       []byte          `json:"jpeg"`
	PDF        []byte          `json:"pdf"`
	JSON       json.RawMessage `json:"json"`
	Data       json.RawMessage `json:"data"`
	Chart      json.RawMessage `json:"chart"`
	Extra      json.RawMessage `json:"extra"` // an object of strings
}

// Bounds of what comes on a channel. The longest line is an output.
const (
	maxLine  = sandpit.MaxCodeOutput
	maxError = 1 << 20  // bytes of the parts of an error
	maxDir   = 4 << 10  // bytes of the directory of a greeting, as of any path (PATH_MAX)
	maxEnv   = 64 << 10 // bytes of JSON of its environment
	maxExtra = 32       // other formats of an output
	freeLine = 64 << 10
)

// errForged is the error of what no program of this package sends.
var errForged = errors.New("the code wrote to the connection of its interpreter")

// maxRun bounds the bytes of all messages of a run, as Limits.Output does by default those of what it prints: reading them
// takes the time of the server.
const maxRun = 1 << 30

// errTooMuch ends a run that sends more.
var errTooMuch = errors.New("the code displayed more than 1 GiB")

// bounded reads at most left bytes.
type bounded struct {
	from io.Reader
	left int64
}

// Read reads what there is.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooMuch
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// reader reads messages.
type reader struct {
	in     *bufio.Reader
	charge func(n int64) error // n bytes more, or, if it is negative, fewer
	only   []byte              // unless empty, lines without this near their beginning are skipped
}

func newReader(r io.Reader, charge func(int64) error) *reader {
	return &reader{in: bufio.NewReaderSize(r, 16<<10), charge: charge}
}

// next reads a message. Of a line that is too long, or for which there is no memory, only Truncated is
// set. release gives the memory back.
func (r *reader) next() (m message, release func(), err error) {
	line, charged, err := r.line()
	release = func() {
		if charged > 0 {
			_ = r.charge(-charged)
		}
	}
	switch {
	case err != nil:
	case line == nil:
		m.Truncated = true
	case !utf8.Valid(line) || json.Unmarshal(line, &m) != nil: // each wrong byte would become three
		err = errForged
	case charged > 0 && m.Output != nil && len(m.Output.Extra) > freeLine:
		if more := extraCost * int64(len(m.Output.Extra)); r.charge(more) == nil {
			charged += more
		} else {
			m = message{Truncated: true}
		}
	}
	if e := m.Error; e != nil && len(e.Name)+len(e.Value)+len(e.Traceback) > maxError {
		m.Error = &codeError{Name: fault.Clip(e.Name), Value: fault.Clip(e.Value)}
	}
	if err != nil {
		release()
		return message{}, func() {}, err
	}
	return m, release, nil
}

// The most memory that a byte of a long line takes at a time, in halves of a byte: the line is read (1.25 while it grows,
// and 1 that it grows from), decoded (1 for the values, and 1 for the text that is being decoded), let go, and encoded for
// a client (1.25 for a text, and 1). A byte of the other formats is held in the buffers of another decoder, too.
const (
	lineCost  = 7
	extraCost = 3
)

// costOf returns the memory that a line of n bytes takes. sep counts the characters of it that JSON always escapes, and
// which so become twice as long.
func costOf(n, sep int) int64 { return lineCost * int64(n+3*sep) / 2 }

// line reads a line, or nil if it is too long or there is no memory for it.
func (r *reader) line() (line []byte, charged int64, err error) {
	part, err := r.in.ReadSlice('\n')
	for len(r.only) > 0 && !bytes.Contains(part, r.only) && (err == nil || errors.Is(err, bufio.ErrBufferFull)) {
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.in.ReadSlice('\n')
		}
		if err == nil {
			part, err = r.in.ReadSlice('\n')
		}
	}
	if !errors.Is(err, bufio.ErrBufferFull) {
		return part, 0, err
	}
	long, wide := bytes.Clone(part), 0
	skipped := false
	for errors.Is(err, bufio.ErrBufferFull) {
		part, err = r.in.ReadSlice('\n')
		wide += bytes.Count(part, []byte("\xe2\x80")) // of U+2028 and U+2029
		if size := len(long) + len(part); !skipped && size > freeLine {
			need := costOf(size, wide)
			if skipped = size > maxLine || r.charge(need-charged) != nil; !skipped {
				charged = need
			}
		}
		if skipped {
			long = nil
			continue
		}
		long = append(long, part...)
	}
	if skipped {
		return nil, charged, err
	}
	return long, charged, err
}

// env returns the environment of a greeting.
func (m *message) env() (env []string) {
	if len(m.Env) <= maxEnv {
		_ = json.Unmarshal(m.Env, &env) // something else is none
	}
	return env
}

// extra returns the other formats. Small values could be very many, so they are read one by one.
func (o *output) extra() map[string]string {
	in := json.NewDecoder(bytes.NewReader(o.Extra))
	if first, err := in.Token(); err != nil || first != json.Delim('{') {
		return nil
	}
	all := map[string]string{}
	for in.More() && len(all) < maxExtra {
		name, err := in.Token()
		value, err2 := in.Token()
		text, ok := value.(string)
		if err != nil || err2 != nil || !ok {
			break
		}
		if name, ok := name.(string); ok {
			all[name] = text
		}
	}
	return all
}

func (o *output) sandpit() sandpit.CodeOutput {
	return sandpit.CodeOutput{
		Main: o.Main, Text: o.Text, HTML: o.HTML, Markdown: o.Markdown, SVG: o.SVG, LaTeX: o.LaTeX, JavaScript: o.JavaScript,
		PNG: o.PNG, JPEG: o.JPEG, PDF: o.PDF, JSON: o.JSON, Data: o.Data, Chart: o.Chart, Extra: o.extra(),
	}
}

package e2b

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// contextsPath is the path of the interpreter's contexts.
const contextsPath = "/contexts"

// onInterpreter reports whether a path is one of the code interpreter.
func onInterpreter(path string) bool {
	return path == "/execute" || path == contextsPath || strings.HasPrefix(path, contextsPath+"/")
}

// codeRoutes returns the routes of the code interpreter, which E2B serves on a port of its own.
func codeRoutes() []route {
	const one = contextsPath + "/{context}"
	return []route{
		{method: http.MethodPost, path: "/execute", id: "runCode", audited: true, handle: runCode},
		{method: http.MethodPost, path: contextsPath, id: "createContext", handle: createContext},
		{method: http.MethodGet, path: contextsPath, id: "listContexts", handle: listContexts},
		{method: http.MethodDelete, path: one, id: "removeContext", vital: true, handle: removeContext},
		{method: http.MethodPost, path: one + "/restart", id: "restartContext", handle: restartContext},
	}
}

// executeRequest is the request to run code.
type executeRequest struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id"`
	Language string            `json:"language"`
	Env      map[string]string `json:"env_vars"`
}

// environment returns variables as "KEY=VALUE".
func environment(vars map[string]string) (env []string) {
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name])
	}
	return env
}

// lines sends lines of JSON. Its methods are safe for concurrent use.
type lines struct {
	c     *call
	mu    sync.Mutex
	began bool  // guarded by mu
	first any   // the line that precedes the next one, or nil; guarded by mu
	err   error // of a client that has gone; guarded by mu
}

// send sends a line.
func (l *lines) send(v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begin()
	if l.err != nil {
		return l.err
	}
	encoder := json.NewEncoder(l.c.W)
	encoder.SetEscapeHTML(false) // a value must not become longer: see interpreter.costOf
	if l.first != nil {
		if l.err = encoder.Encode(l.first); l.err != nil {
			return l.err
		}
		l.first = nil
	}
	if l.err = encoder.Encode(v); l.err == nil {
		l.err = l.c.W.FlushError()
	}
	return l.err
}

// beginAfter is the time after which the answer to a run begins, although nothing has come of it yet:
// SDKs count the time until then as that of the request. Runs that can't be begun fail earlier.
const beginAfter = 200 * time.Millisecond

// begin begins the answer. Precondition: l.mu is held.
func (l *lines) begin() {
	if !l.began && l.err == nil {
		l.began = true
		l.c.W.Header().Set("Content-Type", "application/json")
		l.err = l.c.W.FlushError()
	}
}

// hasBegun reports whether the answer has begun. If not, nothing will begin it.
func (l *lines) hasBegun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.began {
		l.err = errEnded
	}
	return l.began
}

// end makes the answer stay as it is.
func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = errEnded
	}
}

// textLine is a line with output.
type textLine struct {
	Type string `json:"type"` // stdout or stderr
	Text string `json:"text"`
	Time int64  `json:"timestamp"` // in nanoseconds since 1970
}

// text sends a stream of output. It holds back the beginning of a character whose rest is still to come.
type text struct {
	l    *lines
	kind string
	rest []byte
}

func (t *text) Write(b []byte) (int, error) {
	all := append(t.rest, b...)
	end := len(all)
	for cut := 1; cut < utf8.UTFMax && cut <= len(all); cut++ {
		if r := all[len(all)-cut]; utf8.RuneStart(r) {
			if !utf8.FullRune(all[len(all)-cut:]) {
				end = len(all) - cut
			}
			break
		}
	}
	t.rest = slices.Clone(all[end:])
	if end == 0 {
		return len(b), nil
	}
	return len(b), t.l.send(textLine{t.kind, strings.ToValidUTF8(string(all[:end]), "�"), time.Now().UnixNano()})
}

// flush sends what was held back.
func (t *text) flush() {
	if len(t.rest) > 0 {
		_ = t.l.send(textLine{t.kind, "�", time.Now().UnixNano()}) // the client may have left
	}
}

// result is a value that code displays.
type result struct {
	Type       string            `json:"type"` // result
	Main       bool              `json:"is_main_result"`
	Text       *string           `json:"text,omitempty"`
	HTML       string            `json:"html,omitempty"`
	Markdown   string            `json:"markdown,omitempty"`
	SVG        string            `json:"svg,omitempty"`
	LaTeX      string            `json:"latex,omitempty"`
	JavaScript string            `json:"javascript,omitempty"`
	PNG        []byte            `json:"png,omitempty"`
	JPEG       []byte            `json:"jpeg,omitempty"`
	PDF        []byte            `json:"pdf,omitempty"`
	JSON       json.RawMessage   `json:"json,omitempty"`
	Data       json.RawMessage   `json:"data,omitempty"`
	Chart      json.RawMessage   `json:"chart,omitempty"`
	Extra      map[string]string `json:"extra,omitempty"`
}

// textOf returns the text of a value, or nil if it has none. E2B's server takes a pair of quotes off, so that the text
// of a string is the string.
func textOf(text string) *string {
	if text == "" {
		return nil
	}
	if n := len(text); n > 1 && (text[0] == '\'' || text[0] == '"') && text[n-1] == text[0] {
		text = text[1 : n-1]
	}
	return &text
}

// codeError is the error of a run.
type codeError struct {
	Type      string `json:"type"` // error
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// leftOut says that something is missing, which the protocol can't say otherwise.
func leftOut() string {
	return fmt.Sprintf("sandpit: output or values of this run were left out: a value may have %d MiB, a run %d values, and the server needs memory for them; write large ones to files\n", sandpit.MaxCodeOutput>>20, sandpit.MaxCodeOutputs)
}

// runCode runs code and streams what comes of it.
func runCode(c *call) error {
	in := new(executeRequest)
	if err := c.readJSON(in); err != nil {
		return c.Untouched(err)
	}
	if err := c.Intend(fmt.Sprintf("%d bytes of code", len(in.Code))); err != nil {
		return err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	sb, err := c.running()
	if err != nil {
		return err
	}
	l := &lines{c: c}
	timer := time.AfterFunc(beginAfter, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.begin()
	})
	defer l.end()
	defer timer.Stop()
	stdout, stderr := &text{l: l, kind: "stdout"}, &text{l: l, kind: "stderr"}
	counted := false // the number of the run was told
	count := func(run int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.first, counted = map[string]any{"type": "number_of_executions", "execution_count": run}, true
	}
	res, err := sb.RunCounted(c.Ctx, sandpit.Code{
		Source: in.Code, Context: in.Context, Language: in.Language, Env: withOwn(sb, in.Env),
		Stdout: stdout, Stderr: stderr,
		Output: func(o sandpit.CodeOutput) {
			_ = l.send(result{ // if the client has left, the call ends
				Type: "result", Main: o.Main, Text: textOf(o.Text), HTML: o.HTML, Markdown: o.Markdown, SVG: o.SVG, LaTeX: o.LaTeX, JavaScript: o.JavaScript,
				PNG: o.PNG, JPEG: o.JPEG, PDF: o.PDF, JSON: o.JSON, Data: o.Data, Chart: o.Chart, Extra: o.Extra,
			})
		},
	}, count)
	if err != nil || res.InterpreterEnd != "" {
		if gone := c.ending(); gone != nil {
			if timer.Stop(); !l.hasBegun() {
				return gone
			}
			c.NoteOutcome(http.StatusBadGateway, errcode.Closed, gone)
			panic(http.ErrAbortHandler) // so that SDKs ask whether the sandbox runs, and say that it does not
		}
	}
	if err != nil {
		// SDKs take 404 for something that is gone, and that of JavaScript shows the text of no other status: so it is an
		// error of the run that the interpreter is missing.
		missing := in.Context == "" && errcode.Of(err) == errcode.NotFound
		if timer.Stop(); !missing && !l.hasBegun() {
			return err
		}
		f := c.Describe(err)
		c.NoteOutcome(dataStatus(f), f.Code, err)
		_ = l.send(codeError{Type: "error", Name: "ExecutionFailed", Value: f.Text()})
		return nil
	}
	stdout.flush()
	stderr.flush()
	if res.StateLost != "" {
		_ = l.send(textLine{"stderr", "the context was restarted: " + res.StateLost + "\n", time.Now().UnixNano()})
	}
	if res.Truncated {
		_ = l.send(textLine{"stderr", leftOut(), time.Now().UnixNano()})
	}
	switch {
	case res.Error != nil:
		_ = l.send(codeError{"error", res.Error.Name, res.Error.Value, res.Error.Traceback})
	case res.InterpreterEnd != "":
		_ = l.send(codeError{Type: "error", Name: "InterpreterEnded", Value: res.InterpreterEnd})
	case res.ExitCode != 0 && res.Stateless:
		_ = l.send(codeError{Type: "error", Name: "ExecutionFailed", Value: fmt.Sprintf("exit code %d", res.ExitCode)})
	case res.ExitCode != 0: // of a bash, whose kernel at E2B gives it no name
		_ = l.send(codeError{Type: "error", Value: strconv.Itoa(res.ExitCode)})
	}
	if !counted {
		count(res.Run)
	}
	_ = l.send(map[string]any{"type": "end_of_execution"})
	return nil
}

// codeContext is a context.
type codeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func contextOf(sb engine.Box, k sandpit.CodeContext) codeContext {
	return codeContext{k.ID, k.Language, cmp.Or(k.Dir, homeOf(sb, ""))}
}

// createContext starts an interpreter.
func createContext(c *call) error {
	var in struct {
		Language string `json:"language"`
		Cwd      string `json:"cwd"`
	}
	if err := c.readJSON(&in); err != nil {
		return c.Untouched(err)
	}
	sb, err := c.running()
	if err != nil {
		return err
	}
	if in.Cwd != "" { // which is made if it is missing
		if err := filesOf(sb, "").Mkdir(c.Ctx, in.Cwd, 0o755, true); err != nil {
			return err
		}
	}
	made, err := sb.CreateContext(c.Ctx, sandpit.NewContext{Language: in.Language, Dir: in.Cwd})
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, contextOf(sb, made))
}

// listContexts lists the contexts.
func listContexts(c *call) error {
	sb, err := c.running()
	if err != nil {
		return err
	}
	all, err := sb.Contexts(c.Ctx)
	if err != nil {
		return err
	}
	out := []codeContext{}
	for _, k := range all {
		out = append(out, contextOf(sb, k))
	}
	return c.answer(http.StatusOK, out)
}

// removeContext ends an interpreter.
func removeContext(c *call) error {
	sb, err := c.running()
	if err != nil {
		return err
	}
	if err := sb.RemoveContext(c.Ctx, c.R.PathValue("context")); err != nil {
		return err
	}
	return c.done()
}

// restartContext ends an interpreter whose context stays.
func restartContext(c *call) error {
	sb, err := c.running()
	if err != nil {
		return err
	}
	if err := sb.RestartContext(c.Ctx, c.R.PathValue("context")); err != nil {
		return err
	}
	return c.done()
}

package v1

import (
	"encoding/json"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// NewContext describes a context to create.
type NewContext struct {
	ID       string `json:"id,omitempty" maxLength:"64" doc:"Letters, digits, dots, underscores and hyphens; default: a random one"`
	Language string `json:"language,omitempty" doc:"python (default), javascript, typescript, bash or r"`
	Dir      string `json:"dir,omitempty" doc:"The working directory; default: the sandbox's"`
	Env      Env    `json:"env,omitzero"`
}

// Sandpit returns the context in Go.
func (n NewContext) Sandpit() (sandpit.NewContext, error) {
	d := newDecoder("")
	env := d.env(n.Env)
	return sandpit.NewContext{ID: n.ID, Language: n.Language, Dir: n.Dir, Env: env}, d.err
}

// FromNewContext converts a context to the form of the API.
func FromNewContext(n sandpit.NewContext) NewContext {
	return NewContext{ID: n.ID, Language: n.Language, Dir: n.Dir, Env: Env{List: n.Env}}
}

// CodeContext is a context: an interpreter that keeps its state from one run to the next.
type CodeContext struct {
	ID        string    `json:"id"`
	Language  string    `json:"language"`
	Dir       string    `json:"dir,omitempty" doc:"As it was asked for"`
	CreatedAt time.Time `json:"created_at"`
	Busy      bool      `json:"busy,omitempty" doc:"A run is in progress"`
	Process   string    `json:"process,omitempty" doc:"The ID of the interpreter's process; absent: none runs, and the next run starts one"`
}

// FromCodeContext converts a context to the form of the API.
func FromCodeContext(c sandpit.CodeContext) CodeContext { return CodeContext(c) }

// ContextList is a page of the contexts of a sandbox, oldest first.
type ContextList struct {
	Contexts []CodeContext `json:"contexts"`
	Next     string        `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// Code is a block of code to run.
type Code struct {
	Code     string   `json:"code" doc:"At most 4 MiB"`
	Context  string   `json:"context,omitempty" doc:"The ID of the context; default: the one that has the language as its ID, which the first run creates"`
	Language string   `json:"language,omitempty" doc:"The language if there is no context: python (default), javascript, typescript, bash or r; or perl, ruby, php, lua, deno, bun, go or java, which keep no state. With a context it must be the language of that"`
	Env      Env      `json:"env,omitzero" doc:"Variables that are set during this run"`
	Timeout  *float64 `json:"timeout,omitempty" minimum:"0" doc:"Seconds, without the time for which the run waits for others. Then it is interrupted, and after 2 seconds more its interpreter killed. 0 or absent: no bound of its own"`
}

// Sandpit returns the code in Go.
func (c Code) Sandpit() (sandpit.Code, error) {
	d := newDecoder("")
	code := sandpit.Code{Source: c.Code, Context: c.Context, Language: c.Language, Env: d.env(c.Env)}
	if c.Timeout != nil {
		code.Timeout = timeout(*c.Timeout)
	}
	return code, d.err
}

// FromCode converts code to the form of the API.
func FromCode(c sandpit.Code) Code {
	v := Code{Code: c.Source, Context: c.Context, Language: c.Language, Env: Env{List: c.Env}}
	if c.Timeout != 0 {
		v.Timeout = new(Seconds(c.Timeout))
	}
	return v
}

// CodeWaiting says that a run waits.
type CodeWaiting struct {
	Runs int `json:"runs" doc:"The runs of the context before this one: the one in progress, and those that wait"`
}

// CodeOutput is a value that code displays, in one or several formats.
type CodeOutput struct {
	Main       bool              `json:"main,omitempty" doc:"It is the value of the last expression"`
	Text       string            `json:"text,omitempty"`
	HTML       string            `json:"html,omitempty"`
	Markdown   string            `json:"markdown,omitempty"`
	SVG        string            `json:"svg,omitempty"`
	LaTeX      string            `json:"latex,omitempty"`
	JavaScript string            `json:"javascript,omitempty"`
	PNG        []byte            `json:"png,omitempty" doc:"In base64"`
	JPEG       []byte            `json:"jpeg,omitempty" doc:"In base64"`
	PDF        []byte            `json:"pdf,omitempty" doc:"In base64"`
	JSON       json.RawMessage   `json:"json,omitempty"`
	Data       json.RawMessage   `json:"data,omitempty" doc:"The columns of a data frame, as lists by their names"`
	Chart      json.RawMessage   `json:"chart,omitempty" doc:"The data of a chart"`
	Extra      map[string]string `json:"extra,omitempty" doc:"Other formats, by media type"`
}

// FromCodeOutput converts output to the form of the API.
func FromCodeOutput(o sandpit.CodeOutput) CodeOutput {
	return CodeOutput{
		Main: o.Main, Text: o.Text, HTML: o.HTML, Markdown: o.Markdown, SVG: o.SVG, LaTeX: o.LaTeX, JavaScript: o.JavaScript,
		PNG: o.PNG, JPEG: o.JPEG, PDF: o.PDF, JSON: o.JSON, Data: o.Data, Chart: o.Chart, Extra: o.Extra,
	}
}

// Sandpit returns the output in Go.
func (o CodeOutput) Sandpit() sandpit.CodeOutput {
	return sandpit.CodeOutput{
		Main: o.Main, Text: o.Text, HTML: o.HTML, Markdown: o.Markdown, SVG: o.SVG, LaTeX: o.LaTeX, JavaScript: o.JavaScript,
		PNG: o.PNG, JPEG: o.JPEG, PDF: o.PDF, JSON: o.JSON, Data: o.Data, Chart: o.Chart, Extra: o.Extra,
	}
}

// CodeError is an error of code.
type CodeError struct {
	Name      string `json:"name" doc:"Such as ValueError"`
	Value     string `json:"value" doc:"Its message"`
	Traceback string `json:"traceback" doc:"With the lines of the code"`
}

// CodeResult says how a run ended.
type CodeResult struct {
	Context   string     `json:"context" doc:"The ID; empty if the run keeps no state"`
	Stateless bool       `json:"stateless,omitempty" doc:"The language has no contexts: the run keeps no state"`
	Run       int        `json:"run,omitempty" doc:"The number of the run in its interpreter, from 1"`
	Error     *CodeError `json:"error,omitempty" doc:"Of the code"`
	TimedOut  bool       `json:"timed_out,omitempty" doc:"The timeout ended the run"`
	Truncated bool       `json:"truncated,omitempty" doc:"Some output is missing: it exceeded a bound"`
	ExitCode  int        `json:"exit_code,omitempty" doc:"Of the last command of a run of bash, of the process of a stateless run, or of an interpreter that ended during the run: 128+n if signal n killed it"`
	End       string     `json:"interpreter_end,omitempty" doc:"Why the interpreter ended during the run. Its state is lost. The next run starts a new one"`
	StateLost string     `json:"state_lost,omitempty" doc:"Why the run began without the state of earlier ones"`
	Seconds   float64    `json:"seconds" doc:"Duration of the run"`
}

// FromCodeResult converts a result to the form of the API.
func FromCodeResult(r sandpit.CodeResult) CodeResult {
	return CodeResult{
		Context: r.Context, Run: r.Run, Error: (*CodeError)(r.Error), TimedOut: r.TimedOut, Truncated: r.Truncated,
		ExitCode: r.ExitCode, End: r.InterpreterEnd, Stateless: r.Stateless, StateLost: r.StateLost, Seconds: Seconds(r.Wall),
	}
}

// Sandpit returns the result in Go.
func (r CodeResult) Sandpit() sandpit.CodeResult {
	return sandpit.CodeResult{
		Context: r.Context, Run: r.Run, Error: (*sandpit.CodeError)(r.Error), TimedOut: r.TimedOut, Truncated: r.Truncated,
		ExitCode: r.ExitCode, InterpreterEnd: r.End, Stateless: r.Stateless, StateLost: r.StateLost, Wall: Duration(r.Seconds),
	}
}

// CodeRun is a run of code with its output. At most 16 MiB of that are kept.
type CodeRun struct {
	CodeResult
	Stdout   string       `json:"stdout"`
	Stderr   string       `json:"stderr"`
	Encoding string       `json:"encoding,omitempty" enum:"base64" doc:"base64: stdout and stderr are in base64, because they are not UTF-8. Absent: text"`
	Outputs  []CodeOutput `json:"outputs" doc:"What the code has displayed, and last the value of its last expression"`
}

// SetOutput sets the output, as text if all of it is.
func (e *CodeRun) SetOutput(stdout, stderr []byte) {
	out, diag := string(stdout), string(stderr)
	e.Encoding = encodingFor([]string{out, diag})
	e.Stdout, e.Stderr = encode(e.Encoding, out), encode(e.Encoding, diag)
}

package sandpit

import (
	"context"
	"encoding/json"
	"io"
	"time"
)

// Coder is a sandbox that runs code with state. Its contexts are interpreters that keep
// variables, imports and functions from one run to the next. They are background processes of
// the sandbox: they are under its limits, have a log, and survive a restart of the server. The
// image must have the interpreter, and nothing else.
type Coder interface {
	// RunCode runs a block of code and returns when it has ended. Code that fails is not an
	// error of RunCode: see CodeResult. If ctx ends first, the run is interrupted, and the
	// interpreter killed if it goes on. The error matches ErrNotFound if there is no such
	// context or the sandbox lacks the interpreter, ErrInvalid if the language is unknown,
	// ErrExhausted if too many runs wait for the context, and ErrQuota or ErrForbidden if the policy
	// does not allow another context.
	RunCode(ctx context.Context, code Code) (CodeResult, error)

	// CreateContext starts an interpreter. It returns ErrExists if there is a context with this ID,
	// and ErrQuota or ErrForbidden if the policy does not allow another one.
	CreateContext(ctx context.Context, spec NewContext) (CodeContext, error)

	// Contexts returns the contexts, oldest first.
	Contexts(ctx context.Context) ([]CodeContext, error)

	// RestartContext kills the interpreter with everything that it has started. The next run
	// starts a new one without its state.
	RestartContext(ctx context.Context, id string) error

	// InterruptContext interrupts the present run, as Ctrl-C does. If there is none, it is a no-op.
	InterruptContext(ctx context.Context, id string) error

	// RemoveContext kills the interpreter with everything that it has started, and forgets the context.
	RemoveContext(ctx context.Context, id string) error
}

// Languages of contexts.
const (
	Python     = "python"     // needs python3 of version 3.8 or later
	JavaScript = "javascript" // needs node 18 or later
	TypeScript = "typescript" // needs node 22.13 or later, or the package typescript
	Bash       = "bash"       // needs bash
	R          = "r"          // needs Rscript of R 4.0 or later
)

// Languages returns the languages of contexts, the default one first.
func Languages() []string { return []string{Python, JavaScript, TypeScript, Bash, R} }

// StatelessLanguages returns the languages whose code runs each time in a process of its own. See CodeResult.Stateless.
func StatelessLanguages() []string {
	return []string{"perl", "ruby", "php", "lua", "deno", "bun", "go", "java"}
}

// Bounds of contexts and runs.
const (
	MaxCode        = 4 << 20 // bytes of Code.Source
	MaxContexts    = 32      // of a sandbox, unless its policy allows fewer
	MaxCodeOutput  = 8 << 20 // bytes of one CodeOutput, as the interpreter sends it
	MaxCodeOutputs = 1000    // of a run
	MaxContextID   = 64      // bytes
	MaxCodeRuns    = 64      // that wait for a context
)

// NewContext describes a context to create.
type NewContext struct {
	// ID is its identifier: letters, digits, ".", "_" and "-", at most MaxContextID of them.
	// Default: a random one.
	ID string

	Language string   // default Python
	Dir      string   // the working directory; default: the sandbox's
	Env      []string // variables as "KEY=VALUE", which are added to the sandbox's
}

// CodeContext describes a context.
type CodeContext struct {
	ID        string
	Language  string
	Dir       string // as it was asked for
	CreatedAt time.Time
	Busy      bool   // a run is in progress
	Process   string // the ID of the interpreter's process; "" if none runs, and the next run starts one
}

// Code is a block of code to run.
type Code struct {
	Source string

	// Context is the ID of the context. Default: the one that has the language as its ID, which
	// the first run creates.
	Context string

	// Language is the language if Context is empty: one of Languages, or of StatelessLanguages. Names such as
	// js, ts, node, sh and python3 are taken, too. Default: Python. If Context is set, it must be the language
	// of that context, or empty.
	Language string

	// Env has variables, as "KEY=VALUE", that are set during this run.
	Env []string

	// Timeout bounds the run, without the time for which it waits for others. When it is over,
	// the run is interrupted, and the interpreter killed if it goes on. 0: no bound of its own.
	Timeout time.Duration

	// Waits, unless nil, is called once, before anything else, if the context has other runs before
	// this one: the one in progress, and those that wait.
	Waits func(runs int)

	// Stdout and Stderr receive the output as it arrives, also that of child processes and
	// threads; nil discards it. A writer that blocks slows the code down.
	Stdout, Stderr io.Writer

	// Output receives the rich output as it arrives: what the code displays, and last the value of
	// its last expression. It may be nil. It must not keep the fields of raw bytes.
	Output func(CodeOutput)
}

// CodeOutput is a value that code displays, in one or several formats. Empty fields are absent.
type CodeOutput struct {
	Main bool // it is the value of the last expression

	Text       string // plain text
	HTML       string
	Markdown   string
	SVG        string
	LaTeX      string
	JavaScript string
	PNG        []byte
	JPEG       []byte
	PDF        []byte
	JSON       json.RawMessage
	Data       json.RawMessage   // the columns of a data frame, as lists by their names
	Chart      json.RawMessage   // the data of a chart
	Extra      map[string]string // other formats, by media type
}

// CodeError is an error of the code.
type CodeError struct {
	Name      string // such as "ValueError"
	Value     string // its message
	Traceback string // with the lines of the code
}

// CodeResult describes how a run ended.
type CodeResult struct {
	Context   string     // the ID
	Run       int        // the number of the run in its interpreter, from 1
	Error     *CodeError // of the code; nil if it has none
	TimedOut  bool       // the timeout ended it
	Truncated bool       // some output is missing: it exceeded a bound

	// ExitCode is the exit code of the last command of a run of Bash, of the process of a Stateless run, or of an
	// interpreter that ended during the run: 128+n if signal n killed it. Otherwise it is 0.
	ExitCode int

	// InterpreterEnd says, unless empty, why the interpreter ended during the run, in one line for people.
	// Its state is lost. The next run starts a new interpreter.
	InterpreterEnd string

	// Stateless says that the language has no contexts: the run had an interpreter of its own, and
	// keeps nothing. Context and Run are empty.
	Stateless bool

	// StateLost says, unless empty, why the run began without the state of earlier ones, in one line for people.
	StateLost string

	Wall time.Duration // of the run
}

// Success reports whether the code ended without an error, and its interpreter goes on.
func (r CodeResult) Success() bool {
	return r.Error == nil && r.ExitCode == 0 && r.InterpreterEnd == "" && !r.TimedOut
}

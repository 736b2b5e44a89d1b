package rpc

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// limit is a number of seconds.
type limit uint64

// duration returns the limit, or 0 if there is none. Some clients send nanoseconds by mistake: there is no limit that
// is too large.
func (l limit) duration() time.Duration {
	const most = math.MaxInt64 / uint64(time.Second)
	return time.Duration(min(uint64(l), most)) * time.Second
}

// codeParams are those of a run of code.
type codeParams struct {
	Target
	Language string `json:"language"`
	Code     string `json:"code"`
	Timeout  limit  `json:"timeout"` // seconds
}

func (p *codeParams) about() string {
	return fmt.Sprintf("%.40s, %d bytes of code", p.Language, len(p.Code))
}

// codeResult is the outcome of a run. Clients know that code has failed by its lines on stderr.
type codeResult struct {
	Status   string          `json:"status"`
	Language string          `json:"language"`
	Output   json.RawMessage `json:"output"`
}

// runCode runs a block of code in the context of its language.
func runCode(c *call, in *codeParams) (any, error) {
	sb, err := c.using()
	if err != nil {
		return nil, err
	}
	if in.Language == "" {
		return nil, gate.Invalid("language is missing", "send python or nodejs")
	}
	out := &lines{c: c.Call}
	value := "" // of the last expression
	res, err := sb.RunCode(c.Ctx, sandpit.Code{
		Source: in.Code, Language: in.Language, Timeout: in.Timeout.duration(),
		Stdout: out.stream(stdout), Stderr: out.stream(stderr),
		Output: func(o sandpit.CodeOutput) {
			switch {
			case o.Main:
				value = o.Text // it comes beside the output, perhaps earlier
			case o.Text != "":
				out.add(stdout, o.Text)
			}
		},
	})
	if err != nil {
		return nil, out.why(err)
	}
	if value != "" {
		out.add(stdout, value)
	}
	if e := res.Error; e != nil {
		text := e.Traceback
		if text == "" {
			text = e.Name + ": " + e.Value
		}
		out.add(stderr, strings.TrimSuffix(text, "\n"))
	}
	switch {
	case res.InterpreterEnd != "":
		out.add(stderr, "Error: "+res.InterpreterEnd)
	case res.ExitCode != 0:
		out.add(stderr, fmt.Sprintf("Error: exit code %d", res.ExitCode))
	}
	if res.TimedOut {
		out.add(stderr, fmt.Sprintf("Error: Execution timed out after %d seconds", in.Timeout))
	}
	output, err := out.end(res.Truncated)
	return codeResult{"success", in.Language, output}, err
}

// commandParams are those of a command.
type commandParams struct {
	Target
	Command string   `json:"command"`
	Args    []string `json:"args"`
	Timeout limit    `json:"timeout"` // seconds
}

func (p *commandParams) about() string {
	return gate.AboutProgram(p.Command, len(p.Args))
}

// commandResult is the outcome of a command.
type commandResult struct {
	Command  string          `json:"command"`
	Args     []string        `json:"args"`
	ExitCode int             `json:"exit_code"`
	Success  bool            `json:"success"`
	Output   json.RawMessage `json:"output"`
}

// runCommand runs a program without a shell. Clients expect errors for programs that do not exist and for those that
// took too long.
func runCommand(c *call, in *commandParams) (any, error) {
	sb, err := c.using()
	if err != nil {
		return nil, err
	}
	if in.Args == nil {
		in.Args = []string{}
	}
	out := &lines{c: c.Call}
	ran, err := sandpit.Run(c.Ctx, sb, sandpit.Command{
		Argv: append([]string{in.Command}, in.Args...), Timeout: in.Timeout.duration(),
		Stdout: out.stream(stdout), Stderr: out.stream(stderr),
	})
	switch {
	case err != nil && in.Command == "":
		return nil, gate.Invalid("command is missing", "")
	case err != nil:
		return nil, out.why(err)
	case ran.TimedOut && in.Timeout > 0:
		return nil, &gate.Refusal{Code: errcode.Timeout, Message: fmt.Sprintf("the command was killed because it took longer than %d seconds", in.Timeout)}
	case ran.OOMKilled:
		out.add(stderr, "Error: the command was killed because the sandbox was out of memory")
	}
	output, err := out.end(ran.Truncated)
	return commandResult{in.Command, in.Args, ran.ExitCode, ran.ExitCode == 0, output}, err
}

// using returns the sandbox of the call, which must be running, for a call that may take long.
func (c *call) using() (sandpit.Sandbox, error) {
	if err := c.OpenStream(); err != nil {
		return nil, err
	}
	sb, err := c.find()
	if err != nil {
		return nil, err
	}
	info, err := sb.Info(c.Ctx)
	if err != nil {
		return nil, err
	}
	if info.State == sandpit.StateStopped || info.State == sandpit.StateCreated {
		return nil, c.Untouched(&gate.Refusal{Code: errcode.State, Message: fmt.Sprintf("Sandbox '%s' is not running", c.Target), Hint: "start it first"})
	}
	return sb, nil
}

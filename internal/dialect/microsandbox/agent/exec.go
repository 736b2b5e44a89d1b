package agent

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Kinds of failedMessage.
const (
	whyNotFound   = "not_found"
	whyPermission = "permission_denied"
	whyExecutable = "not_executable"
	whyDirectory  = "bad_cwd"
	whyArguments  = "bad_args"
	whyLimit      = "resource_limit"
	whyUser       = "user_setup_failed"
	whyMemory     = "out_of_memory"
	whyOther      = "other"
)

// size of a terminal if the request has none.
const (
	defaultRows = 24
	defaultCols = 80
)

// command returns the command of a request in a sandbox whose programs have limits, which the request may replace.
func (r *execRequest) command(sandbox []rlimit) sandpit.Command {
	cmd := sandpit.Command{Argv: append([]string{r.Cmd}, r.Args...), Env: r.Env, Stdin: true}
	if r.Cwd != nil {
		cmd.Dir = *r.Cwd
	}
	if r.User != nil {
		cmd.User = *r.User
	}
	if r.TTY {
		cmd.Terminal = &sandpit.TerminalSize{Rows: defaultRows, Cols: defaultCols}
		if r.Rows != nil {
			cmd.Terminal.Rows = *r.Rows
		}
		if r.Cols != nil {
			cmd.Terminal.Cols = *r.Cols
		}
	}
	for _, l := range sandbox {
		if !slices.ContainsFunc(r.Rlimits, func(own rlimit) bool { return own.Resource == l.Resource }) {
			cmd.Rlimits = append(cmd.Rlimits, sandpit.Rlimit(l))
		}
	}
	for _, l := range r.Rlimits {
		cmd.Rlimits = append(cmd.Rlimits, sandpit.Rlimit(l))
	}
	// The hard limit of core files means nothing: there are none.
	cmd.Rlimits = slices.DeleteFunc(cmd.Rlimits, func(l sandpit.Rlimit) bool { return l.Resource == "core" && l.Soft == 0 })
	return cmd
}

// rlimitsOf returns the limits of each program of a sandbox, from its data of the dialect (state of package cloud).
func rlimitsOf(data json.RawMessage) ([]rlimit, error) {
	var made struct {
		Rlimits []rlimit `json:"rlimits"`
		Each    bool     `json:"rlimits_of_each"`
	}
	if err := dialect.Recall(data, &made); err != nil {
		return nil, fmt.Errorf("reading the rlimits of the sandbox: %w", err)
	}
	if !made.Each {
		return nil, nil
	}
	return made.Rlimits, nil
}

// ScriptsDir has the scripts of a sandbox, and is the first directory on the PATH of programs, also where the client sets it.
const ScriptsDir = "/.msb/scripts"

// defaultPath is the PATH of programs if neither the client, nor the sandbox, nor its image has one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// withScripts returns an environment whose PATH begins with the scripts. sandbox is that of all programs.
func withScripts(env, sandbox []string) []string {
	path := defaultPath
	for _, e := range slices.Concat(sandbox, env) {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	return append(slices.Clone(env), "PATH="+ScriptsDir+":"+path)
}

// outputWriter sends what a program writes as frames of a kind, once the client knows that it was started.
type outputWriter struct {
	op    *operation
	kind  string
	ready <-chan struct{}
}

// Write sends a piece of output.
func (w outputWriter) Write(b []byte) (int, error) {
	<-w.ready
	return w.op.ch.output(w.op.id, w.kind, b)
}

// execLists has the lists of an execRequest as they are encoded: each of their items may be a byte, and takes much more.
type execLists struct {
	Cmd     string          `cbor:"cmd"`
	Args    cbor.RawMessage `cbor:"args"`
	Env     cbor.RawMessage `cbor:"env"`
	Rlimits cbor.RawMessage `cbor:"rlimits"`
}

const (
	itemCost   = 96 // bytes of memory of an argument or variable until the program has started, besides its text
	maxRlimits = 16 // the kernel has so many (setrlimit(2))
)

// lengthOf returns the number of items in a list that is valid CBOR, or one that no list has if it can't tell.
func lengthOf(list cbor.RawMessage) int {
	switch {
	case len(list) == 0 || list[0] == cborNull || list[0] == cborUndefined:
		return 0
	case list[0]>>5 != majorArray:
		return maxItems
	}
	switch n, rest := list[0]&31, list[1:]; {
	case n < 24:
		return int(n)
	case n == 24 && len(rest) >= 1:
		return int(rest[0])
	case n == 25 && len(rest) >= 2:
		return int(binary.BigEndian.Uint16(rest))
	case n == 26 && len(rest) >= 4:
		return int(min(binary.BigEndian.Uint32(rest), maxItems))
	}
	return maxItems
}

// exec runs a program.
func (op *operation) exec(m message) {
	ch := op.ch
	var lists execLists
	bad := func(err error) {
		ch.budget.give(frames, m.size)
		op.end()
		_ = ch.sendError(op.id, errPayload, err.Error(), m.kind)
	}
	if err := decoder().Unmarshal(m.payload, &lists); err != nil {
		bad(err)
		return
	}
	if n := lengthOf(lists.Rlimits); n > maxRlimits {
		bad(fmt.Errorf("the program has %d rlimits, and may have %d", n, maxRlimits))
		return
	}
	part, err := op.begin(opExec, gate.AboutProgram(lists.Cmd, lengthOf(lists.Args)))
	if err != nil {
		ch.budget.give(frames, m.size)
		op.fail(err)
		return
	}
	items := int64(lengthOf(lists.Args)+lengthOf(lists.Env)) * itemCost
	if err := ch.budget.take(ch.ctx, windows, items); err != nil {
		ch.budget.give(frames, m.size)
		part.End(err)
		op.fail(err)
		return
	}
	var req execRequest
	if err := decoder().Unmarshal(m.payload, &req); err != nil {
		ch.budget.give(windows, items)
		part.End(gate.Invalid(err.Error(), ""))
		bad(err)
		return
	}
	ready := make(chan struct{})
	cmd := req.command(ch.rlimits)
	cmd.Stdout, cmd.Stderr = outputWriter{op, kindStdout, ready}, outputWriter{op, kindStderr, ready}
	if cmd.Terminal != nil {
		cmd.Stderr = nil
	}
	if made, err := ch.box.Made(); err == nil {
		cmd.Env = withScripts(cmd.Env, made.Guest.Env)
	}
	p, err := ch.box.Start(part.Ctx, cmd)
	ch.budget.give(frames, m.size)
	ch.budget.give(windows, items)
	if err != nil {
		close(ready)
		part.End(err)
		op.fail(err)
		return
	}
	_ = ch.say(op.id, 0, kindStarted, startedMessage{uint32(p.PID())})
	close(ready)
	ch.all.Go(ch.protected(func() { op.feed(p) }))
	ch.all.Go(ch.protected(func() { op.control(part.Ctx, p) }))
	res, err := p.Wait(ch.ctx)
	switch {
	case err == nil:
		part.End(nil)
		op.end()
		_ = ch.say(op.id, flagTerminal, kindExited, exitedMessage{int32(res.ExitCode)})
	case ch.ctx.Err() != nil:
		op.end()
		part.End(errors.Join(context.Cause(ch.ctx), ch.leave(p)))
	default: // its sandbox has ended
		part.End(err)
		op.end()
		_ = ch.sendError(op.id, errSession, ch.call.Describe(err).Message, kindExec)
	}
}

// killTime bounds the killing of a process.
const killTime = 10 * time.Second

// leave gives up a process whose channel has ended. It is killed with all that it started, as by the relay of the original; the
// protocol has no message that detaches. Only when the server ends does it go on in the background: that does not say that
// nobody wants it.
func (ch *channel) leave(p sandpit.Process) (err error) {
	defer dialect.Detach(p)
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	if b, ok := p.(sandpit.Backgrounder); ok && errors.Is(ch.call.BrokenOff(), gate.ErrDraining) && b.Background(ctx) == nil {
		return nil
	}
	return p.Kill(ctx)
}

// fail says why a program was not started.
func (op *operation) fail(err error) {
	f := op.ch.call.Describe(err)
	kind, errno := whyFailed(err, f)
	m := failedMessage{Kind: kind, Message: f.Text(), Stage: "start"}
	if errno != 0 {
		m.Errno, m.Name = new(int32(errno)), errnoName(errno)
	}
	op.end()
	_ = op.ch.say(op.id, flagTerminal, kindFailed, m)
}

// whyFailed returns the kind of an error, and an errno that says the same, or 0.
func whyFailed(err error, f gate.Failure) (kind string, errno syscall.Errno) {
	var start *sandpit.StartError
	switch {
	case errors.As(err, &start):
		errno := syscall.Errno(start.Errno)
		switch {
		case start.Stage == sandpit.StageDirectory:
			return whyDirectory, errno
		case errno == syscall.E2BIG:
			return whyArguments, errno
		case errno == syscall.ENOEXEC:
			return whyExecutable, errno
		case start.ExitCode == 127:
			return whyNotFound, cmp.Or(errno, syscall.ENOENT)
		}
		return whyPermission, syscall.EACCES
	case f.Stage == sandpit.StageUser, f.Code == errcode.Unsupported:
		return whyUser, syscall.EINVAL
	case f.Stage == sandpit.StageLimits:
		return whyLimit, syscall.EINVAL
	case f.Code == errcode.Invalid:
		return whyArguments, syscall.EINVAL
	case f.Code == errcode.QuotaExceeded, f.Code == errcode.Overloaded, f.Code == errcode.RateLimited, f.Code == errcode.AuditRate:
		return whyLimit, syscall.EAGAIN
	}
	return whyOther, 0
}

// inputCost is the memory that each frame of input takes besides its data.
const inputCost = 64

// input passes data on to the standard input, and waits for room. The protocol can't tell the client to wait with input alone:
// what comes behind it waits too. A program that reads nothing for as long as Limits.Tunnel gets no more.
func (op *operation) input(m message) error {
	var data dataMessage
	if op.in.gone() || decoder().Unmarshal(m.payload, &data) != nil {
		return nil
	}
	m = message{payload: data.Data, size: int64(len(data.Data)) + inputCost}
	if err := op.ch.budget.take(op.ch.ctx, inputs, m.size); err != nil {
		return op.refuseInput(syscall.EAGAIN, op.ch.call.Describe(err).Message)
	}
	queued, err := op.in.put(m)
	if !queued {
		op.ch.budget.give(inputs, m.size)
	}
	if err != nil {
		return op.refuseInput(syscall.ETIMEDOUT, fmt.Sprintf("the program has read nothing for %v, and too much waits for it", op.in.patience))
	}
	return nil
}

// refuseInput drops all that waits for the standard input, and what comes later, and tells the client. The input does not end:
// the program is not to take what it has got for all.
func (op *operation) refuseInput(errno syscall.Errno, why string) error {
	op.dropInput()
	return op.inputError(errno, why+"; its standard input gets no more")
}

// inputError tells the client, unless the program has ended: then the ID may be in use again.
func (op *operation) inputError(errno syscall.Errno, text string) error {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.ended {
		return nil
	}
	return op.ch.say(op.id, 0, kindStdinError, stdinErrorMessage{int32(errno), errnoName(errno), text})
}

// dropInput drops what waits in the inbox, and what comes later.
func (op *operation) dropInput() {
	from := frames
	if op.kind == kindExec {
		from = inputs
	}
	op.ch.budget.give(from, op.in.close())
}

// feed writes what the client sends to the standard input.
func (op *operation) feed(p sandpit.Process) {
	in := p.Stdin()
	for {
		m, ok := op.in.next()
		if !ok {
			return
		}
		switch {
		case in == nil: // it has been closed
		case len(m.payload) == 0:
			_ = in.Close()
			in = nil
		default:
			for piece := range slices.Chunk(m.payload, maxPiece) {
				if _, err := in.Write(piece); err != nil {
					in = nil
					_ = op.inputError(syscall.EPIPE, "the program does not read its standard input any more")
					break
				}
				op.in.progress()
			}
		}
		op.ch.budget.give(inputs, m.size)
	}
}

// control sends signals and sizes to a program.
func (op *operation) control(ctx context.Context, p sandpit.Process) {
	for {
		m, ok := op.ctrl.next()
		if !ok {
			return
		}
		switch m.kind {
		case kindSignal:
			var s signalMessage
			if decoder().Unmarshal(m.payload, &s) == nil {
				signal(ctx, p, syscall.Signal(s.Signal))
			}
		case kindResize:
			var r resizeMessage
			if decoder().Unmarshal(m.payload, &r) == nil {
				_ = p.Resize(ctx, sandpit.TerminalSize{Rows: r.Rows, Cols: r.Cols})
			}
		}
		op.ch.budget.give(frames, m.size)
	}
}

// signal sends a signal to the group of a program; the one that kills, to all that it has started. The protocol has no
// answer: a program that has ended gets none.
func signal(ctx context.Context, p sandpit.Process, s syscall.Signal) {
	if s == syscall.SIGKILL {
		_ = p.Kill(ctx)
		return
	}
	if g, ok := p.(sandpit.GroupSignaler); ok {
		_ = g.SignalGroup(ctx, s)
	}
}

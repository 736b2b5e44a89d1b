package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

type startIn struct {
	Sandbox string  `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Command string  `json:"command" jsonschema:"shell script, run with /bin/sh -c"`
	Dir     string  `json:"dir,omitempty" jsonschema:"working directory. Default: that of the sandbox"`
	Timeout float64 `json:"timeout_seconds,omitempty" jsonschema:"seconds after which it is killed. Default: it runs as long as the sandbox lives"`
}

type processesIn struct {
	Sandbox string `json:"sandbox" jsonschema:"name or ID of the sandbox"`
}

type outputIn struct {
	Sandbox string  `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Process string  `json:"process" jsonschema:"ID of the process, such as p1"`
	After   string  `json:"after,omitempty" jsonschema:"position that an earlier result has named: only output after it"`
	Tail    int     `json:"tail,omitempty" jsonschema:"only this number of latest lines"`
	Wait    float64 `json:"wait_seconds,omitempty" jsonschema:"if there is no output yet, wait for some, or for the end of the process, for at most so many seconds"`
}

type stopIn struct {
	Sandbox string   `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Process string   `json:"process" jsonschema:"ID of the process, such as p1"`
	Grace   *float64 `json:"grace_seconds,omitempty" jsonschema:"seconds between the request to end (SIGTERM) and the kill. 0: it is killed at once. Default: 5"`
}

// Bounds of waits for processes.
const (
	maxWait      = 10 * 60 // seconds
	defaultGrace = 5 * time.Second
)

func (r *registry) addProcesses() {
	add(r, tool{
		name: "start_process", group: groupProcesses, title: "Start a process", destructive: true, openWorld: true,
		text: "Start a shell command in the background of a sandbox and return at once, with the ID of the process. For servers, watchers and long jobs. It goes on between your calls, and after this conversation, until it ends or the sandbox does. Watch it with read_output. End it with stop_process.",
		tune: func(s *jsonschema.Schema) { between(s, "timeout_seconds", 0.1, 365*maxSeconds) },
	}, start)
	add(r, tool{
		name: "list_processes", group: groupProcesses, title: "List processes", readOnly: true, idempotent: true,
		text: "List the processes that were started in a sandbox, also those that have ended lately, and the TCP ports on which programs in it listen.",
	}, processes)
	add(r, tool{
		name: "read_output", group: groupProcesses, title: "Read the output of a process", readOnly: true, idempotent: true, with: []string{"run_command", groupCommands, "start_process"},
		text: "Read the output of a process of a sandbox, also of a command that has ended, and see whether it still runs. Each result names the position at which the next call goes on. With wait_seconds, it waits for something new.",
		tune: func(s *jsonschema.Schema) {
			between(s, "tail", 1, 10000)
			between(s, "wait_seconds", 0, maxWait)
		},
	}, readOutput)
	add(r, tool{
		name: "stop_process", group: groupProcesses, title: "Stop a process", destructive: true, idempotent: true,
		text: "End a process of a sandbox with everything that it has started: first by a request (SIGTERM), then by force.",
		tune: func(s *jsonschema.Schema) {
			p := property(s, "grace_seconds")
			p.Type, p.Types = "number", nil
			between(s, "grace_seconds", 0, maxWait)
		},
	}, stopProcess)
}

// start carries out start_process.
func start(ctx context.Context, c *call, in startIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	p, err := sb.Start(ctx, sandpit.Command{Script: in.Command, Dir: in.Dir, Timeout: seconds(in.Timeout), Background: true})
	if err != nil {
		return nil, err
	}
	if d, ok := p.(sandpit.Detacher); ok {
		d.Detach()
	}
	a := say("process %s is running; call read_output with sandbox=%q process=%q", p.ID(), sb.Name(), p.ID())
	a.link(outputURI(sb.Name(), p.ID()), "output of process "+p.ID(), plainText)
	return a, nil
}

// processes carries out list_processes.
func processes(ctx context.Context, c *call, in processesIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	all, err := sb.Processes(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := sb.Ports(ctx)
	if err != nil {
		return nil, err
	}
	a := new(answer)
	left := 0
	for _, p := range slices.Backward(all) {
		line := fmt.Sprintf("%s\t%s\t%s\n", p.ID, state(p), printable(fault.Clip(strings.Join(p.Argv, " "))))
		if a.text.Len()+len(line) > budget {
			left++
			continue
		}
		a.text.WriteString(line)
	}
	if left > 0 {
		a.addf("[%d earlier processes are left out]\n", left)
	}
	if len(all) == 0 {
		a.addf("there are no processes\n")
	}
	for i, p := range ports {
		if i == maxPorts {
			a.addf("[%d more ports are left out]\n", len(ports)-i)
			break
		}
		a.addf("a program listens on port %d of %s\n", p.Port, p.Address)
	}
	return a, nil
}

// maxPorts bounds the ports that a result lists.
const maxPorts = 50

// state says in what state a process is.
func state(p sandpit.ProcessInfo) string {
	if p.Result == nil {
		return "running since " + p.StartedAt.UTC().Format(time.RFC3339)
	}
	return "ended: " + ending(*p.Result)
}

// find returns a process of a sandbox.
func find(ctx context.Context, sb sandpit.Sandbox, id string) (sandpit.ProcessInfo, error) {
	all, err := sb.Processes(ctx)
	if err != nil {
		return sandpit.ProcessInfo{}, err
	}
	for _, p := range all {
		if p.ID == id {
			return p, nil
		}
	}
	return sandpit.ProcessInfo{}, sandpit.WithHint(fault.NotFoundf("sandbox %q has no process %q", sb.Name(), fault.Clip(id)), "call list_processes")
}

// readOutput carries out read_output.
func readOutput(ctx context.Context, c *call, in outputIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if _, err := find(ctx, sb, in.Process); err != nil {
		return nil, err
	}
	at, err := parsePosition(in.After)
	if err != nil {
		return nil, err
	}
	q := sandpit.LogQuery{Process: in.Process, After: at.query(), Tail: in.Tail}
	if in.Wait > 0 {
		stop := c.progress(ctx, func() string { return "waiting for output" })
		defer stop()
		if err := await(ctx, sb, q, seconds(in.Wait)); err != nil {
			return nil, err
		}
	}
	p, err := find(ctx, sb, in.Process) // before the output: what it says about the end is then the last of it
	if err != nil {
		return nil, err
	}
	a := new(answer)
	more, err := logs(ctx, sb, q, &at, a)
	if err != nil {
		return nil, err
	}
	if p.Result != nil && !more {
		a.text.WriteString(at.rest())
	}
	if a.text.Len() == 0 {
		a.addf("[there is no output")
	} else {
		if !strings.HasSuffix(a.text.String(), "\n") {
			a.addf("\n")
		}
		a.addf("[")
		if more {
			a.addf("there is more output already; ")
		}
		a.addf("the next call goes on with after=%q", at)
	}
	a.addf("; process %s is %s]", p.ID, state(p))
	return a, nil
}

// logs adds the output that a query selects from a position to an answer, as far as it fits, and moves the position on.
func logs(ctx context.Context, sb sandpit.Sandbox, q sandpit.LogQuery, at *position, a *answer) (more bool, err error) {
	for e, err := range sb.Logs(ctx, q) {
		if err != nil {
			return false, err
		}
		text, all := at.take(e, budget-a.text.Len(), a.text.Len() == 0)
		a.text.WriteString(text)
		if !all {
			return true, nil
		}
	}
	return false, nil
}

// await waits until a query selects something, the process ends, or the time is over.
func await(ctx context.Context, sb sandpit.Sandbox, q sandpit.LogQuery, most time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, most, errOver)
	defer cancel()
	p, err := sb.Attach(ctx, q.Process, sandpit.AttachOptions{NoHistory: true})
	if err != nil {
		return over(ctx, err)
	}
	defer func() {
		if d, ok := p.(sandpit.Detacher); ok {
			d.Detach()
		}
	}()
	follow, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = p.Wait(follow) // the log tells the rest
		stop(errOver)
	}()
	defer func() { stop(nil); <-ended }()
	q.Follow, q.Tail = true, 0
	for _, err := range sb.Logs(follow, q) {
		if err != nil {
			return over(follow, err)
		}
		stop(errOver) // the first one suffices
	}
	return over(follow, nil)
}

// errOver says that nothing more is waited for.
var errOver = errors.New("the wait is over")

// over returns the error of a wait, or nil if that ended as it should.
func over(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errOver) {
		return nil
	} else if cause != nil {
		return cause
	}
	return err
}

// stopProcess carries out stop_process.
func stopProcess(ctx context.Context, c *call, in stopIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	info, err := find(ctx, sb, in.Process)
	if err != nil {
		return nil, err
	}
	if info.Result != nil {
		return say("process %s has ended already: %s", info.ID, ending(*info.Result)), nil
	}
	p, err := sb.Attach(ctx, in.Process, sandpit.AttachOptions{NoHistory: true})
	if err != nil {
		return nil, err
	}
	if d, ok := p.(sandpit.Detacher); ok {
		defer d.Detach()
	}
	grace := defaultGrace
	if in.Grace != nil {
		grace = seconds(*in.Grace)
	}
	stop := c.progress(ctx, func() string { return "waiting for the process to end" })
	defer stop()
	if grace > 0 && p.Signal(ctx, syscall.SIGTERM) == nil {
		wait, cancel := context.WithTimeout(ctx, grace)
		_, err = p.Wait(wait)
		cancel()
		if ctx.Err() != nil {
			return nil, err
		}
	}
	if err := p.Kill(ctx); err != nil { // also what it has left behind
		return nil, err
	}
	res, err := p.Wait(ctx)
	if err != nil {
		return nil, err
	}
	return say("process %s has ended: %s", info.ID, ending(res)), nil
}

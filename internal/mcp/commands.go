package mcp

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandpit-dev/sandpit"
)

type runIn struct {
	Sandbox string  `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Command string  `json:"command" jsonschema:"shell script, run with /bin/sh -c"`
	Dir     string  `json:"dir,omitempty" jsonschema:"working directory. Default: that of the sandbox"`
	Stdin   string  `json:"stdin,omitempty" jsonschema:"standard input. Default: empty"`
	Timeout float64 `json:"timeout_seconds,omitempty" jsonschema:"seconds after which the command is killed with everything that it has started. Default: 300"`
}

// defaultTimeout is that of commands and code.
const defaultTimeout = 5 * time.Minute

// maxSeconds bounds arguments that are times.
const maxSeconds = 24 * 60 * 60

func (r *registry) addCommands() {
	add(r, tool{
		name: "run_command", group: groupCommands, title: "Run a command", destructive: true, openWorld: true,
		text: "Run a shell command in a sandbox and wait until it ends. Returns its exit code, standard output and standard error. Each call is a new shell: only files and background processes persist; write 'cd dir && …' or set dir. The command gets no terminal and no answers to questions: use flags such as --yes. For servers and other programs that do not end, use start_process.",
		tune: func(s *jsonschema.Schema) { between(s, "timeout_seconds", 0.1, maxSeconds) },
	}, run)
}

// run carries out run_command.
func run(ctx context.Context, c *call, in runIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	out := new(output)
	cmd := sandpit.Command{
		Script: in.Command, Dir: in.Dir, Stdin: in.Stdin != "", Timeout: defaultTimeout,
		Stdout: out.stream(&out.stdout), Stderr: out.stream(&out.stderr),
	}
	if in.Timeout > 0 {
		cmd.Timeout = seconds(in.Timeout)
	}
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		return nil, err
	}
	stop := c.progress(ctx, out.last)
	defer stop()
	if cmd.Stdin {
		go func() { // ends with the process at the latest
			_, _ = strings.NewReader(in.Stdin).WriteTo(p.Stdin()) // the program may read less
			_ = p.Stdin().Close()
		}()
	}
	res, err := p.Wait(ctx)
	if err != nil {
		kill(p)
		return nil, err
	}
	a := say("%s after %s\n", ending(res), res.Wall.Round(time.Millisecond))
	if out.tell(a) {
		a.addf("[output was left out: call read_output with sandbox=%q process=%q, or read the resource %s]\n", sb.Name(), p.ID(), outputURI(sb.Name(), p.ID()))
		a.link(outputURI(sb.Name(), p.ID()), "output of process "+p.ID(), plainText)
	}
	return a, nil
}

// killTime is the time that killing a process may take after its call has ended.
const killTime = 10 * time.Second

// kill kills a process whose call has ended.
func kill(p sandpit.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	_ = p.Kill(ctx) // its timeout is the last resort
}

// ending says how a process ended.
func ending(res sandpit.Result) string {
	text := fmt.Sprintf("exit code %d", res.ExitCode)
	for _, why := range [...]struct {
		is   bool
		text string
	}{
		{res.TimedOut, "it was killed because its time was over"},
		{res.OOMKilled, "it was killed because of the memory limit of the sandbox"},
		{res.Signal != 0 && !res.TimedOut && !res.OOMKilled, fmt.Sprintf("signal %d killed it", res.Signal)},
		{res.PidsRefused, "the limit of processes of the sandbox was reached"},
		{res.DiskFull, "the disk of the sandbox is full"},
		{res.FilesFull, "the sandbox has as many files as it may"},
		{res.CPUExceeded, "its limit of CPU time was reached"},
	} {
		if why.is {
			text += "; " + why.text
		}
	}
	return text
}

// output collects the output of a command or of code within a budget. Its methods are safe for concurrent use.
type output struct {
	mu             sync.Mutex
	stdout, stderr clip // guarded by mu
	line           []byte
}

// stream returns a writer for one of the streams, which never fails.
func (o *output) stream(to *clip) *streamWriter { return &streamWriter{o, to} }

type streamWriter struct {
	o  *output
	to *clip
}

func (w *streamWriter) Write(b []byte) (int, error) {
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	w.to.write(b)
	if line := bytes.TrimSpace(b); len(line) > 0 {
		line = line[bytes.LastIndexByte(line, '\n')+1:]
		w.o.line = append(w.o.line[:0], line[:min(len(line), maxLine)]...)
	}
	return len(b), nil
}

// maxLine bounds the line of output in a report of progress, in bytes.
const maxLine = 200

// last describes the progress by the last line of output.
func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.line) == 0 {
		return "running"
	}
	return string(o.line) + "\nrunning"
}

// shares returns how much of the budget each stream has: what one of them does not need, the other one gets.
func (o *output) shares() (most [2]int64) {
	const half = budget / 2
	out, errs := min(o.stdout.size, budget), min(o.stderr.size, budget)
	if out+errs > budget {
		out, errs = min(out, max(half, budget-errs)), min(errs, max(half, budget-out))
	}
	return [2]int64{out, errs}
}

// tell adds the output to an answer, and reports whether it leaves something out.
func (o *output) tell(a *answer) (cut bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	most := o.shares()
	for i, s := range [...]struct {
		name string
		clip *clip
	}{{stdout, &o.stdout}, {stderr, &o.stderr}} {
		if s.clip.size > 0 {
			text, left := s.clip.text(most[i])
			a.block(s.name, text)
			cut = cut || left
		}
	}
	return cut
}

// clip keeps the first and the last bytes of a stream, up to budget each.
type clip struct {
	size int64
	head []byte
	tail []byte // of what is not in head; at most twice as much as is needed
}

func (c *clip) write(b []byte) {
	c.size += int64(len(b))
	n := min(len(b), budget-len(c.head))
	c.head = append(c.head, b[:n]...)
	b = b[n:]
	if len(b) >= budget {
		c.tail = append(c.tail[:0], b[len(b)-budget:]...)
		return
	}
	if c.tail = append(c.tail, b...); len(c.tail) > 2*budget {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-budget:]...)
	}
}

// text returns at most so many bytes of the stream, half of them from its end, with a line that says how much is missing,
// and whether something is.
func (c *clip) text(most int64) (text string, left bool) {
	all := append(bytes.Clone(c.head), c.tail...)
	if c.size <= most {
		if text := clean(string(all)); int64(len(text)) <= most {
			return text, false
		}
	}
	start := first(all, int(most/2))
	end := last(all[start:], int(most-most/2))
	missing := c.size - int64(start) - int64(end)
	return clean(string(all[:start])) + fmt.Sprintf("\n[… %d bytes left out …]\n", missing) + clean(string(all[len(all)-end:])), true
}

// clipText clips a text.
func clipText(text string, most int64) (clipped string, left bool) {
	c := new(clip)
	c.write([]byte(text))
	return c.text(most)
}

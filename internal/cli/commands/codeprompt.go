package commands

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/term"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// prompter reads code at a terminal and runs it.
type prompter struct {
	*tree
	sb       sandpit.Sandbox
	code     sandpit.Code // without its source
	language string

	terminal *cli.Terminal
	keys     *keyboard
	editor   *term.Terminal
	signals  chan os.Signal
}

// prompt reads code at the terminal, block by block, and runs it.
func (a *tree) prompt(ctx context.Context, name string, code sandpit.Code) (err error) {
	s, err := a.connect(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	sb, err := s.find(ctx, name)
	if err != nil {
		return err
	}
	language, err := languageOf(ctx, sb, code)
	if err != nil {
		return err
	}
	terminal, err := cli.OpenTerminal(a.Stdin)
	if err != nil {
		return err
	}
	defer terminal.Close()
	keys := &keyboard{from: a.Stdin, to: a.Stdout}
	p := &prompter{tree: a, sb: sb, code: code, language: language, terminal: terminal, keys: keys, editor: term.NewTerminal(keys, ""), signals: make(chan os.Signal, 4)}
	p.editor.History = new(history)
	signal.Notify(p.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(p.signals)
	a.prompting = true
	if slices.Contains(sandpit.StatelessLanguages(), language) {
		a.Note("%s in %s: an empty line runs the code, which keeps no state; ^C interrupts, ^D leaves", language, sb.Name())
	} else {
		a.Note("%s in %s: ^C interrupts, ^D leaves", language, sb.Name())
	}
	return p.loop(ctx)
}

// languageOf returns the language of code that may name a context.
func languageOf(ctx context.Context, sb sandpit.Sandbox, code sandpit.Code) (string, error) {
	if code.Context == "" && code.Language == "" {
		return sandpit.Python, nil
	}
	if code.Context == "" {
		name := notation.LanguageName(code.Language)
		if !slices.Contains(sandpit.Languages(), name) && !slices.Contains(sandpit.StatelessLanguages(), name) {
			return "", notation.UnknownLanguage(name)
		}
		return name, nil
	}
	all, err := sb.Contexts(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all, func(c sandpit.CodeContext) bool { return c.ID == code.Context })
	if i < 0 {
		return "", aboutContext(sb, code, fault.Errorf(sandpit.ErrNotFound, "the sandbox has no context %q", code.Context))
	}
	return all[i].Language, nil
}

func (p *prompter) loop(ctx context.Context) error {
	block := ""
	for {
		line, pasted, err := p.line(block == "")
		switch {
		case errors.Is(err, io.EOF):
			_, err = io.WriteString(p.Stdout, "\n")
			return err
		case err != nil:
			return err
		case p.keys.interrupted:
			p.keys.interrupted, block = false, ""
			continue
		}
		if block != "" {
			block += "\n"
		}
		block += line
		if len(block) > sandpit.MaxCode {
			p.Note("the code is longer than %d MiB", sandpit.MaxCode>>20)
			block = ""
			continue
		}
		switch strings.TrimSpace(block) {
		case "":
			block = ""
			continue
		case "exit", "quit", "exit()", "quit()":
			return nil
		}
		if pasted || unfinished(p.language, block) {
			continue
		}
		code := p.code
		code.Source, block = block, ""
		if err := p.run(ctx, code); err != nil {
			return err
		}
	}
}

// line reads a line. It reports whether that was pasted together with its end.
func (p *prompter) line(first bool) (line string, pasted bool, err error) {
	if err := p.terminal.Raw(); err != nil {
		return "", false, err
	}
	defer p.terminal.Restore()
	size := p.terminal.Size()
	_ = p.editor.SetSize(int(size.Cols), int(size.Rows)) // it never fails before something is written
	p.editor.SetPrompt(">>> ")
	if !first {
		p.editor.SetPrompt("... ")
	}
	p.editor.SetBracketedPasteMode(true)
	defer p.editor.SetBracketedPasteMode(false)
	read := make(chan struct{})
	go func() {
		defer close(read)
		line, err = p.editor.ReadLine()
	}()
	select {
	case <-read:
		if errors.Is(err, term.ErrPasteIndicator) {
			return line, true, nil
		}
		return line, false, err
	case sig := <-p.signals: // no key sends any now
		return "", false, signaled(sig) // the goroutine ends with this program
	}
}

// run runs code until it has ended or is interrupted. The error ends the prompt.
func (p *prompter) run(ctx context.Context, code sandpit.Code) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.runCode(ctx, p.sb, code) }()
	for {
		select {
		case err := <-ended:
			var exit *cli.ExitError
			switch {
			case err == nil || errors.As(err, &exit):
			case ctx.Err() != nil:
				p.Note("interrupted")
			default:
				if _, gone := p.sb.Info(ctx); errors.Is(gone, sandpit.ErrNotFound) || errors.Is(gone, sandpit.ErrClosed) {
					return fault.Errorf(sandpit.ErrNotFound, "sandbox %q was removed", p.sb.Name())
				}
				p.PrintError(err)
			}
			return nil
		case sig := <-p.signals:
			cancel()
			if sig != syscall.SIGINT {
				return signaled(sig)
			}
		}
	}
}

// signaled is the exit code of a program that a signal ends.
func signaled(sig os.Signal) error { return cli.ExitWith(128 + int(sig.(syscall.Signal))) }

// keyboard is a terminal whose ^C clears the line and ends it.
type keyboard struct {
	from, to    *os.File
	rest        []byte // to be read
	interrupted bool
}

// Read reads what is typed.
func (k *keyboard) Read(b []byte) (int, error) {
	const interrupt, clearLine = "\x03", "\x05\x15\r" // to its end, delete to its start, return
	if len(k.rest) == 0 {
		buf := make([]byte, 4<<10)
		n, err := k.from.Read(buf)
		if err != nil {
			return 0, err
		}
		text := string(buf[:n])
		k.interrupted = k.interrupted || strings.Contains(text, interrupt)
		k.rest = []byte(strings.ReplaceAll(text, interrupt, clearLine))
	}
	n := copy(b, k.rest)
	k.rest = k.rest[n:]
	return n, nil
}

// Write writes to the terminal.
func (k *keyboard) Write(b []byte) (int, error) { return k.to.Write(b) }

// history is what was typed, without repetitions. It implements term.History.
type history struct{ lines []string }

// maxHistory is the number of lines that a prompt remembers.
const maxHistory = 1000

// Add adds a line.
func (h *history) Add(line string) {
	if strings.TrimSpace(line) == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return
	}
	if h.lines = append(h.lines, line); len(h.lines) > maxHistory {
		h.lines = slices.Delete(h.lines, 0, 1)
	}
}

// Len returns the number of lines.
func (h *history) Len() int { return len(h.lines) }

// At returns a line; 0 is the last one.
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }

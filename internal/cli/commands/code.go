package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

const codeLong = `Run code in a sandbox that keeps its state: variables, imports and functions of one run are
there in the next. The code is that of FILE, a file of this machine, of --eval, or of standard
input. At a terminal without FILE and --eval, a prompt reads it: blocks of several lines, and all
code of languages without state, end with an empty line, ^C interrupts, ^D and the words exit and
quit leave.

The languages are %s;
and, without state, %s.
Without --language and --context, the extension of FILE tells the language, or else its first line
if that begins with #!. Standard input, --eval and other files without an extension are Python.

What the code prints goes to standard output and standard error as it comes, and so does what it
displays, such as the value of its last expression. Of a format other than text, only the name and
the size are shown; --json has all of it.

The exit code is 1 with the traceback if the code failed, 124 if the time was over, and otherwise
that of the last command (bash), of the program, or of an interpreter that ended: 128+n if signal n
killed it. It is 125 if the code was not run. If this command is interrupted, so is the code; its
state stays.

Each language has a context, which its first run creates. 'sandpit context' creates others. Runs in
one context wait for each other, and this command says so; --timeout is the time of the code alone,
without waiting.`

// languageOfFile returns the language of a file by its name, or "".
func languageOfFile(name string) string {
	return map[string]string{
		".py": sandpit.Python, ".js": sandpit.JavaScript, ".mjs": sandpit.JavaScript, ".cjs": sandpit.JavaScript, ".ts": sandpit.TypeScript,
		".sh": sandpit.Bash, ".bash": sandpit.Bash, ".r": sandpit.R, ".pl": "perl", ".rb": "ruby", ".php": "php", ".lua": "lua",
		".go": "go", ".java": "java",
	}[strings.ToLower(filepath.Ext(name))]
}

// languageOfProgram returns the language of code whose first line names a program, as #!/usr/bin/env node does,
// and that program. Both are "" without such a line, and the language is if the program is not that of one.
func languageOfProgram(source string) (language, program string) {
	line, _, _ := strings.Cut(source, "\n")
	line, ok := strings.CutPrefix(line, "#!")
	words := strings.Fields(line)
	if !ok || len(words) == 0 {
		return "", ""
	}
	program = path.Base(words[0])
	if program == "env" {
		for _, word := range words[1:] {
			if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
				program = path.Base(word)
				break
			}
		}
	}
	name := strings.TrimRight(program, "0123456789.-") // python3.12
	if name == "Rscript" {
		name = sandpit.R
	}
	if name = notation.LanguageName(name); slices.Contains(sandpit.Languages(), name) || slices.Contains(sandpit.StatelessLanguages(), name) {
		language = name
	}
	return language, program
}

// sandboxFirst returns a hint if the first of the arguments is a file with code in place of the sandbox, or "".
func sandboxFirst(args []string) string {
	info, err := os.Stat(args[0])
	if languageOfFile(args[0]) == "" || err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return "write the sandbox first: 'sandpit code " + append(args, "NAME")[1] + " " + args[0] + "'"
}

// codeCommand is sandpit code.
func (a *tree) codeCommand() *cobra.Command {
	var asJSON bool
	language, inContext, timeout := textFlag("LANGUAGE"), textFlag("ID"), durationFlag()
	env := a.envFlag()
	env.parse = variableNotCode(env.parse)
	lines := parsedList[string]{parse: notEmpty, shown: "CODE"}
	cmd := &cobra.Command{
		Use: "code [flags] NAME [FILE|-]", Long: fmt.Sprintf(codeLong, strings.Join(sandpit.Languages(), ", "), strings.Join(sandpit.StatelessLanguages(), ", ")),
		Example: "  sandpit code work analysis.py\n  sandpit code work --eval 'x = 6 * 7; x'\n  generate | sandpit code work\n  sandpit context create work plots\n  sandpit code --context plots --timeout 1m work plot.py\n  sandpit code work",
		Args:    arguments(1, 2),
	}
	names := a.completeNames(1)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 1 {
			if len(lines.are) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault // files
		}
		return names(cmd, args, prefix)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if inContext.set && language.set {
			return sandpit.WithHint(cli.Usagef("--context has a language already"), "omit --language")
		}
		code := sandpit.Code{Language: language.is, Context: inContext.is, Timeout: timeout.is, Env: env.entries()}
		if len(lines.are) > 0 && len(args) > 1 {
			return sandpit.WithHint(cli.Usagef("--eval and FILE can't be combined"), "omit one of them")
		}
		file := append(args, "-")[1]
		if strings.EqualFold(filepath.Ext(file), ".ipynb") {
			return sandpit.WithHint(cli.Usagef("%q is a notebook, which holds code and results in JSON", file), "export its code: 'jupyter nbconvert --to script FILE'")
		}
		if !language.set && !inContext.set {
			if code.Language = languageOfFile(file); code.Language == "" && filepath.Ext(file) != "" {
				return sandpit.WithHint(cli.Usagef("the language of %q is not known by its name", file), "add --language")
			}
		}
		if len(args) == 1 && len(lines.are) == 0 && !asJSON && cli.IsTerminal(a.Stdin) && cli.IsTerminal(a.Stdout) {
			return a.prompt(cmd.Context(), args[0], code)
		}
		if code.Source = strings.Join(lines.are, "\n"); code.Source == "" {
			var err error
			if code.Source, err = a.readCode(file); err != nil {
				if hint := sandboxFirst(args); hint != "" && errors.Is(err, fs.ErrNotExist) {
					err = sandpit.WithHint(err, hint)
				}
				return err
			}
			if file != "-" && code.Language == "" && code.Context == "" {
				var program string
				if code.Language, program = languageOfProgram(code.Source); code.Language == "" && program != "" {
					return sandpit.WithHint(cli.Usagef("the language of %q is not known: its first line names %q", file, fault.Clip(program)), "add --language")
				}
			}
			if len(args) == 1 && len(env.are) > 0 && strings.TrimSpace(code.Source) == "" {
				return sandpit.WithHint(cli.Usagef("no code was given: --env sets variables, and standard input is empty"), "write code as --eval CODE")
			}
		}
		return a.withServer(cmd.Context(), false, func(ctx context.Context, s *session) error {
			sb, err := s.find(ctx, args[0])
			if err != nil {
				if hint := sandboxFirst(args); hint != "" && errors.Is(err, sandpit.ErrNotFound) {
					err = sandpit.WithHint(err, hint)
				}
				return err
			}
			if asJSON {
				return a.runCodeJSON(ctx, s, sb, code)
			}
			return a.runCode(ctx, sb, code)
		})
	}
	cmd.Flags().VarP(&language, "language", "l", "language (default that of FILE's name, or "+sandpit.Python+")")
	cmd.Flags().VarP(&inContext, "context", "c", "context to run in (default that of the language)")
	cmd.Flags().Var(&lines, "eval", "run CODE in place of a file; several are lines of the same code")
	cmd.Flags().Var(&timeout, "timeout", "time of the code, after which it is interrupted, or else killed (default none)")
	cmd.Flags().VarP(env, "env", "e", "set a variable during the run; KEY alone takes its value from here")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON when the code has ended")
	return at(cmd, placeServer)
}

// variableNotCode refuses what is not the name of a variable without a value, for those who know -e of
// other interpreters: it would set nothing, without a word.
func variableNotCode(parse func(string) (string, error)) func(string) (string, error) {
	return func(text string) (string, error) {
		if name := strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"); name != "" && !strings.Contains(text, "=") {
			return "", sandpit.WithHint(fmt.Errorf("%q is not the name of a variable", fault.Clip(text)), "write code as --eval CODE")
		}
		return parse(text)
	}
}

// envFlag is a flag of variables. KEY alone takes its value from the environment of this program.
func (a *tree) envFlag() *envFlag {
	return &envFlag{parsedList[string]{parse: func(text string) (string, error) {
		entry, _, err := notation.ParseEnv(text, a.Lookup)
		return entry, err
	}, shown: "KEY=VALUE"}}
}

type envFlag struct{ parsedList[string] }

// entries returns the variables, without those that are not set here.
func (f *envFlag) entries() []string {
	return slices.DeleteFunc(slices.Clone(f.are), func(e string) bool { return e == "" })
}

// readCode reads the code of a file, or of standard input.
func (a *tree) readCode(name string) (string, error) {
	file := a.Stdin
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return "", fmt.Errorf("reading the code: %w", err)
		}
		defer file.Close()
	}
	source, err := io.ReadAll(io.LimitReader(file, sandpit.MaxCode+1))
	if err != nil {
		return "", fmt.Errorf("reading the code: %w", err)
	}
	if len(source) > sandpit.MaxCode {
		return "", sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the code is longer than %d MiB", sandpit.MaxCode>>20), "put data into files of the sandbox: 'sandpit cp FILE NAME:/path'")
	}
	return strings.TrimPrefix(string(source), "\ufeff"), nil // of editors of Windows, which interpreters skip, too
}

// display shows what code prints and displays. Its methods are safe for concurrent use.
type display struct {
	mu     sync.Mutex
	inLine map[*os.File]bool // whose last line has no end: which output came last is chance
	err    error
}

// writer returns a writer to a file.
func (s *display) writer(to *os.File) io.Writer {
	return writing(func(b []byte) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.write(to, string(b))
	})
}

// write writes. Precondition: s.mu is held.
func (s *display) write(to *os.File, text string) {
	if text == "" || s.err != nil {
		return
	}
	if s.inLine == nil {
		s.inLine = map[*os.File]bool{}
	}
	s.inLine[to] = !strings.HasSuffix(text, "\n")
	_, s.err = to.WriteString(text)
}

// block writes a text in lines of its own.
func (s *display) block(to *os.File, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for file, open := range s.inLine {
		if open {
			s.write(file, "\n")
		}
	}
	if !strings.HasSuffix(text, "\n") && text != "" {
		text += "\n"
	}
	s.write(to, text)
}

// failure returns why something could not be written, or nil.
func (s *display) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return fmt.Errorf("writing the output: %w", s.err)
	}
	return nil
}

// writing is an io.Writer that never fails.
type writing func([]byte)

func (w writing) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// runCode runs code and shows what comes of it.
func (a *tree) runCode(ctx context.Context, sb sandpit.Sandbox, code sandpit.Code) error {
	s := new(display)
	code.Stdout, code.Stderr = s.writer(a.Stdout), s.writer(a.Stderr)
	code.Output = func(o sandpit.CodeOutput) { s.block(a.Stdout, displayed(o)) }
	code.Waits = func(runs int) {
		before := "another run"
		if runs > 1 {
			before = fmt.Sprintf("%d other runs", runs)
		}
		a.Note("waiting for %s in this context; 'sandpit context ls %s' shows it", before, sb.Name())
	}
	res, err := sb.RunCode(ctx, code)
	s.block(a.Stderr, "")
	if err != nil {
		return aboutContext(sb, code, err)
	}
	if res.StateLost != "" {
		a.Note("%s", res.StateLost)
	}
	if res.Stateless && !a.prompting {
		a.Note("%s keeps no state from one run to the next", code.Language)
	}
	if res.Error != nil {
		text := res.Error.Traceback
		if text == "" {
			text = res.Error.Name + ": " + res.Error.Value
		}
		s.block(a.Stderr, text)
	}
	a.tellEnd(res, code.Timeout)
	if err := s.failure(); err != nil {
		return err
	}
	return codeExit(res)
}

// aboutContext adds a hint to an error about the context of code, which may name none.
func aboutContext(sb sandpit.Sandbox, code sandpit.Code, err error) error {
	if !errors.Is(err, sandpit.ErrNotFound) || sandpit.Hint(err) != "" {
		return err
	}
	if code.Context != "" {
		return sandpit.WithHint(err, "run 'sandpit context create "+sb.Name()+" "+cli.Harmless(code.Context)+"' to create it, 'sandpit context ls "+sb.Name()+"' to list the contexts")
	}
	return sandpit.WithHint(err, "run 'sandpit context ls "+sb.Name()+"' to list the contexts")
}

// tellEnd says how a run ended, beside an error of the code.
func (a *tree) tellEnd(res sandpit.CodeResult, timeout time.Duration) {
	switch {
	case res.TimedOut && res.InterpreterEnd != "":
		a.Note("timeout of %s exceeded: %s; its state is lost", notation.FormatDuration(timeout), res.InterpreterEnd)
	case res.TimedOut:
		a.Note("interrupted: timeout of %s exceeded; raise it with --timeout", notation.FormatDuration(timeout))
	case res.InterpreterEnd != "":
		a.Note("%s; its state is lost", res.InterpreterEnd)
	}
	if res.Truncated {
		a.Note("some of the output is missing: it exceeded a bound")
	}
}

// codeExit returns the exit code of a run.
func codeExit(res sandpit.CodeResult) error {
	switch {
	case res.TimedOut:
		return cli.ExitWith(cli.ExitTimeout)
	case res.Error != nil:
		return cli.ExitWith(1)
	case res.ExitCode != 0:
		return cli.ExitWith(res.ExitCode)
	}
	return nil // an interpreter that exited with 0, too
}

// displayed returns what is shown of a value: a text, or which formats it has.
func displayed(o sandpit.CodeOutput) string {
	for _, text := range []string{o.Text, o.Markdown, o.LaTeX, string(o.JSON)} {
		if text != "" {
			return text
		}
	}
	var all []string
	add := func(kind string, size int) {
		if size > 0 {
			all = append(all, fmt.Sprintf("%s, %d bytes", cli.Harmless(kind), size))
		}
	}
	add("text/html", len(o.HTML))
	add("image/svg+xml", len(o.SVG))
	add("application/javascript", len(o.JavaScript))
	add("image/png", len(o.PNG))
	add("image/jpeg", len(o.JPEG))
	add("application/pdf", len(o.PDF))
	for kind, content := range o.Extra {
		add(kind, len(content))
	}
	slices.Sort(all)
	if len(all) == 0 {
		return ""
	}
	return "[" + strings.Join(all, "; ") + "]"
}

// runCodeJSON runs code and prints its result as the server sends it.
func (a *tree) runCodeJSON(ctx context.Context, s *session, sb sandpit.Sandbox, code sandpit.Code) error {
	var run v1.CodeRun
	if err := s.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(sb.ID())+"/code", v1.FromCode(code), &run); err != nil {
		return aboutContext(sb, code, err)
	}
	if err := a.PrintJSON(run); err != nil {
		return err
	}
	return codeExit(run.Sandpit())
}

package interpreter

import (
	"context"
	_ "embed" // the program
	"errors"
	"io"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

//go:embed loose.java
var looseProgram string

// once is a language without contexts: each run is a process of its own, which reads its program from
// standard input, and then the end of that.
type once struct {
	name string
	argv []string
	tool string // that a shell of argv starts, which exits with 127 if there is none; or ""
	find string // says to a shell where the tool is
}

// Without --allow-all, Deno asks for each right. The sandbox bounds the code already.
func onces() []once {
	return []once{
		{name: "perl", argv: []string{"perl", "-"}},
		{name: "ruby", argv: []string{"ruby", "-"}},
		{name: "php", argv: []string{"php"}},
		{name: "lua", argv: []string{"lua", "-"}},
		{name: "deno", argv: []string{"deno", "run", "--allow-all", "-"}},
		{name: "bun", argv: []string{"bun", "run", "-"}},
		// 'go run' has no exit code of the program. Go is often where its own guide puts it, and needs a directory to keep
		// what it compiles.
		onceOfFile("go", "go", "PATH=$PATH:/usr/local/go/bin\n", "main.go", `[ -n "$GOCACHE$XDG_CACHE_HOME" ] || [ -w "${HOME:-/-}" ] || export GOCACHE=/tmp/.cache/go-build
go build -o "$d/main" "$d/main.go" && "$d/main" </dev/null`),
		// 'java' wants a class with a method main. Other code is read as jshell reads it, which itself hides failures.
		onceOfFile("java", "java", "", "Main.java", `case $(tr -s ' \t\r\n' ' ' <"$d/Main.java") in
*"void main("*|*"void main ("*) loose= ;;
*) loose=$(command -v jshell) ;;
esac
[ -z "$loose" ] || cat >"$d/Loose.java" <<'END'
`+looseProgram+`END
java ${loose:+"$d/Loose.java"} "$d/Main.java" </dev/null`),
	}
}

// onceOfFile returns a language whose tool reads its program from a file, which a shell makes, and removes when the program has
// ended. $d is its directory. The shell ends as the program does.
func onceOfFile(name, tool, find, file, run string) once {
	script := find + "command -v " + tool + ` >/dev/null || exit 127
d=$(mktemp -d) && cat >"$d/` + file + `" || exit 1
` + run + `
s=$?
rm -rf "$d"
[ $s -gt 128 ] && kill -$((s-128)) $$ 2>/dev/null
exit $s`
	return once{name: name, argv: []string{"/bin/sh", "-c", script}, tool: tool, find: find}
}

// onceOf returns a language without contexts by its name.
func onceOf(name string) (once, bool) {
	name = notation.LanguageName(name)
	for _, o := range onces() {
		if o.name == name {
			return o, true
		}
	}
	return once{}, false
}

// run runs code. When ctx ends or its time is over, it is killed.
func (o once) run(ctx context.Context, place Starter, code sandpit.Code) (sandpit.CodeResult, error) {
	p, err := place.Start(ctx, sandpit.Command{Argv: o.argv, Env: code.Env, Stdin: true, Stdout: code.Stdout, Stderr: code.Stderr, Timeout: code.Timeout}, Cold)
	if err != nil {
		return sandpit.CodeResult{}, missing(err, absent(o.name, o.argv[0], ""))
	}
	go func() { // which an end of the process ends
		_, _ = io.WriteString(p.Stdin(), code.Source)
		_ = p.Stdin().Close()
	}()
	res, err := p.Wait(ctx)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
		defer cancel()
		return sandpit.CodeResult{}, errors.Join(err, p.Kill(undo))
	}
	out := sandpit.CodeResult{Stateless: true, ExitCode: res.ExitCode, TimedOut: res.TimedOut, Truncated: res.DroppedBytes > 0, Wall: res.Wall}
	switch {
	case res.TimedOut:
	case res.Signal != 0 || res.OOMKilled:
		out.InterpreterEnd = (&instance{result: res}).why()
	case res.ExitCode == 127 && o.lacks(ctx, place, code.Env):
		return sandpit.CodeResult{}, absent(o.name, o.tool, "")
	}
	return out, nil
}

// lacks reports whether the sandbox lacks the tool that a shell was to start. A program may exit with 127, too.
func (o once) lacks(ctx context.Context, place Starter, env []string) bool {
	if o.tool == "" {
		return false
	}
	p, err := place.Start(ctx, sandpit.Command{Script: o.find + "command -v " + o.tool, Env: env}, Cold)
	if err != nil {
		return false
	}
	res, err := p.Wait(ctx)
	return err == nil && res.ExitCode != 0
}

// missing returns absent if a process could not be started because the sandbox lacks its program.
func missing(err, absent error) error {
	if start, ok := errors.AsType[*sandpit.StartError](err); ok && start.ExitCode == 127 {
		return absent
	}
	return err
}

// absent says that the sandbox lacks an interpreter. image is one that has it, or "".
func absent(language, program, image string) error {
	hint := "use an image that has it"
	if image != "" {
		hint += ", such as " + image
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "the sandbox has no interpreter for %s: %q was not found in its PATH", language, program), hint)
}

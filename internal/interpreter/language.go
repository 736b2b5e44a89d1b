package interpreter

import (
	"cmp"
	_ "embed" // the programs
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

//go:embed kernel.py
var pythonProgram string

//go:embed charts.py
var chartsProgram string

//go:embed ipython.py
var ipythonProgram string

//go:embed magics.py
var magicsProgram string

//go:embed kernel.js
var nodeProgram string

// language is a language that contexts speak.
type language struct {
	name               string
	argv               []string // of an interpreter that reads its program from standard input
	program            string
	image              string // that has the interpreter, for hints
	tooOld             string // what to do if the program says that its interpreter can't run the language; or ""
	interruptByMessage bool   // an interrupt is also a line on the channel, because signals do not end loops
	wrappedProgram     string // the interpreter, if a shell starts it, which exits with 127 if there is none
	lines              *lines // it has no channel; nil: it has
}

func languages() []language {
	return []language{
		{name: sandpit.Python, argv: []string{"python3", "-u", "-X", "utf8", "-"}, program: chartsProgram + pythonProgram, image: "python:3.12-slim"},
		{name: sandpit.JavaScript, argv: node(), program: nodeProgram, image: "node:22-slim", interruptByMessage: true},
		{
			name: sandpit.TypeScript, argv: node(), program: nodeProgram, image: "node:22-slim", interruptByMessage: true,
			tooOld: "use an image with node 22.13 or later, such as node:22-slim, or install the package typescript",
		},
		{name: sandpit.Bash, argv: []string{"bash", "--norc", "--noprofile", "--noediting", "-i", "-s"}, lines: bashLines(), image: "debian:13-slim"},
		{name: sandpit.R, argv: rCommand(), wrappedProgram: "Rscript", lines: rLines(), image: "r-base:4.5.2"},
	}
}

// node returns the command of node. Without the flag it aborts when a callback is terminated.
func node() []string { return []string{"node", "--no-force-async-hooks-checks", "-"} }

// languageOf returns a language by its name, or the default one.
func languageOf(name string) (language, error) {
	all := languages()
	if name == "" {
		return all[0], nil
	}
	name = notation.LanguageName(name)
	for _, l := range all {
		if l.name == name {
			return l, nil
		}
	}
	if _, ok := onceOf(name); ok {
		return language{}, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "there are no contexts for the language %.40q", name), "run the code without a context: it keeps no state")
	}
	return language{}, notation.UnknownLanguage(name)
}

// unable says that the interpreter that the sandbox has is too old.
func (l language) unable() error {
	return sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "the sandbox has no interpreter for %s: its %s can't run it", l.name, l.argv[0]), l.tooOld)
}

// zygoteTag is the last argument of a zygote. The others are those that the command lines of its forks begin with.
const zygoteTag = "sandpit-zygote"

// zygoteCommand returns the command line of a zygote.
func zygoteCommand() []string { return append(languages()[0].argv, zygoteTag) }

// tag is the argument before those that say which context a process is. One with readyTag is not a context before
// its first run.
const (
	tag      = "sandpit-context"
	readyTag = "sandpit-ready"
)

// setup is what a program is told at its start.
type setup struct {
	Language string   `json:"language"`
	Socket   string   `json:"socket"`
	Nonce    string   `json:"nonce"` // of the mark when it listens
	Stale    []string `json:"stale"` // sockets of earlier interpreters, which it removes
	MaxLine  int      `json:"max_line"`
	Dir      string   `json:"dir"`
	Env      []string `json:"env"`
	Modules  []string `json:"modules,omitempty"` // to be imported before it listens
	Zygote   bool     `json:"zygote,omitempty"`  // it runs no code, but forks contexts
	IPython  string   `json:"ipython,omitempty"` // of Python: the program that stands in for that package
	Magics   string   `json:"magics,omitempty"`  // of Python: the program of magics
}

// absent says that a sandbox lacks the interpreter.
func (l language) absent() error { return absent(l.name, cmp.Or(l.wrappedProgram, l.argv[0]), l.image) }

// identity is which context a process is, as its command line says.
type identity struct {
	tag      string // or readyTag
	id       string
	language language
	socket   string
}

// command returns the command line.
func (i identity) command() []string {
	return slices.Concat(i.language.argv, []string{i.tag, i.id, i.language.name, i.socket})
}

// parseCommand says which context a process is, by its command line.
func parseCommand(argv []string) (i identity, ok bool) {
	at := len(argv) - 4
	if at < 0 || argv[at] != tag && argv[at] != readyTag {
		return identity{}, false
	}
	l, err := languageOf(argv[at+2])
	i = identity{tag: argv[at], id: argv[at+1], language: l, socket: argv[at+3]}
	return i, err == nil && checkID(i.id) == nil && slices.Equal(argv, i.command()) && strings.HasPrefix(i.socket, Sockets)
}

// source returns the program as the interpreter reads it.
func (l language) source(s setup) (string, error) {
	if l.lines != nil {
		return l.lines.start(s)
	}
	if l.name == sandpit.Python {
		s.IPython, s.Magics = ipythonProgram, magicsProgram
	}
	told, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	return `SETUP = "` + base64.StdEncoding.EncodeToString(told) + "\";\n" + l.program, nil
}

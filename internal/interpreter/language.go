package interpreter

import (
	_ "embed" // the programs
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

//go:embed kernel.py
var pythonProgram string

// language is a language that contexts speak.
type language struct {
	name    string
	argv    []string // of an interpreter that reads its program from standard input
	program string
	image   string // that has the interpreter, for hints
}

func languages() []language {
	return []language{
		{sandpit.Python, []string{"python3", "-u", "-X", "utf8", "-"}, pythonProgram, "python:3.12-slim"},
	}
}

// languageOf returns a language by its name, or the default one.
func languageOf(name string) (language, error) {
	all := languages()
	if name == "" {
		return all[0], nil
	}
	var names []string
	for _, l := range all {
		if l.name == name {
			return l, nil
		}
		names = append(names, l.name)
	}
	return language{}, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "there are no contexts for the language %.40q", name), "use one of: "+strings.Join(names, ", "))
}

// tag is the argument before those that say which context a process is.
const tag = "sandpit-context"

// setup is what a program is told at its start.
type setup struct {
	Socket  string   `json:"socket"`
	Nonce   string   `json:"nonce"` // of the mark when it listens
	Stale   []string `json:"stale"` // sockets of earlier interpreters, which it removes
	MaxLine int      `json:"max_line"`
	Dir     string   `json:"dir"`
	Env     []string `json:"env"`
}

// command returns the command line of a context.
func (l language) command(id, socket string) []string {
	return slices.Concat(l.argv, []string{tag, id, l.name, socket})
}

// parseCommand says which context a process is, by its command line.
func parseCommand(argv []string) (l language, id, socket string, ok bool) {
	i := slices.Index(argv, tag)
	if i < 0 || len(argv) != i+4 {
		return language{}, "", "", false
	}
	id, socket = argv[i+1], argv[i+3]
	l, err := languageOf(argv[i+2])
	return l, id, socket, err == nil && checkID(id) == nil && slices.Equal(argv, l.command(id, socket)) && strings.HasPrefix(socket, socketPrefix)
}

// source returns the program as the interpreter reads it.
func (l language) source(s setup) (string, error) {
	told, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	return `SETUP = "` + base64.StdEncoding.EncodeToString(told) + "\"\n" + l.program, nil
}

// Package config finds and reads what people set for every run: configuration
// files and SANDPIT_* variables.
//
// A setting is a key, which is the long name of a flag, and its values as text,
// exactly as they would be given to the flag. So a value means the same thing
// wherever it stands, and is checked by the same code.
//
// The levels, strongest first:
//
//	a flag on the command line
//	a variable: SANDPIT_MEMORY for --memory
//	the user's file: $SANDPIT_CONFIG, else $XDG_CONFIG_HOME/sandpit/config.yaml,
//	    else ~/.config/sandpit/config.yaml
//	the system's file: /etc/sandpit/config.yaml
//	what is built in
//
// A key of a stronger level replaces that of a weaker one, except for maps (env,
// env-file and label), which add up, a stronger entry replacing a weaker one of
// the same name.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sandpit-dev/sandpit"
)

// Level is where a setting comes from; a greater one is stronger.
type Level int

// The levels, weakest first.
const (
	BuiltIn Level = iota
	System
	User
	Environment
	Flag
)

// Origin is where a setting stands.
type Origin struct {
	Level Level
	Where string // "FILE:LINE" or "SANDPIT_NAME"; empty for a flag
}

// Setting is a key with its values.
type Setting struct {
	Key    string
	Values []string // one or more; more than one only from a list or map
	Origin Origin
}

// SystemFile is the configuration of everyone on a machine.
const SystemFile = "/etc/sandpit/config.yaml"

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// Environ is the environment that the settings are read from.
type Environ struct {
	Lookup func(string) (string, bool) // like os.LookupEnv
	System string                      // the system's file; empty: none
}

// get returns a variable's value; an empty one counts as not set.
func (e Environ) get(name string) string {
	v, _ := e.Lookup(name)
	return v
}

// Files returns the system's and the user's configuration file, "" for none.
// Asked says that the user's file was named by SANDPIT_CONFIG, so that it must
// exist.
func (e Environ) Files() (system, user string, asked bool) {
	if file := e.get("SANDPIT_CONFIG"); file != "" {
		return e.System, file, true
	}
	if dir := e.get("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return e.System, filepath.Join(dir, "sandpit", "config.yaml"), false
	}
	if home := e.get("HOME"); filepath.IsAbs(home) {
		return e.System, filepath.Join(home, ".config", "sandpit", "config.yaml"), false
	}
	return e.System, "", false
}

// Load returns the settings of all levels but the flags, the weakest first. The
// error of a file that can't be read or understood has its name and line, and
// matches sandpit.ErrInvalid.
func (e Environ) Load(keys []Key) ([]Setting, error) {
	system, user, asked := e.Files()
	settings, err := readFile(system, System, false, keys)
	if err != nil {
		return nil, err
	}
	ofUser, err := readFile(user, User, asked, keys)
	if err != nil {
		return nil, err
	}
	settings = append(settings, ofUser...)
	for _, key := range keys {
		name := key.Variable()
		text := e.get(name)
		if text == "" {
			continue
		}
		values := []string{text}
		if key.Kind != Scalar {
			values = nonEmptyLines(text)
		}
		if len(values) > 0 {
			settings = append(settings, Setting{Key: key.Name, Values: values, Origin: Origin{Level: Environment, Where: name}})
		}
	}
	return settings, nil
}

// Error is what is wrong with a configuration. It matches sandpit.ErrInvalid.
type Error struct{ Err error }

// Error returns the text of Err: the file, the line, and what is wrong there.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err and sandpit.ErrInvalid.
func (e *Error) Unwrap() []error { return []error{e.Err, sandpit.ErrInvalid} }

// Kind is the form of a key's value.
type Kind int

// The kinds of keys.
const (
	Scalar Kind = iota // one value
	List               // any number of values
	Map                // any number of NAME=VALUE, which a file may also write as a mapping
)

// Key is something that can be set.
type Key struct {
	Name string // as that of the flag: "output-limit"
	Kind Kind
}

// Variable is the name of the key's environment variable: SANDPIT_OUTPUT_LIMIT.
// In it, the values of a list or map stand on lines of their own.
func (k Key) Variable() string {
	return "SANDPIT_" + strings.ToUpper(strings.ReplaceAll(k.Name, "-", "_"))
}

// UnknownVariables returns the names in environ ("NAME=VALUE" entries) that
// start with SANDPIT_ and belong to no key: most likely slips of the pen.
func UnknownVariables(environ []string, keys []Key) []string {
	var unknown []string
next:
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "SANDPIT_") || name == "SANDPIT_CONFIG" {
			continue
		}
		for _, key := range keys {
			if key.Variable() == name {
				continue next
			}
		}
		unknown = append(unknown, name)
	}
	return unknown
}

func nonEmptyLines(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// readFile reads a configuration file. One that does not exist is empty,
// unless it was asked for.
func readFile(name string, level Level, asked bool, keys []Key) ([]Setting, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	// A home that is no directory, as of users that have none, has no file either.
	if !asked && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
		return nil, nil
	}
	if err != nil {
		return nil, sandpit.WithHint(&Error{fmt.Errorf("opening the configuration: %w", err)},
			"make it readable for this user, or set SANDPIT_CONFIG to another file")
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, sandpit.WithHint(&Error{fmt.Errorf("reading the configuration: %w", err)}, "set SANDPIT_CONFIG to a regular file")
	}
	if len(data) > maxFile {
		return nil, &Error{fmt.Errorf("%s: the file is larger than 1 MiB", name)}
	}
	return parse(name, data, level, keys)
}

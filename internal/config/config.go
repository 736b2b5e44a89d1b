// Package config reads the user's settings: configuration files and SANDPIT_* variables.
//
// A setting is a key, which is the long name of a flag, and its values as text,
// exactly as they would be given to the flag. So a value means the same everywhere, and the same
// code checks it.
//
// The levels, highest precedence first:
//
//	a flag on the command line
//	a variable: SANDPIT_MEMORY for --memory
//	the user's file: $SANDPIT_CONFIG, else $XDG_CONFIG_HOME/sandpit/config.yaml,
//	    else ~/.config/sandpit/config.yaml
//	the system's file: /etc/sandpit/config.yaml
//	the built-in defaults
//
// A key of a higher level replaces that of a lower one. Maps (env, env-file, label and ulimit) are merged:
// an entry of a higher level replaces a lower one of the same name.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/yamldoc"
)

// Level is the kind of source of a setting; a greater one takes precedence.
type Level int

// The levels, lowest precedence first.
const (
	BuiltIn Level = iota
	System
	User
	Environment
	Flag
)

// Origin is the source of a setting.
type Origin struct {
	Level Level
	Where string // "FILE:LINE" or "SANDPIT_NAME"; empty for a flag
}

// Place says where a key was set, for errors: "FILE:LINE: KEY", or the variable, whose name says the key.
func (o Origin) Place(key string) string {
	if o.Level == Environment {
		return o.Where
	}
	return o.Where + ": " + key
}

// Setting is a key with its values.
type Setting struct {
	Key    string
	Values []string // one or more; more than one only from a list or map
	Origin Origin
}

// SystemFile is the configuration file of the machine.
const SystemFile = "/etc/sandpit/config.yaml"

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// Environ is the environment from which settings are read.
type Environ struct {
	Lookup func(string) (string, bool) // like os.LookupEnv
	System string                      // the system's file; empty: none
}

// get returns a variable's value; an empty one counts as not set.
func (e Environ) get(name string) string {
	v, _ := e.Lookup(name)
	return v
}

// Files returns the system's and the user's configuration file, or "". asked says that
// SANDPIT_CONFIG names the user's file, which must then exist.
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

// Load returns the settings of all levels except flags, lowest precedence first. The error
// for an invalid file has its name and line, and matches sandpit.ErrInvalid.
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

// Kind is the form of a key's value.
type Kind int

// The kinds of keys.
const (
	Scalar Kind = iota // one value
	List               // any number of values
	Map                // any number of NAME=VALUE, which a file may also write as a mapping
)

// Key describes a setting.
type Key struct {
	Name string // as that of the flag: "output-limit"
	Kind Kind
}

// Variable is the name of the key's environment variable: SANDPIT_OUTPUT_LIMIT. Newlines
// separate the values of a list or map.
func (k Key) Variable() string {
	return "SANDPIT_" + strings.ToUpper(strings.ReplaceAll(k.Name, "-", "_"))
}

// UnknownVariables returns the names in environ ("NAME=VALUE" entries) that start with
// SANDPIT_ and belong to no key: most likely typing errors. Those that start with SANDPIT_TEST_
// are for tests.
func UnknownVariables(environ []string, keys []Key) []string {
	var unknown []string
next:
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "SANDPIT_") || strings.HasPrefix(name, "SANDPIT_TEST_") || name == "SANDPIT_CONFIG" {
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
	// A home that is not a directory, as of users that have none, has no file either.
	if !asked && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
		return nil, nil
	}
	if !asked && level == User && errors.Is(err, fs.ErrPermission) {
		// A home that this user can't enter is another's, as after a change of the user that kept HOME.
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrPermission) {
			return nil, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, sandpit.WithHint(fault.Invalidf("reading the configuration: %w", err),
			"create it, or correct SANDPIT_CONFIG")
	}
	if err != nil {
		return nil, sandpit.WithHint(fault.Invalidf("reading the configuration: %w", err),
			"make it readable for this user, or set SANDPIT_CONFIG to another file")
	}
	defer f.Close()
	return parse(name, f, level, keys)
}

// parse reads a mapping of keys to plain values, and to lists or mappings of them.
func parse(name string, r io.Reader, level Level, keys []Key) ([]Setting, error) {
	var settings []Setting
	err := yamldoc.Decode(name, r, maxFile, func(doc yamldoc.Value) error {
		fields, err := doc.Fields()
		for _, field := range fields {
			known, ok := find(keys, field.Name)
			if !ok {
				return &yamldoc.Error{Line: field.Line, Err: sandpit.WithHint(fmt.Errorf("unknown key %.80q", field.Name),
					"use the long names of the flags of sandpit run; see 'sandpit help config'")}
			}
			values, err := valuesOf(field, known.Kind)
			if err != nil {
				return err
			}
			if len(values) > 0 { // not an empty list
				settings = append(settings, Setting{known.Name, values, Origin{level, fmt.Sprintf("%s:%d", name, field.Line)}})
			}
		}
		return err
	})
	if err == nil {
		return settings, nil
	}
	if sandpit.Hint(err) == "" {
		err = sandpit.WithHint(err, "write lines of KEY: VALUE; see 'sandpit help config'")
	}
	return nil, fault.Invalidf("reading the configuration: %w", err)
}

func find(keys []Key, name string) (Key, bool) {
	i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name })
	if i < 0 {
		return Key{}, false
	}
	return keys[i], true
}

// valuesOf returns the values of a key as text.
func valuesOf(v yamldoc.Value, kind Kind) (values []string, err error) {
	switch {
	case kind != Scalar && v.IsList():
		err = yamldoc.List(&values, yamldoc.String)(v)
		return values, err
	case kind == Map && v.IsMapping():
		fields, err := v.Fields()
		for _, field := range fields {
			text, err := field.Text()
			if err == nil && strings.Contains(field.Name, "=") {
				err = field.Fail(errors.New("a name can't have a = in it"))
			}
			if err != nil {
				return nil, err
			}
			values = append(values, field.Name+"="+text)
		}
		return values, err
	}
	text, err := v.Text()
	return []string{text}, err
}

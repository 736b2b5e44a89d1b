package secret

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// maxSource bounds what is read of a source, in bytes: more than a value may have.
const maxSource = 1 << 20

// Read reads a value on this machine: env:NAME, file:PATH or cmd:COMMAND, which is for /bin/sh, has the
// given environment and stderr, and is killed when ctx ends. Errors never have the value.
func Read(ctx context.Context, source string, environ []string, stderr io.Writer) (string, error) {
	kind, rest, _ := strings.Cut(source, ":")
	failed := func(err error) (string, error) { return "", fmt.Errorf("reading the value: %w", err) }
	var text []byte
	switch {
	case kind == "env" && rest != "":
		value, ok := "", false
		for _, entry := range environ { // the last one wins, as in os/exec
			if v, is := strings.CutPrefix(entry, rest+"="); is {
				value, ok = v, true
			}
		}
		if !ok {
			return "", sandpit.WithHint(fault.Invalidf("reading the value: the variable %s is not set", rest), "set it, or use another source")
		}
		text = []byte(value)
	case kind == "file" && rest != "":
		f, err := os.Open(rest)
		if err != nil {
			return failed(err)
		}
		defer f.Close()
		if text, err = io.ReadAll(io.LimitReader(f, maxSource)); err != nil {
			return failed(err)
		}
	case kind == "cmd" && rest != "":
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", rest)
		cmd.Env, cmd.Stderr, cmd.WaitDelay = environ, stderr, time.Second // for what it has started, and left
		var err error
		if text, err = cmd.Output(); err != nil {
			return failed(fmt.Errorf("the command: %w", err))
		}
	default:
		return "", sandpit.WithHint(fault.Invalidf("%q is not a source of a value", fault.Clip(source)), "write env:NAME, file:PATH or cmd:COMMAND")
	}
	return Trim(text)
}

// Trim removes the line break at the end of a value that was read.
func Trim(text []byte) (string, error) {
	value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if err := CheckValue(value); err != nil {
		return "", err
	}
	return value, nil
}

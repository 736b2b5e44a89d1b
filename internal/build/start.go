package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Variables of images that have what their template starts in each sandbox.
const (
	startVariable = "SANDPIT_TEMPLATE_START"
	readyVariable = "SANDPIT_TEMPLATE_READY"
)

// StartProgram starts the program of the template that a sandbox was made of, and waits until it is ready. env is its environment, beside
// that of the sandbox.
func StartProgram(ctx context.Context, sb engine.Box, env []string) error {
	made, err := sb.Made()
	if err != nil {
		return err
	}
	start, ready := commandsOf(made.Guest.Env)
	return startProgram(ctx, sb, start, ready, maxWakeTime, sandpit.Command{Env: env})
}

// commandsOf returns what a sandbox runs that is made of a template, whose image has variables.
func commandsOf(env []string) (start, ready string) {
	for _, v := range env {
		if s, ok := strings.CutPrefix(v, startVariable+"="); ok {
			start = s
		}
		if s, ok := strings.CutPrefix(v, readyVariable+"="); ok {
			ready = s
		}
	}
	if isPause(ready) { // which the build has had
		ready = ""
	}
	return start, ready
}

const bash = "/bin/bash"

// loginShell returns what runs a command of a template: bash, or /bin/sh in images without it.
func loginShell(ctx context.Context, sb engine.Box, command string) []string {
	shell := bash
	if _, err := sb.Files().Stat(ctx, bash); errors.Is(err, fs.ErrNotExist) {
		shell = "/bin/sh"
	}
	return []string{shell, "-l", "-c", command}
}

// isPause reports whether a ready command tests nothing: the SDKs have a template of a Dockerfile with a CMD sleep for 20 s.
func isPause(command string) bool {
	words := strings.Fields(command)
	return len(words) == 2 && words[0] == "sleep" && strings.Trim(words[1], "0123456789.smhd") == "" && !strings.Contains(strings.TrimSpace(command), "\n")
}

// startProgram starts a program that goes on running, if there is one, and waits until another one says that it is ready.
func startProgram(ctx context.Context, sb engine.Box, start, ready string, within time.Duration, like sandpit.Command) error {
	if start != "" {
		like.Argv, like.Background = loginShell(ctx, sb, start), true
		p, err := sb.Start(ctx, like)
		if err != nil {
			return fmt.Errorf("starting the program of the template: %w", err)
		}
		dialect.Detach(p)
	}
	if ready == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	like.Argv, like.Background = loginShell(ctx, sb, ready), false
	for {
		out, err := sandpit.Run(ctx, sb, like)
		switch {
		case err == nil && out.ExitCode == 0:
			return nil
		case ctx.Err() != nil:
			return &gate.Refusal{Code: errcode.Timeout, Message: "the template was not ready within " + within.String(), Hint: "move slow work to steps of the build: sandboxes of the template run the same commands"}
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(readyPause):
		}
	}
}

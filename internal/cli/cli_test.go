package cli_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// TestMain lets this test program be sandpit, and its terminal guard, when it
// is started under those names.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sandpit":     program,
		cli.GuardName: cli.GuardTerminal,
	})
}

func program() {
	app := &cli.App{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Environ:      os.Environ(),
		SystemConfig: os.Getenv("TEST_SYSTEM_CONFIG"),
		Version:      "v0-test",
		NewClient:    func(cli.ClientOptions) (sandpit.Client, error) { return hostClient{}, nil },
		Drivers:      func(string) []driver.Driver { return nil },
		OpenImages: func(home string) *image.Store {
			return image.Open(filepath.Join(home, "images"), image.Options{})
		},
	}
	os.Exit(app.Report(app.Run(context.Background(), os.Args[1:])))
}

// TestScripts runs the command line as people do: see testdata/script.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": code,
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("SANDPIT_HOME", filepath.Join(env.WorkDir, "data"))
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("XDG_CONFIG_HOME", "")
			env.Setenv("ESCAPE", "\x1b[2Jx")
			return nil
		},
	})
}

// code runs a command line and expects its exit code: code 125 sandpit run.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command...")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := err.(*exec.ExitError)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = strconv.Itoa(exit.ExitCode())
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

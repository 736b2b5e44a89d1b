package server_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

const (
	recipes   = "../../tools/clients" // the generators, with their versions, and the scenarios
	reference = "../api/openapi/openapi.json"
)

// generator runs the generator of a client, and the tools that are installed with it.
type generator struct {
	t        *testing.T
	language string
	dir      string          // a copy of its recipe, the reference and the reporters of methods, where the client is generated
	env      []string        // in addition to that of this process
	around   func(*exec.Cmd) // changes a command before it is started; nil: nothing
}

func newGenerator(t *testing.T, language string, env []string) *generator {
	t.Helper()
	testkit.NeedFull(t, "it generates and compiles a client")
	g := &generator{t: t, language: language, dir: t.TempDir(), env: env}
	if err := os.CopyFS(g.dir, os.DirFS(filepath.Join(recipes, language))); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{reference, filepath.Join(recipes, "report.mjs"), filepath.Join(recipes, "report.py")} {
		if err := copyInto(g.dir, file); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// version replaces the files of the recipe by those of a version, unless it is the newest one.
func (g *generator) version(version string) {
	g.t.Helper()
	if version == newest {
		return
	}
	from := filepath.Join(g.dir, "versions", version)
	files, err := os.ReadDir(from)
	for _, f := range files {
		if err == nil {
			err = copyInto(g.dir, filepath.Join(from, f.Name()))
		}
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// fetched skips the test if packages could not be fetched. In continuous integration it
// fails, as the linters do, see scripts/lint.sh.
func (g *generator) fetched(err error) {
	g.t.Helper()
	if err != nil && os.Getenv("CI") != "" {
		g.t.Fatal(err)
	}
	testkit.Need(g.t, "the packages of "+g.language, err)
}

// installed returns a directory in .cache, in which tools are installed by the given files
// of the recipe. Its name depends on their content, so they are installed once.
func (g *generator) installed(pins []string, install func(tools string) error) (tools string) {
	g.t.Helper()
	sum := sha256.New()
	for _, name := range pins {
		text, err := os.ReadFile(filepath.Join(g.dir, name))
		if err != nil {
			g.t.Fatal(err)
		}
		_, _ = fmt.Fprintf(sum, "%s %d %s", name, len(text), text)
	}
	cache, err := filepath.Abs("../../.cache/clients")
	if err == nil {
		err = os.MkdirAll(cache, 0o700)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	// Another run of the tests may install them at the same time.
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		g.t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		g.t.Fatal(err)
	}
	tools = filepath.Join(cache, fmt.Sprintf("%s-%x", g.language, sum.Sum(nil)[:8]))
	complete := filepath.Join(tools, "complete")
	if _, err := os.Stat(complete); err == nil {
		return tools
	}
	err = os.RemoveAll(tools)
	if err == nil {
		err = os.Mkdir(tools, 0o700)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.fetched(install(tools))
	if err := os.WriteFile(complete, nil, 0o600); err != nil {
		g.t.Fatal(err)
	}
	return tools
}

// modules installs the packages of the recipe's lock file, makes them available where the client
// is, and returns their directory. command is that of npm, by default ci.
func (g *generator) modules(npm string, command ...string) (dir string) {
	g.t.Helper()
	pins := []string{"package.json", "package-lock.json", ".npmrc"}
	tools := g.installed(pins, func(tools string) error {
		for _, name := range pins {
			if err := copyInto(tools, filepath.Join(g.dir, name)); err != nil {
				return err
			}
		}
		if len(command) == 0 {
			command = []string{"ci", "--engine-strict"}
		}
		cmd := g.command(npm, append(command, "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000")...)
		cmd.Dir = tools
		return failure(cmd)
	})
	dir = filepath.Join(g.dir, "node_modules")
	if err := os.Symlink(filepath.Join(tools, "node_modules"), dir); err != nil {
		g.t.Fatal(err)
	}
	return dir
}

// venv installs the packages of the recipe's requirements, and returns the directory of their programs.
func (g *generator) venv(python string) (bin string) {
	g.t.Helper()
	return filepath.Join(g.installed([]string{"requirements.txt"}, func(tools string) error {
		if err := failure(g.command(python, "-m", "venv", tools)); err != nil {
			return err
		}
		return failure(g.command(filepath.Join(tools, "bin/python"), "-m", "pip", "install", "--quiet", "--retries=1", "--disable-pip-version-check", "-r", "requirements.txt"))
	}), "bin")
}

// command returns a program that runs where the client is.
func (g *generator) command(program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(g.t.Context(), program, args...)
	cmd.Dir, cmd.Env = g.dir, append(os.Environ(), g.env...)
	if g.around != nil {
		g.around(cmd)
	}
	return cmd
}

// run runs a program and returns what it printed. If it fails, the test does.
func (g *generator) run(program string, args ...string) string {
	g.t.Helper()
	out, err := g.command(program, args...).CombinedOutput()
	if err != nil {
		g.t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// quiet is run for a program that prints only what it warns of.
func (g *generator) quiet(program string, args ...string) {
	g.t.Helper()
	if out := g.run(program, args...); strings.TrimSpace(out) != "" {
		g.t.Errorf("%s warns: %s", filepath.Base(program), out)
	}
}

// Clients that generators make of the reference compile, and can do what a program needs:
// each runs the same scenario on a server. The generators and linters of the document warn
// of nothing.
func TestGeneratedClients(t *testing.T) {
	s := newServed(t)
	s.overTCP()
	s.start()
	createOf(t, s.unix(), small("probe")) // skips where none can be made
	key := s.keyOf("generated", "")
	env := []string{
		"SANDPIT_URL=https://" + s.tcp, "SANDPIT_KEY=" + key,
		"SSL_CERT_FILE=" + s.settings.Cert, "NODE_EXTRA_CA_CERTS=" + s.settings.Cert,
	}

	t.Run("TypeScript", func(t *testing.T) {
		npm, node := testkit.NeedProgram(t, "npm"), testkit.NeedProgram(t, "node")
		g := newGenerator(t, "typescript", append(env, "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true"))
		modules := g.modules(npm)
		if out := g.run(node, filepath.Join(modules, "@redocly/cli/bin/cli.js"), "lint", "--config=redocly.yaml", "--format=json", "openapi.json"); !strings.Contains(out, `"problems": []`) {
			t.Errorf("redocly finds %s", out)
		}
		if out := g.run(node, filepath.Join(modules, "openapi-typescript/bin/cli.js"), "openapi.json", "-o", "schema.ts"); strings.Count(out, "\n") > 3 || strings.Contains(strings.ToLower(out), "warn") {
			t.Errorf("openapi-typescript says %s", out)
		}
		g.quiet(node, filepath.Join(modules, "typescript/bin/tsc"), "-p", ".")
		g.quiet(node, "out/scenario.js")
	})

	t.Run("Go", func(t *testing.T) {
		tool := testkit.NeedProgram(t, "go")
		g := newGenerator(t, "go", env)
		g.fetched(failure(g.command(tool, "mod", "download")))
		if err := os.Mkdir(filepath.Join(g.dir, "client"), 0o700); err != nil {
			t.Fatal(err)
		}
		g.quiet(tool, "tool", "oapi-codegen", "-config", "config.yaml", "-o", "client/client.go", "openapi.json")
		g.quiet(tool, "vet", "./...")
		g.quiet(tool, "run", ".")
	})

	t.Run("Python", func(t *testing.T) {
		python := testkit.NeedProgram(t, "python3")
		g := newGenerator(t, "python", env)
		bin := g.venv(python)
		// The generator formats what it makes with ruff.
		g.env = append(g.env, "PATH="+bin+":"+os.Getenv("PATH"))
		python = filepath.Join(bin, "python") // the scripts beside it break when the directory moves
		g.run(python, "-m", "openapi_spec_validator", "--errors=all", "openapi.json")
		g.run(python, "-m", "openapi_python_client", "generate", "--fail-on-warning", "--path=openapi.json", "--config=config.yaml", "--meta=none", "--output-path=sandpit_client")
		g.run(python, "-m", "mypy", "--strict", "scenario.py")
		g.quiet(python, "scenario.py")
	})
}

// copyInto copies a file into a directory.
func copyInto(dir, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600)
}

// failure runs a program and returns its error with what it printed.
func failure(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}

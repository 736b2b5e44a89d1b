package commands

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// leaves returns the commands that do something, by the words that name them.
func leaves(t *testing.T) map[string]*cobra.Command {
	t.Helper()
	all := map[string]*cobra.Command{}
	var walk func(words string, cmd *cobra.Command)
	walk = func(words string, cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(words+" "+sub.Name(), sub)
		}
		if !cmd.HasSubCommands() {
			all[words] = cmd
		}
	}
	a := &tree{App: &cli.App{}}
	for _, c := range a.commands() {
		if !c.topic {
			walk(c.name, c.make())
		}
	}
	return all
}

// TestServerIsHonoured runs every command with a server configured: it asks that server, or
// says that it works on this machine, and does nothing here instead.
func TestServerIsHonoured(t *testing.T) {
	arguments := map[string]string{
		"code": "box -", "context ls": "box", "context create": "box", "context restart": "box python", "context interrupt": "box python", "context rm": "box python",
		"run": "true", "shell": "true", "create": "box", "exec": "box true", "ps": "", "attach": "box p1", "wait": "box p1",
		"signal": "box p1", "stop": "box", "start": "box", "kill": "box", "pause": "box", "resume": "box",
		"extend": "--life 1h box", "update": "--name b box", "rm": "box", "prune": "", "logs": "box", "inspect": "box", "stats": "", "top": "", "events": "",
		"ls": "box", "cat": "box /a", "write": "box /a", "edit": "--old a --new b box /a", "cp": "box:/a /nowhere/b", "forward": "box 0:80", "preview": "box 80",
		"network show": "box", "network allow": "box a.test", "network deny": "box a.test", "network check": "box a.test", "network log": "box",
		"serve": "", "mcp": "", "env": "e2b", "key create": "", "key ls": "", "key revoke": "k7d2m3xa", "secret set": "--from env:HOME a", "secret ls": "", "secret login": "github", "secret rotate": "a", "secret rm": "a", "secret services": "", "audit verify": "", "audit grep": "",
		"images ls": "", "images pull": "alpine", "images commit": "box app", "images inspect": "alpine", "images rm": "alpine", "images prune": "", "images tag": "alpine a:1",
		"images import": "a.tar", "images export": "alpine a.tar", "doctor": "", "policy show": "", "version": "", "completion": "bash",
	}
	const address = "https://sandpit.example:8443"
	for name, cmd := range leaves(t) {
		t.Run(name, func(t *testing.T) {
			line, known := arguments[name]
			if !known {
				t.Fatal("a new command: say above how it is called")
			}
			home := filepath.Join(t.TempDir(), "home")
			args := strings.Fields(name + " " + line)
			got := carryOut(t, args, "SANDPIT_SERVER="+address, "SANDPIT_KEY=sp_x", "SANDPIT_HOME="+home)
			if _, err := os.Stat(home); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it made the data directory of this machine: %v", err)
			}
			switch place := cmd.Annotations[annotationPlace]; place {
			case placeServer:
				if got.asked != address || len(got.here) > 0 {
					t.Errorf("it asked %q, and used this machine's %q: %v", got.asked, got.here, got.err)
				}
			case placeHere:
				if got.asked != "" || !strings.Contains(got.said, address) || !strings.Contains(got.said, "this machine") {
					t.Errorf("it asked %q, and says\n%s", got.asked, got.said)
				}
			case placeProgram:
				if got.asked != "" || len(got.here) > 0 {
					t.Errorf("it asked %q, and used this machine's %q", got.asked, got.here)
				}
			default:
				t.Errorf("its place is %q", place)
			}

			// The word for this machine takes a configured server away.
			config := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(config, []byte("server: "+address+"\nkey: sp_x\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			got = carryOut(t, args, "SANDPIT_CONFIG="+config, "SANDPIT_SERVER=local", "SANDPIT_HOME="+home)
			if got.asked != "" || strings.Contains(got.said, address) {
				t.Errorf("with local it asked %q, and says\n%s", got.asked, got.said)
			}
		})
	}
}

// carriedOut is what a command did.
type carriedOut struct {
	asked string   // the address of a server
	here  []string // what it used of this machine
	said  string   // on both streams, and the error with its hint
	err   error
}

// carryOut carries out a command line, as the launcher and then the full program would.
func carryOut(t *testing.T, args []string, environ ...string) (got carriedOut) {
	t.Helper()
	stop := errors.New("stop")
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	app := &cli.App{
		Stdin: null, Stdout: out, Stderr: out, Environ: environ,
		NewClient: func(cli.ClientOptions) (sandpit.Client, error) {
			got.here = append(got.here, "engine")
			return nil, stop
		},
		Connect: func(_ context.Context, opt cli.ConnectOptions) (sandpit.Client, bool, error) {
			got.asked = opt.Address
			return nil, false, stop
		},
		Serve: func(context.Context, cli.ServeOptions) error { return stop },
		VerifyAudit: func(context.Context, string, cli.AuditEntry) (string, error) {
			got.here = append(got.here, "audit")
			return "", stop
		},
		Drivers: func(string) []driver.Driver { return nil },
		OpenImages: func(home string) *image.Store {
			got.here = append(got.here, "images")
			return image.Open(filepath.Join(home, "images"), image.Options{})
		},
	}
	ok, err := app.Launch(t.Context(), args)
	if !ok {
		err = Run(t.Context(), app, args)
	}
	said, rerr := os.ReadFile(out.Name())
	if rerr != nil {
		t.Fatal(rerr)
	}
	got.said, got.err = string(said), err
	if err != nil {
		got.said += err.Error() + "\n" + sandpit.Hint(err)
	}
	return got
}

// TestServerRefusesByName gives run and create what the configured server can't have from
// this machine.
func TestServerRefusesByName(t *testing.T) {
	const remote, near = "SANDPIT_SERVER=https://sandpit.example:8443", "SANDPIT_SERVER=unix:///run/x.sock"
	for _, tt := range []struct {
		server, args, want string // want is empty: the server is asked
	}{
		{remote, "run --mount .:/work true", "--mount: "},
		{remote, "run --mount /srv:/srv:ro true", "--mount: /srv is on this machine"},
		{remote, "shell --mount /srv:/srv:ro true", "--mount: /srv is on this machine"},
		{remote, "run --image dir:/srv true", "--image: dir:/srv is on this machine"},
		{remote, "run --image docker-archive:/a.tar true", "--image: docker-archive:/a.tar is on this machine"},
		{remote, "run --mirror docker.io=https://x true", "--mirror has no effect"},
		{remote, "run --plain-http true", "--plain-http has no effect"},
		{remote, "run --image alpine -e A=1 --memory 1g --write /out --tmpfs /x true", ""},
		{remote, "create --mount .:/work box", "--mount: "},
		{remote, "create --mount /srv:/srv:ro box", ""}, // a path of the server, by its policy
		{remote, "create --image oci-archive:a.tar box", "--image: oci-archive:a.tar is on this machine"},
		{remote, "images pull --platform linux/arm64 alpine", "--platform has no effect"},
		{remote, "images pull --plain-http alpine", "--plain-http has no effect"},
		{near, "run --mount .:/work --image dir:/srv true", ""},
	} {
		got := carryOut(t, strings.Fields(tt.args), tt.server, "SANDPIT_HOME="+t.TempDir())
		switch {
		case len(got.here) > 0:
			t.Errorf("%s: it used this machine's %q", tt.args, got.here)
		case tt.want == "" && got.asked == "":
			t.Errorf("%s: %v", tt.args, got.err)
		case tt.want != "" && (got.asked != "" || !strings.HasPrefix(got.said, tt.want) || sandpit.Hint(got.err) == "" || !errors.Is(got.err, sandpit.ErrInvalid)):
			t.Errorf("%s: it asked %q, and says\n%s", tt.args, got.asked, got.said)
		}
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("mount: [/srv:/srv]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := carryOut(t, []string{"run", "true"}, remote, "SANDPIT_CONFIG="+config)
	if want := config + ":1: mount: /srv is on this machine"; got.asked != "" || !strings.HasPrefix(got.said, want) {
		t.Errorf("a mount of a file: it asked %q, and says\n%s", got.asked, got.said)
	}
}

package commands

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

// dialectServer is a server with dialects, which makes one key.
type dialectServer struct {
	sandpit.Client
	dialects []v1.Dialect
	asked    *v1.NewKey
	revoked  *string // the path, or nil: a revocation fails
}

func (d dialectServer) Call(_ context.Context, method, path string, in, out any) error {
	if method == http.MethodDelete {
		if d.revoked == nil {
			return sandpit.ErrUnavailable
		}
		*d.revoked = path
	}
	switch out := out.(type) {
	case *v1.DialectList:
		out.Dialects = d.dialects
	case *v1.Key:
		*d.asked = in.(v1.NewKey)
		*out = v1.Key{ID: "k3v7q2ma", Namespace: "n", Secret: "e2b_00"}
	}
	return nil
}

func (dialectServer) Close() error { return nil }

// A key that can't be shown is revoked: nobody could use it.
func TestKeyThatCantBeShown(t *testing.T) {
	full, err := os.Open(os.DevNull) // nothing can be written to it
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	nowhere, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	toy := v1.Dialect{Name: "toy", Title: "Toy", URL: "http://[::1]:1", KeyFormat: "e2b", Settings: []v1.DialectSetting{{Name: "TOY_KEY", Key: true}}}
	for _, args := range []string{"key create", "key create --json", "env --new-key toy"} {
		var revoked string
		for _, s := range []dialectServer{
			{dialects: []v1.Dialect{toy}, asked: new(v1.NewKey), revoked: &revoked},
			{dialects: []v1.Dialect{toy}, asked: new(v1.NewKey)},
		} {
			app := &cli.App{
				Stdin: os.Stdin, Stdout: full, Stderr: nowhere, Environ: []string{"HOME=" + t.TempDir(), "SANDPIT_SERVER=http://127.0.0.1:1"},
				Connect: func(context.Context, cli.ConnectOptions) (sandpit.Client, bool, error) { return s, false, nil },
			}
			err := Run(t.Context(), app, strings.Fields(args))
			want, hint := "showing the key k3v7q2ma, which was revoked: ", ""
			if s.revoked == nil {
				want, hint = "showing the key k3v7q2ma, which is valid: ", "run 'sandpit key revoke k3v7q2ma'"
			}
			if err == nil || !strings.HasPrefix(err.Error(), want) || sandpit.Hint(err) != hint {
				t.Errorf("%s: %v, %s", args, err, sandpit.Hint(err))
			}
		}
		if revoked != "/v1/keys/k3v7q2ma" {
			t.Errorf("%s: %q was revoked", args, revoked)
		}
	}
}

// sandpit env prints what a shell can take over, whatever the server sends.
func TestEnv(t *testing.T) {
	const plain = "sp_aaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	toy := v1.Dialect{Name: "toy", Title: "Toy", URL: "http://[::1]:1", KeyFormat: "e2b", Settings: []v1.DialectSetting{{Name: "TOY_URL", Value: "http://[::1]:1"}, {Name: "TOY_KEY", Key: true}}}
	hostile, odd, away := toy, toy, toy
	hostile.Settings = []v1.DialectSetting{{Name: "A", Value: "'; exit 3; $(exit 4) \n`exit 5`"}}
	odd.Settings = []v1.DialectSetting{{Name: "A=1; exit 3 #", Value: "x"}}
	away.URL, away.Settings = "", nil
	for name, x := range map[string]struct {
		server         *v1.Dialect
		args, key      string
		want, saidOfIt string
	}{
		"with a new key":                          {&toy, "--new-key toy", "", "TOY_URL=http://[::1]:1 TOY_KEY=e2b_00", "created key k3v7q2ma of namespace n"},
		"with the own key":                        {&toy, "toy", plain, "TOY_URL=http://[::1]:1 TOY_KEY=e2b_" + strings.Repeat("0", 60), ""},
		"with another key":                        {&toy, "toy", "other", "TOY_URL=http://[::1]:1 TOY_KEY=other", ""},
		"without a key":                           {&toy, "toy", "", "TOY_URL=http://[::1]:1 TOY_KEY=", "TOY_KEY is missing: add --new-key"},
		"with the key of the variable":            {&toy, "toy", "", "TOY_URL=http://[::1]:1", ""},
		"of this user's server, with the own key": {&toy, "toy", plain, "TOY_URL=http://[::1]:1 TOY_KEY=e2b_" + strings.Repeat("0", 60), ""},
		"of this user's server, with a new key":   {&toy, "--new-key toy", plain, "TOY_URL=http://[::1]:1 TOY_KEY=e2b_00", "SANDPIT_KEY is not used"},
		"another name":                            {&toy, "e3b", "", "", `does not serve clients of "e3b"`},
		"without dialects":                        {nil, "toy", "", "", "serves no API of another project"},
		"without an address":                      {&away, "toy", "", "", "no address for clients of Toy"},
		"a hostile value":                         {&hostile, "toy", "", "A='; exit 3; $(exit 4) `exit 5`", ""},
		"a hostile name":                          {&odd, "toy", "", "", "as the name of a variable"},
		"a namespace alone":                       {&toy, "--namespace n toy", "", "", "--namespace needs --new-key"},
	} {
		var asked v1.NewKey
		file, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		said, err := os.Create(filepath.Join(t.TempDir(), "err"))
		if err != nil {
			t.Fatal(err)
		}
		defer said.Close()
		address := "http://127.0.0.1:1"
		if strings.HasPrefix(name, "of this user's server") {
			address = ""
		}
		own := ""
		if name == "with the key of the variable" {
			own = "TOY_KEY=e2b_11"
		}
		app := &cli.App{
			Stdin: os.Stdin, Stdout: file, Stderr: said, Environ: []string{"HOME=" + t.TempDir(), "SANDPIT_SERVER=" + address, "SANDPIT_KEY=" + x.key, own},
			Connect: func(context.Context, cli.ConnectOptions) (sandpit.Client, bool, error) {
				s := dialectServer{asked: &asked}
				if x.server != nil {
					s.dialects = []v1.Dialect{*x.server}
				}
				return s, false, nil
			},
		}
		err = Run(t.Context(), app, append([]string{"env"}, strings.Fields(x.args)...))
		text, rerr := os.ReadFile(said.Name())
		if rerr != nil {
			t.Fatal(rerr)
		}
		all := string(text)
		if err != nil {
			all += err.Error()
		}
		if !strings.Contains(all, x.saidOfIt) || (err == nil) != (x.want != "") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
		if strings.Contains(all, "SANDPIT_KEY is not used") && !strings.Contains(x.saidOfIt, "SANDPIT_KEY") {
			t.Errorf("%s: it says that the key is not used: %s", name, all)
		}
		if own != "" && strings.Contains(all, "missing") {
			t.Errorf("%s: it says that a key is missing: %s", name, all)
		}
		if strings.Contains(x.args, "--new-key") && asked != (v1.NewKey{Name: "toy", Format: "e2b"}) {
			t.Errorf("%s: it asked for %+v", name, asked)
		}
		if err != nil {
			continue
		}
		shell := exec.Command("/bin/sh", "-c", `. "$0"; for name in TOY_URL TOY_KEY A; do eval "[ -z \"\${$name+x}\" ] || echo $name=\$$name"; done`, file.Name())
		shell.Env = []string{}
		out, err := shell.CombinedOutput()
		got := strings.Join(strings.Fields(string(out)), " ")
		if want := strings.TrimSuffix(x.want, " TOY_KEY="); err != nil || got != want || bytes.Contains(out, []byte("not found")) {
			t.Errorf("%s: a shell has %q, %v, want %q", name, got, err, want)
		}
	}
}

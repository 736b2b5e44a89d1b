package datadir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/datadir"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A directory that somebody else has made, or may write to, is refused by name.
func TestOwner(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	make := func(name string, mode fs.FileMode) string {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at(name), mode); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	if err := os.WriteFile(at("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"good-link": "mine", "bad-link": "all", "file-link": "file", "nowhere": "none"} {
		if err := os.Symlink(to, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct{ part, home string }{
		make("mine", 0o700):                 {"", ""},
		make("seen", 0o755):                 {"", ""},
		make("group", 0o775):                {"is writable by other users", ""},
		make("all", 0o777):                  {"is writable by other users", "is writable by other users"},
		make("sticky", fs.ModeSticky|0o777): {"is writable by other users", ""},
		at("file"):                          {"is not a directory", "is not a directory"},
		at("none"):                          {"", ""},
		at("good-link"):                     {"", ""},
		at("bad-link"):                      {"is writable by other users", "is writable by other users"},
		at("file-link"):                     {"is not a directory", "is not a directory"},
		at("nowhere"):                       {"", ""},
	} {
		for kind, check := range map[string]struct {
			err  error
			want string
		}{"part": {datadir.CheckPart(name), tt.part}, "home": {datadir.CheckHome(name), tt.home}} {
			switch err := check.err; {
			case check.want == "" && err != nil:
				t.Errorf("%s as %s: %v", name, kind, err)
			case check.want != "" && (errors.Is(err, sandpit.ErrForbidden) != (check.want != "is not a directory") || !strings.Contains(err.Error(), name+" "+check.want) || sandpit.Hint(err) == ""):
				t.Errorf("%s as %s: %v, want that it %s", name, kind, err, check.want)
			}
		}
	}

	testkit.NeedRoot(t, "to give a directory away")
	for _, name := range []string{"mine", "good-link"} {
		if err := os.Lchown(at(name), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{datadir.CheckPart(at(name)), datadir.CheckHome(at(name))} {
			if !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "belongs to another user") {
				t.Errorf("%s of another user: %v", name, err)
			}
		}
		if err := os.Chown(at("mine"), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
}

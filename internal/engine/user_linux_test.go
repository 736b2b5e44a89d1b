package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// dirImage makes a directory that serves as an image, with a passwd file.
func dirImage(t *testing.T, passwd string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if passwd != "" {
		if err := os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte(passwd), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The user of a hostile image: nothing outside of it is read, and what makes no
// sense is refused before anything is made. (The catalogue's A8.)
func TestUserOfAnImage(t *testing.T) {
	e := newEngine(t)
	for _, tc := range []struct {
		name, passwd, user string
		link               bool // /etc/passwd is a link to a file outside
	}{
		{name: "unknown name", passwd: "app:x:7:7::/:/bin/sh\n", user: "other"},
		{name: "unknown group", passwd: "app:x:7:7::/:/bin/sh\n", user: "app:nogroup-here"},
		{name: "id out of range", user: "4294967296"},
		{name: "id of nobody else", user: "65535"},
		{name: "line with an id out of range", passwd: "app:x:70000:7::/:/bin/sh\n", user: "app"},
		{name: "a path", passwd: "app:x:7:7::/:/bin/sh\n", user: "../../root"},
		{name: "link to the outside", link: true, user: "outsider"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := dirImage(t, tc.passwd)
			if tc.link {
				outside := filepath.Join(t.TempDir(), "passwd")
				if err := os.WriteFile(outside, []byte("outsider:x:7:7::/:/bin/sh\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(outside, filepath.Join(dir, "etc/passwd")); err != nil {
					t.Fatal(err)
				}
			}
			sb, err := e.Create(t.Context(), sandpit.Spec{Image: "dir:" + dir, User: tc.user})
			if err == nil {
				_ = sb.Remove(t.Context())
			}
			if !errors.Is(err, sandpit.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		})
	}
}

func TestDefaultUserIsTheImagesOwn(t *testing.T) {
	if image.UserID != 1000 {
		t.Fatal("the host image's user is another")
	}
	sb := create(t, newEngine(t), sandpit.Spec{})
	if out, _ := shell(t, sb, "id -u; id -un; echo $HOME"); out != "1000\nuser\n/home/user\n" {
		t.Errorf("got %q", out)
	}
}

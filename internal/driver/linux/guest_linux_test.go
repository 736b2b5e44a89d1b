package linux_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The guest is stored where this program was told to, and whoever can write
// there may have been first: with a link, a file, or the whole directory.
func TestAttackA13WhatIsInTheGuestsPlace(t *testing.T) {
	testkit.NeedWorkingHost(t)
	testkit.NeedGuest(t, options().Guest)
	// What a sandbox of that directory says, and the guest's name in it.
	try := func(t *testing.T, dir string) error {
		t.Helper()
		sb, err := client(t, linux.Options{Dir: dir, Guest: options().Guest}).Create(t.Context(), sandpit.Spec{})
		if err == nil {
			defer sb.Remove(t.Context())
			if out := sh(t, sb, "echo alive"); string(out.Stdout) != "alive\n" {
				t.Errorf("got %+v", out.Result)
			}
		}
		return err
	}
	stored := func(t *testing.T, dir string) string {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(dir, linux.GuestName+"-*"))
		if err != nil || len(names) != 1 {
			t.Fatalf("the guest's place has %q, %v", names, err)
		}
		return names[0]
	}
	dir := filepath.Join(t.TempDir(), "guest")
	if err := try(t, dir); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(stored(t, dir))

	for what, plant := range map[string]func(t *testing.T, path string){
		"a link": func(t *testing.T, path string) {
			if err := os.Symlink(planted(t, len(options().Guest)), path); err != nil {
				t.Fatal(err)
			}
		},
		"a dangling link": func(t *testing.T, path string) {
			if err := os.Symlink(filepath.Join(t.TempDir(), "none"), path); err != nil {
				t.Fatal(err)
			}
		},
		"a file that others can write": func(t *testing.T, path string) {
			if err := os.Rename(planted(t, len(options().Guest)), path); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, 0o777); err != nil {
				t.Fatal(err)
			}
		},
		"a file of another user": func(t *testing.T, path string) {
			if err := os.Rename(planted(t, len(options().Guest)), path); err != nil {
				t.Fatal(err)
			}
			testkit.Need(t, "root to give files away", os.Chown(path, 4321, 4321))
		},
		"a part of it": func(t *testing.T, path string) {
			if err := os.Rename(planted(t, 1000), path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			plant(t, filepath.Join(dir, name))
			if err := try(t, dir); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Lstat(stored(t, dir)); err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != linux.GuestMode() {
				t.Errorf("the guest is %v, %v", info.Mode(), err)
			}
		})
	}

	for what, plant := range map[string]func(t *testing.T, dir string) error{
		"a directory that others can write": func(_ *testing.T, dir string) error {
			return os.Chmod(dir, 0o777)
		},
		"a link to a directory": func(t *testing.T, dir string) error {
			return errors.Join(os.Remove(dir), os.Symlink(t.TempDir(), dir))
		},
		"a directory of another user": func(t *testing.T, dir string) error {
			testkit.NeedRoot(t, "to give files away")
			return os.Chown(dir, 4321, 4321)
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if err := plant(t, dir); err != nil {
				t.Fatal(err)
			}
			if err := try(t, dir); !errors.Is(err, sandpit.ErrForbidden) || sandpit.Hint(err) == "" {
				t.Errorf("got %v (hint: %s)", err, sandpit.Hint(err))
			}
		})
	}
}

// planted makes a program that is no guest.
func planted(t *testing.T, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "evil")
	program := make([]byte, size)
	copy(program, "#!/bin/false\n")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

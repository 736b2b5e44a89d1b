package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/cli"
)

// The flag --idle-exit wins over the settings, also with never, and the settings over the
// default of a server that a command starts.
func TestIdleExit(t *testing.T) {
	for _, tc := range []struct {
		file       string
		flag       *time.Duration
		background bool
		want       time.Duration // at most 0: never
	}{
		{"idle-exit: 10m\n", nil, false, 10 * time.Minute},
		{"idle-exit: 10m\n", new(time.Duration), false, 0},
		{"idle-exit: 10m\n", new(time.Minute), false, time.Minute},
		{"", nil, false, 0},
		{"", nil, true, 5 * time.Minute},
		{"idle-exit: 10m\n", nil, true, 10 * time.Minute},
		{"idle-exit: never\n", nil, true, 0},
		{"", new(time.Duration), true, 0},
	} {
		file := filepath.Join(t.TempDir(), "server.yaml")
		if err := os.WriteFile(file, []byte(tc.file), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := settingsOf(cli.ServeOptions{Settings: file, IdleExit: tc.flag, Background: tc.background})
		if err != nil || max(got.IdleExit, 0) != tc.want {
			t.Errorf("%+v: got %v, %v", tc, got.IdleExit, err)
		}
	}
}

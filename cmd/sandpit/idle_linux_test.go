package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/cli"
)

// The flag --idle-exit wins over the settings, also with never.
func TestIdleExitOfTheFlag(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server.yaml")
	if err := os.WriteFile(file, []byte("idle-exit: 10m\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		flag *time.Duration
		want time.Duration
	}{{nil, 10 * time.Minute}, {new(time.Duration), 0}, {new(time.Minute), time.Minute}} {
		got, err := settingsOf(cli.ServeOptions{Settings: file, IdleExit: tc.flag})
		if err != nil || got.IdleExit != tc.want {
			t.Errorf("got %v, %v, want %v", got.IdleExit, err, tc.want)
		}
	}
}

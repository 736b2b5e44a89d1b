package secret

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(file, []byte("of a file\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"A=first", "A=of=env", "AB=x"}
	for source, want := range map[string]string{"env:A": "of=env", "file:" + file: "of a file", "cmd:echo $A; echo hidden >&2": "of=env", "cmd:printf 'a\nb\n'": "a\nb"} {
		if got, err := Read(t.Context(), source, environ, io.Discard); err != nil || got != want {
			t.Errorf("%s: %q, %v", source, got, err)
		}
	}
	for _, source := range []string{"", "A", "env:", "env:NONE", "file:/nowhere", "cmd:", "cmd:echo value; exit 1", "cmd:true", "keyring:A"} {
		if got, err := Read(t.Context(), source, environ, io.Discard); err == nil || got != "" || strings.Contains(err.Error(), "value;") {
			t.Errorf("%s: %q, %v", source, got, err)
		}
	}
	if _, err := Read(t.Context(), "env:NONE", environ, io.Discard); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a variable that is not set: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, "cmd:sleep 1000", environ, io.Discard); err == nil {
		t.Error("a command outlives its context")
	}
}

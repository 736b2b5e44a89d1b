package sandpit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The examples of the documentation print what they say.
func TestExamples(t *testing.T) {
	caps := linux.New(linux.Options{Dir: t.TempDir()}).Examine(t.Context())
	testkit.NeedSandboxes(t, caps.Available, caps.Gaps)
	t.Setenv("SANDPIT_HOME", t.TempDir())
	for _, tt := range []struct {
		name    string
		example func()
		want    string
	}{
		{"package", Example, "42\n"},
		{"Files", ExampleFiles, "pit\nsand\n"},
		{"ReadFile", ExampleReadFile, "sandpit\n"},
		{"CopyIn", ExampleCopyIn, "pit\nsand\n"},
		{"Do", ExampleDo, "sorted\npit\nsand\n"},
		{"Run", ExampleRun, "begin\ntimed out: true\n"},
		{"ProcessKeeper", ExampleProcessKeeper, "working\nended with 3\n"},
		{"Lifecycle", ExampleLifecycle, "kept\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := printed(t, tt.example); got != tt.want {
				t.Errorf("it prints %q, want %q", got, tt.want)
			}
		})
	}
}

// printed is what f prints.
func printed(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "printed"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stdout := os.Stdout
	os.Stdout = file
	defer func() { os.Stdout = stdout }()
	f()
	got, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

package commands

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// request is all that a command line asks an engine for, and how it ends.
type request struct {
	Options cli.ClientOptions
	Spec    sandpit.Spec
	Command sandpit.Command
	Error   string
	Hint    string
}

var errRecorded = errors.New("recorded")

// recorder is a client whose sandboxes note what they are asked for, and do
// nothing.
type recorder struct {
	sandpit.Client
	got request
}

func (r *recorder) Create(_ context.Context, spec sandpit.Spec) (sandpit.Sandbox, error) {
	r.got.Spec = spec
	return recordedSandbox{recorder: r}, nil
}

func (r *recorder) Close() error { return nil }

type recordedSandbox struct {
	sandpit.Sandbox
	recorder *recorder
}

func (s recordedSandbox) Start(_ context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	cmd.Stdout, cmd.Stderr = nil, nil
	s.recorder.got.Command = cmd
	return nil, errRecorded
}

func (s recordedSandbox) Files() sandpit.Files         { return noFiles{} }
func (s recordedSandbox) Remove(context.Context) error { return nil }

type noFiles struct{ sandpit.Files }

func (noFiles) Stat(context.Context, string) (sandpit.FileInfo, error) {
	return sandpit.FileInfo{}, errRecorded
}

// requestOf returns what a command line asks for when carry carries it out.
func requestOf(t *testing.T, environ []string, carry func(*cli.App) error) request {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r := new(recorder)
	err = carry(&cli.App{
		Stdin: null, Stdout: null, Stderr: null, Environ: environ,
		NewClient: func(opt cli.ClientOptions) (sandpit.Client, error) {
			opt.Trace, opt.Acquire.Progress = nil, nil
			r.got.Options = opt
			return r, nil
		},
		OpenImages: func(home string) *image.Store { return image.Open(filepath.Join(home, "images"), image.Options{}) },
	})
	if err != nil {
		r.got.Error, r.got.Hint = err.Error(), sandpit.Hint(err)
	}
	return r.got
}

// sameBothWays carries out a command line as the launcher does and as cobra does.
func sameBothWays(t *testing.T, environ, args []string) {
	t.Helper()
	var ok bool
	launched := requestOf(t, environ, func(a *cli.App) (err error) {
		ok, err = a.Launch(t.Context(), slices.Clone(args))
		return err
	})
	if !ok && !cmp.Equal(launched, request{}) {
		t.Errorf("%q: the launcher leaves it to others, but has done something: %+v", args, launched)
	}
	full := requestOf(t, environ, func(a *cli.App) error { return Run(t.Context(), a, slices.Clone(args)) })
	if diff := cmp.Diff(full, launched, cmpopts.EquateEmpty()); ok && diff != "" {
		t.Errorf("%q (-full +launcher):\n%s", args, diff)
	}
	// What the launcher leaves alone is wrong, help, or for a fetcher.
	if !ok && full.Error == errRecorded.Error() && !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "help=") || strings.Contains(a, "image") }) {
		t.Errorf("%q: the launcher leaves it to others, and there is nothing wrong with it", args)
	}
}

// valueFor is a value that a flag takes.
func valueFor(e cli.Entry) string {
	for _, text := range []string{"512m", "5", "/a:/b:ro", "/a", "A=1", "never", "docker.io=https://x", "true"} {
		if e.Value.Set(text) == nil {
			return text
		}
	}
	return ""
}

// TestFront gives every flag in every form to both ways of carrying out a
// command line, which ask for the same or fail with the same words.
func TestLauncher(t *testing.T) {
	home := "SANDPIT_HOME=" + t.TempDir()
	environ := []string{home, "HERE=here"}
	for _, section := range cli.NewOptions(os.LookupEnv).Sections() {
		for _, e := range section.Entries {
			v := valueFor(e)
			forms := [][]string{
				{"--" + e.Name, v, "x"},
				{"--" + e.Name + "=" + v, "x"},
				{"--" + e.Name},
				{"--" + e.Name + "=", "x"},
				{"--" + e.Name + "=no such thing", "x"},
				{"--" + e.Name, v, "--" + e.Name, v, "x"},
			}
			if s := e.Shorthand; s != "" {
				forms = append(forms, []string{"-" + s, v, "x"}, []string{"-" + s + v, "x"}, []string{"-" + s + "=" + v, "x"}, []string{"-" + s}, []string{"-" + s + "=", "x"}, []string{"-i" + s + v, "x"})
			}
			for _, args := range forms {
				sameBothWays(t, environ, slices.Concat([]string{"run"}, args))
				sameBothWays(t, environ, slices.Concat([]string{"run", "-ie", "HERE"}, args, []string{"--", "--memory", "1g"}))
				sameBothWays(t, environ, slices.Concat([]string{"shell"}, args))
			}
		}
	}
	for _, args := range [][]string{
		nil,
		{""},
		{"-"},
		{"--"},
		{"---"},
		{"--="},
		{"-="},
		{"--=x"},
		{"-h"},
		{"--help"},
		{"--help=false", "x"},
		{"-ih"},
		{"-it=false", "x"},
		{"-ti"},
		{"-i=true"},
		{"x", "--memory", "1g"},
		{"--", "--"},
		{"-", "-i"},
		{"-e", "A", "-e", "HERE", "-eB=-", "x"},
		{"--memroy", "1g"},
		{"-x"},
		{"--é"},
		{"-é"},
		{"--m", "1g"},
		{"--memory=1g=2g"},
		{"--env", "--", "x"},
		{"--tty", "false"},
		{"-m", "-1"},
		{"--home", "/x"},
		{"--MEMORY", "1g"},
		{"--output_limit", "1g"},
		{"run"},
		{"--", "run"},
		{"--read-only", "--write", "/a", "x"},
		{"--json", "--tty", "x"},
		{"--entrypoint", "", "x"},
		{"x", "y"},
		{"", "y"},
		{"--image", "dir:/nowhere", "x"},
		{"--image", "no image at all", "x"},
		{"--image", "oci-archive:/nowhere", "x"},
		{"--image", "alpine", "--pull", "never", "x"},
	} {
		for _, command := range []string{"run", "shell"} {
			sameBothWays(t, environ, slices.Concat([]string{command}, args))
			sameBothWays(t, append(environ, "SANDPIT_MEMORY=64m", "SANDPIT_WRITE=/x\n/y"), slices.Concat([]string{command}, args))
			sameBothWays(t, append(environ, "SANDPIT_MEMORY=lots"), slices.Concat([]string{command}, args))
		}
	}
}

// TestLauncherLeavesAlone lists what is for the full program.
func TestLauncherLeavesAlone(t *testing.T) {
	environ := []string{"SANDPIT_HOME=" + t.TempDir()}
	for _, args := range [][]string{
		nil,
		{"help"},
		{"--help"},
		{"doctor"},
		{"images", "ls"},
		{"version", "--json"},
		{"version", "now"},
		{"--version"},
		{"__complete", "run", ""},
		{"run", "--image", "alpine", "x"},
		{"run", "--image", "alpine", "--pull", "always", "x"},
		{"shell", "--image", "oci-archive:" + os.Args[0], "x"},
		{"-i", "run", "x"},
	} {
		got := requestOf(t, environ, func(a *cli.App) error {
			ok, err := a.Launch(t.Context(), args)
			if ok {
				t.Errorf("%q: carried out", args)
			}
			return err
		})
		if !cmp.Equal(got, request{}) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func FuzzFront(f *testing.F) {
	f.Add("-it\x00--memory\x001g\x00--\x00true")
	f.Add("-m=1g\x00-eA=1\x00--env=B\x00-l\x00k=v\x00x")
	f.Fuzz(func(t *testing.T, text string) {
		sameBothWays(t, []string{"SANDPIT_HOME=" + t.TempDir()}, append([]string{"run"}, strings.Split(text, "\x00")...))
	})
}

package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// request is all that a command line asks an engine for, and how it ends.
type request struct {
	Options cli.ClientOptions
	Spec    sandpit.Spec
	Sandbox string // of exec
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

func (r *recorder) Get(_ context.Context, name string) (sandpit.Sandbox, error) {
	r.got.Sandbox = name
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

func (s recordedSandbox) Name() string                 { return "box" }
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
		Connect:    func(context.Context, cli.ConnectOptions) (sandpit.Client, bool, error) { return r, false, nil },
		OpenImages: func(home string) *image.Store { return image.Open(filepath.Join(home, "images"), image.Options{}) },
	})
	if err != nil {
		r.got.Error, r.got.Hint = err.Error(), sandpit.Hint(err)
	}
	return r.got
}

func (recordedSandbox) EgressLog(context.Context) (sandpit.EgressLog, error) {
	return sandpit.EgressLog{}, nil
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
	// What the launcher leaves alone is wrong, help, or for a fetcher or a network.
	if !ok && full.Error == errRecorded.Error() && !slices.ContainsFunc(args, func(a string) bool {
		return strings.Contains(a, "help=") || strings.Contains(a, "image") || slices.ContainsFunc([]string{"allow", "deny", "resolve", "dns", "egress", "max-", "bandwidth", "secret"}, func(name string) bool { return strings.HasPrefix(a, "--"+name) })
	}) {
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

// forms are the ways to give a flag, right ones and wrong ones.
func forms(e cli.Entry) [][]string {
	v := valueFor(e)
	all := [][]string{
		{"--" + e.Name, v, "x"},
		{"--" + e.Name + "=" + v, "x"},
		{"--" + e.Name},
		{"--" + e.Name + "=", "x"},
		{"--" + e.Name + "=no such thing", "x"},
		{"--" + e.Name, v, "--" + e.Name, v, "x"},
	}
	if s := e.Shorthand; s != "" {
		all = append(all, []string{"-" + s, v, "x"}, []string{"-" + s + v, "x"}, []string{"-" + s + "=" + v, "x"}, []string{"-" + s}, []string{"-" + s + "=", "x"}, []string{"-i" + s + v, "x"})
	}
	return all
}

// TestLauncher gives every flag in every form to both ways of carrying out a
// command line, which ask for the same or fail with the same words.
func TestLauncher(t *testing.T) {
	home := "SANDPIT_HOME=" + t.TempDir()
	environ := []string{home, "HERE=here"}
	for _, section := range cli.NewOptions(os.LookupEnv).Sections() {
		for _, e := range section.Entries {
			for _, args := range forms(e) {
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

// commandServer is a server that notes which commands it is asked for, and starts none.
type commandServer struct {
	mu  sync.Mutex
	got *request // guarded by mu
}

// serveCommands starts a commandServer for a data directory.
func serveCommands(t *testing.T, home string) *commandServer {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(home, "server.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := new(commandServer)
	srv := &http.Server{Handler: s}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	return s
}

func (s *commandServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, found := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/sandboxes/"), "/exec")
	if !found || name == "nope" || r.Header.Get("Upgrade") != fastrun.Protocol {
		http.NotFound(w, r)
		return
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
	kind, payload, err := v1.ReadFrame(buf, nil, fastrun.MaxRequest)
	if err != nil {
		return // there is no command
	}
	var req fastrun.Request
	if err := json.Unmarshal(payload, &req); err != nil || kind != fastrun.FrameRequest {
		panic(fmt.Sprint("frame ", kind, ": ", err))
	}
	s.mu.Lock()
	cmd, err := req.Command.Sandpit()
	if err != nil {
		panic(err)
	}
	s.got = &request{Sandbox: name, Command: cmd}
	s.mu.Unlock()
	_, _ = conn.Write(v1.AppendFrame(nil, v1.FrameEnd, []byte(`{"reason":"error","error":{"code":"internal","message":"recorded"}}`)))
}

// take returns what has been asked for since the last time.
func (s *commandServer) take() *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got
	s.got = nil
	return got
}

// TestLauncherExec gives every flag of exec in every form to the launcher, whose commands
// a server gets, and to the full program.
func TestLauncherExec(t *testing.T) {
	home := t.TempDir()
	s := serveCommands(t, home)
	vars := filepath.Join(home, "vars")
	if err := os.WriteFile(vars, []byte("A=file\nHERE\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"SANDPIT_HOME=" + home, "HERE=here", "SANDPIT_TIMEOUT=9s", "SANDPIT_ENV=NOT=passed"}
	served := 0
	check := func(environ, args []string) {
		t.Helper()
		var ok bool
		args = append([]string{"exec"}, args...)
		launched := requestOf(t, environ, func(a *cli.App) (err error) {
			ok, err = a.Launch(t.Context(), slices.Clone(args))
			return err
		})
		if got := s.take(); got != nil {
			served++
			launched.Sandbox, launched.Command = got.Sandbox, got.Command
		}
		if !ok && !cmp.Equal(launched, request{}) {
			t.Errorf("%q: the launcher leaves it to others, but has done something: %+v", args, launched)
		}
		full := requestOf(t, environ, func(a *cli.App) error { return Run(t.Context(), a, slices.Clone(args)) })
		if s.take() != nil {
			t.Errorf("%q: the full program asks as the launcher does", args)
		}
		if ok && full.Sandbox == "" {
			launched.Sandbox = "" // refused before a sandbox is looked for
		}
		if diff := cmp.Diff(full, launched, cmpopts.EquateEmpty()); ok && diff != "" {
			t.Errorf("%q (-full +launcher):\n%s", args, diff)
		}
		if !ok && full.Error == errRecorded.Error() && !full.Command.Background && !slices.Contains([]string{"nope", "", "a b", "box/../x"}, full.Sandbox) && !slices.Contains(args, "--help=false") && environ[0] == "SANDPIT_HOME="+home {
			t.Errorf("%q: the launcher leaves it to others, and there is nothing wrong with it", args)
		}
	}
	for _, section := range cli.NewOptions(os.LookupEnv).Sections() { // those of run alone are wrong here
		for _, e := range append(section.Entries, cli.NewOptions(os.LookupEnv).ExecFlags()[0].Entries...) {
			for _, args := range forms(e) {
				check(environ, args)
				check(environ, append(args, "cmd"))
				check(environ, slices.Concat([]string{"-ie", "HERE"}, args, []string{"--", "--memory", "1g"}))
			}
		}
	}
	for _, args := range [][]string{
		nil,
		{""},
		{"--"},
		{"box"},
		{"box", ""},
		{"box", "--"},
		{"box", "--", "--"},
		{"box", "--", "x"},
		{"--", "box", "x"},
		{"--", "--", "x"},
		{"box", "-i", "x"},
		{"-h"},
		{"--help=false", "box", "x"},
		{"nope", "x"},
		{"box/../x", "x"},
		{"", "x"},
		{"a b", "x"},
		{"--env-file", vars, "-e", "A=flag", "box", "x"},
		{"--env-file", vars + "none", "box", "x"},
		{"-d", "box", "x"},
		{"--detach=false", "box", "x"},
		{"--json", "--tty", "box", "x"},
		{"-t", "-i=false", "box", "x"},
		{"-u", "a:b", "-w", "/x", "--nofile", "7", "--ulimit", "cpu=1:-1", "--output-limit", "1k", "box", "x", "\xff"},
	} {
		check(environ, args)
		check(append([]string{"SANDPIT_HOME=" + t.TempDir()}, environ[1:]...), args) // where no server is
		check([]string{"SANDPIT_SERVER=unix:///nowhere", "SANDPIT_HOME=" + home}, args)
		check([]string{"SANDPIT_MEMORY=lots", "SANDPIT_HOME=" + home}, args)
	}
	if served < 50 {
		t.Errorf("the launcher has served %d command lines", served)
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
		{"exec", "box", "x"}, // there is no server
		{"exec"},
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

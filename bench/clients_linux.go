package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// An sdk is a client of another project, and the program that does the same by requests to /v1, in the
// same language and with the same kind of HTTP client: what is between them is the cost of a dialect and its SDK.
type sdk struct {
	name, language string
	argv           func(ctx context.Context, recipe string) ([]string, error) // of the interpreter
	recipe         string                                                     // of the packages, in tools/clients
	program, plain string                                                     // in bench/clients
	spec           sandpit.Spec                                               // that the SDK's creates stand for
	shell          []string                                                   // with which the SDK runs a command
	code           bool                                                       // it runs code
}

func sdks() []sdk {
	public := sandpit.Egress{Preset: sandpit.EgressPublic}
	e2b := sdk{
		spec:  sandpit.Spec{RootInside: true, Egress: public, Limits: sandpit.Limits{Life: 10 * time.Minute}},
		shell: []string{"/bin/bash", "-l", "-c"}, code: true,
	}
	microsandbox := sdk{spec: sandpit.Spec{User: "root", Egress: public, Limits: sandpit.Limits{Memory: memoryOfClients, CPUs: 1}}}
	in := func(c sdk, name, language string, argv func(context.Context, string) ([]string, error), recipe, program, plain string) sdk {
		c.name, c.language, c.argv, c.recipe, c.program, c.plain = name, language, argv, recipe, program, plain
		return c
	}
	return []sdk{
		in(e2b, "E2B's SDK, JavaScript", "JavaScript", node, "e2b-javascript", "e2b.mjs", "plain.mjs"),
		in(e2b, "E2B's SDK, Python", "Python", venv, "e2b-python", "use_e2b.py", "plain.py"),
		in(microsandbox, "microsandbox's SDK, JavaScript", "JavaScript", node, "microsandbox-javascript", "microsandbox.mjs", "plain.mjs"),
		in(microsandbox, "microsandbox's SDK, Python", "Python", venv, "microsandbox-python", "use_microsandbox.py", "plain.py"),
	}
}

// memoryOfClients is the memory of each sandbox: as many as a server's capacity is to hold at once, on a
// machine of any size.
const memoryOfClients = 256 * mib

func node(context.Context, string) ([]string, error) {
	path, err := exec.LookPath("node")
	return []string{path}, err
}

func venv(_ context.Context, recipe string) ([]string, error) {
	return []string{filepath.Join(recipe, "bin/python")}, nil
}

// installed returns where the packages of a recipe are, which the tests install: beside those of other versions.
func (b *bench) installed(recipe string) (dir string, err error) {
	all, err := filepath.Glob(filepath.Join(b.source, ".cache/clients", recipe+"-*", "complete"))
	if err != nil {
		return "", err
	}
	from := filepath.Join(b.source, "tools/clients", recipe)
	for _, path := range all {
		if dir = filepath.Dir(path); samePins(from, dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the packages of %s are not installed: run the tests of internal/server first", recipe)
}

// samePins reports whether dir has the packages that a recipe pins.
func samePins(recipe, dir string) bool {
	if want, err := os.ReadFile(filepath.Join(recipe, "package.json")); err == nil {
		got, err := os.ReadFile(filepath.Join(dir, "package.json"))
		return err == nil && bytes.Equal(got, want)
	}
	pins, err := os.ReadFile(filepath.Join(recipe, "requirements.txt"))
	if err != nil {
		return false
	}
	for _, pin := range strings.Fields(string(pins)) {
		name, version, _ := strings.Cut(pin, "==")
		name = strings.ToLower(strings.ReplaceAll(name, "-", "_"))
		if found, err := filepath.Glob(filepath.Join(dir, "lib/python*/site-packages", name+"-"+version+".dist-info")); err != nil || len(found) == 0 {
			return false
		}
	}
	return true
}

// user is a program of bench/clients that runs.
type user struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// start starts a program.
func (s *served) start(ctx context.Context, c sdk, program string, env []string) (*user, error) {
	name := c.recipe
	if program == c.plain {
		name = "e2b-" + strings.ToLower(c.language) // which has an HTTP client
	}
	recipe, err := s.b.installed(name)
	if err != nil {
		return nil, err
	}
	argv, err := c.argv(ctx, recipe)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.b.dir, "clients-") // Node.js looks for packages beside a program
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(s.b.source, "bench/clients"))); err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Join(recipe, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		return nil, err
	}
	u := &user{cmd: exec.CommandContext(ctx, argv[0], append(argv[1:], filepath.Join(dir, program))...)}
	u.cmd.Env, u.cmd.Stderr = append(os.Environ(), env...), s.b.stderr
	if u.in, err = u.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := u.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	u.out = bufio.NewScanner(out)
	u.out.Buffer(nil, 1<<20)
	if err := u.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	return u, nil
}

// do has an operation done, and returns the times that it took, in milliseconds.
func (u *user) do(operation string) ([]float64, error) {
	if _, err := fmt.Fprintln(u.in, operation); err != nil {
		return nil, err
	}
	if !u.out.Scan() {
		return nil, fmt.Errorf("%s: the program has ended: %w", operation, errors.Join(u.out.Err(), io.ErrUnexpectedEOF))
	}
	var answer struct {
		MS    []float64 `json:"ms"`
		Error string    `json:"error"`
	}
	if err := json.Unmarshal(u.out.Bytes(), &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", operation, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", operation, answer.Error)
	}
	return answer.MS, nil
}

// close has the program remove its sandbox, and waits for its end.
func (u *user) close() {
	_, _ = u.do("close")
	_ = u.in.Close()
	_ = u.cmd.Wait()
}

// does is a contestant that does an operation, after a pause.
func (u *user) does(name, operation string, pause time.Duration) *contestant {
	return &contestant{name: name, once: func(ctx context.Context, rec *record) error {
		time.Sleep(pause)
		took, err := u.do(operation)
		for _, ms := range took {
			rec.get(name).add(ms)
		}
		return err
	}}
}

// measureClients measures SDKs of other projects beside programs that use /v1.
func (b *bench) measureClients(ctx context.Context) error {
	plain, e2b, microsandbox, err := threeAddresses()
	if err != nil {
		return err
	}
	policy := fmt.Sprintf("policies: {default: {defaults: {memory: %d}}}", int64(memoryOfClients))
	s, err := b.serve(ctx, policy, "--listen", plain, "--e2b", e2b, "--microsandbox", microsandbox)
	if err != nil {
		return err
	}
	defer s.close()
	var key v1.Key
	if err := s.Call(ctx, "POST", "/v1/keys", v1.NewKey{Name: "bench", Namespace: "bench", Format: "e2b"}, &key); err != nil {
		return err
	}
	env := []string{
		"SANDPIT_URL=http://" + plain, "SANDPIT_KEY=" + key.Secret,
		"E2B_API_URL=http://" + e2b, "E2B_SANDBOX_URL=http://" + e2b, "E2B_API_KEY=" + key.Secret,
		"MSB_BACKEND=cloud", "MSB_API_URL=http://" + microsandbox, "MSB_API_KEY=" + key.Secret,
	}
	for _, c := range sdks() {
		if err := s.measureClient(ctx, c, env); err != nil {
			s.b.group("clients", c.name, "ms").add(c.name, &series{err: err})
		}
	}
	return ctx.Err()
}

// settle is the time after which a key has its requests back that many creates at once have used up
// (dialect.Burst, and that of /v1).
const settle = 4 * time.Second

// measureClient measures an SDK beside its equivalent.
func (s *served) measureClient(ctx context.Context, c sdk, env []string) error {
	theirs := "requests to /v1, " + c.language
	spec, err := json.Marshal(v1.FromSpec(c.spec))
	if err != nil {
		return err
	}
	argv, err := json.Marshal(append(slices.Clone(c.shell), "true"))
	if err != nil {
		return err
	}
	env = append(slices.Clone(env), "SPEC="+string(spec), "ARGV="+string(argv))
	var users []*user
	for _, program := range []string{c.program, c.plain} {
		u, err := s.start(ctx, c, program, env)
		if err != nil {
			return err
		}
		defer u.close()
		if _, err := u.do("open"); err != nil {
			return err
		}
		users = append(users, u)
	}
	rounds, size, n := s.b.fewer(100, 10), int64(100*mib), 100
	if s.b.opts.quick {
		size, n = 10*mib, 16
	}
	for _, row := range []struct {
		title, operation string
		rounds           int
		pause            time.Duration
		most             float64 // ms; 0: no target
	}{
		{title: "create to first answered command", operation: "create 1", rounds: rounds, pause: refill, most: 40},
		{title: fmt.Sprintf("the same of each of %d at once", n), operation: fmt.Sprintf("create %d", n), rounds: leastTurns, pause: settle, most: 300},
		{title: "exec of `true`", operation: "exec", rounds: rounds},
		{title: fmt.Sprintf("upload of %d MiB", size/mib), operation: fmt.Sprintf("up %d", size), rounds: s.b.fewer(10, 3)},
		{title: fmt.Sprintf("download of %d MiB", size/mib), operation: fmt.Sprintf("down %d", size), rounds: s.b.fewer(10, 3)},
		{title: "run of the code 1+1", operation: "code", rounds: rounds},
	} {
		if row.operation == "code" && !c.code {
			continue
		}
		rec := contest(ctx, row.rounds, s.b.budget()+time.Duration(row.rounds)*row.pause*2,
			users[0].does(c.name, row.operation, row.pause), users[1].does(theirs, row.operation, row.pause))
		g := s.b.group("clients", row.title+": "+c.name, "ms")
		mine := rec.get(c.name)
		if row.most > 0 {
			g.absolute(c.name, mine, goal{below, row.most, row.most})
		} else {
			g.add(c.name, mine)
		}
		g.against(theirs, rec.get(theirs), c.name, mine, goal{atMost, 1.3, 1.3})
	}
	return nil
}

// threeAddresses returns addresses of this machine that nothing listens on.
func threeAddresses() (one, two, three string, err error) {
	var all []string
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", "", err
		}
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all[0], all[1], all[2], nil
}

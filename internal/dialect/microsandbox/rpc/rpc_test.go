package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Whatever the parameters of a call are, reading them ends with an error or with names and a description that the server can use.
func FuzzParams(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[1]`, `{"sandbox":"a","namespace":"*"}`, `{"sandbox":"..","namespace":"n"}`,
		`{"sandbox":"a","namespace":"n","config":{"image":"x","memory":4294967296,"volumes":["/a:/b",":"],"scope":null}}`,
		`{"sandbox":"a","namespace":"n","command":"x","args":null,"timeout":18446744073709551615}`,
		`{"sandbox":"a","namespace":"n","code":"\ud800","language":"PYTHON","timeout":-1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range []params{new(startParams), new(Target), new(metricsParams), new(codeParams), new(commandParams)} {
			if parse(data, p) != nil || p.check() != nil {
				continue
			}
			namespace, sandbox := p.where()
			_, anyOf := p.(*metricsParams)
			if !notation.IsName(namespace) && (namespace != "*" || !anyOf) || !notation.IsName(sandbox) && (sandbox != "" || !anyOf) {
				t.Errorf("%T accepts the namespace %q and the sandbox %q", p, namespace, sandbox)
			}
			_ = p.about()
			if code, ok := p.(*codeParams); ok && code.Timeout.duration() < 0 {
				t.Errorf("the timeout %d is negative", code.Timeout)
			}
		}
		kind := config{}
		if json.Unmarshal(data, &kind) == nil && kind.check() == nil {
			if spec, err := kind.spec("a"); err != nil || spec.Limits.Memory < 0 || spec.Limits.CPUs < 0 {
				t.Errorf("%+v, %v", spec, err)
			}
		}
	})
}

// Output is the lines of both streams, however it is cut into pieces, and JSON whatever it is.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb"), []byte("x\n\n"), 1)
	f.Add([]byte("\xff\r\n"), []byte(""), 3)
	f.Fuzz(func(t *testing.T, out, problems []byte, piece int) {
		if len(out)+len(problems) > 1<<12 {
			return
		}
		l := &lines{}
		for name, text := range map[string][]byte{stdout: out, stderr: problems} {
			for len(text) > 0 {
				n := min(max(piece, 1), len(text))
				if wrote, err := l.stream(name).Write(text[:n]); wrote != n || err != nil {
					t.Fatal(wrote, err)
				}
				text = text[n:]
			}
		}
		data, err := l.end(false)
		if err != nil {
			t.Fatal(err)
		}
		var list []line
		if err := json.Unmarshal(data, &list); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		for name, text := range map[string][]byte{stdout: out, stderr: problems} {
			want := strings.Split(string(bytes.TrimSuffix(text, []byte("\n"))), "\n")
			if len(text) == 0 {
				want = nil
			}
			var got []string
			for _, one := range list {
				if one.Stream == name {
					got = append(got, one.Text)
				}
			}
			if len(got) != len(want) {
				t.Fatalf("%s %q has the lines %q", name, text, got)
			}
			for i := range got {
				encoded, _ := json.Marshal(want[i])
				var valid string
				if err := json.Unmarshal(encoded, &valid); err != nil || got[i] != valid {
					t.Errorf("line %d of %q is %q", i, text, got[i])
				}
			}
		}
	})
}

// There is room for a bounded output. What is missing is said.
func TestOutputIsBounded(t *testing.T) {
	l := &lines{cut: true}
	if _, err := l.stream(stdout).Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	data, err := l.end(false)
	if want := `[{"stream":"stderr","text":"Error: the output is incomplete: more than 16 MiB of it were written"}]`; string(data) != want || err != nil {
		t.Errorf("%s, %v", data, err)
	}
	l = &lines{}
	for range 3 {
		l.put(stderr, nil)
	}
	if l.room(maxList); !l.cut {
		t.Error("the list can become larger than its bound")
	}
}

// Another configuration is noticed, and none of its values is kept.
func TestStateKeepsNoSecrets(t *testing.T) {
	k := config{Image: "microsandbox/python", Memory: 512, Envs: []string{"TOKEN=hunter2"}}
	s := k.newState()
	text, err := json.Marshal(s)
	if err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("the state has the environment: %s, %v", text, err)
	}
	same := config{Image: k.Image, Memory: 256, CPUs: 1, Envs: []string{"TOKEN=hunter2"}, Volumes: []string{}}
	if same.sum(s.Salt) != s.Sum {
		t.Error("other limits are another configuration")
	}
	other := config{Image: k.Image, Envs: []string{"TOKEN=other"}}
	if other.sum(s.Salt) == s.Sum || k.newState().Sum == s.Sum {
		t.Error("the checksum does not depend on the environment and the salt")
	}
}

// A call does not wait for ever for a start, which goes on until its key or the server ends. If the caller leaves, it ends.
func TestStartsAreNotWaitedForEver(t *testing.T) {
	g := gate.New(gate.Options{})
	ctx, leave := context.WithCancel(t.Context())
	c := &call{&gate.Call{Ctx: ctx}, &api{dialect.Server{Gate: g}}}
	ended := make(chan error, 1)
	slow := func(ctx context.Context) error {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return context.Cause(ctx)
	}
	if done, err := c.within(0, slow); done || err != nil {
		t.Errorf("done %v, %v", done, err)
	}
	for _, key := range []string{"ends", "has ended"} {
		c.Caller = gate.Caller{Key: key, Namespace: "n"}
		if key == "has ended" {
			g.Revoke(key, nil)
		}
		if done, err := c.within(0, slow); done || err != nil {
			t.Errorf("done %v, %v", done, err)
		}
		g.Revoke(key, nil)
		if err := <-ended; !errors.Is(err, gate.ErrKeyEnded) {
			t.Errorf("the start of a key that has ended ends with %v", err)
		}
	}
	c.Caller = gate.Caller{}
	leave()
	if done, err := c.within(time.Hour, slow); !done || !errors.Is(err, context.Canceled) {
		t.Errorf("done %v, %v", done, err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, gate.ErrDraining) {
		t.Error(err)
	}
	if done, err := c.within(time.Hour, func(context.Context) error { return nil }); !done || err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("done %v, %v", done, err)
	}
}

// A start that panics is an error of its call. The server goes on.
func TestStartsPanic(t *testing.T) {
	log := new(testkit.Buffer)
	g := gate.New(gate.Options{})
	c := &call{&gate.Call{Ctx: t.Context()}, &api{dialect.Server{Gate: g, Log: slog.New(slog.NewTextHandler(log, nil))}}}
	if done, err := c.within(time.Hour, func(context.Context) error { panic("on purpose") }); !done || err == nil {
		t.Errorf("done %v, %v", done, err)
	}
	if !strings.Contains(log.String(), "the start of a sandbox panicked") {
		t.Errorf("the log: %s", log)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

const strictPolicy = `
policies:
  small:
    images: [host]
    defaults: {memory: 64m, cpus: 0.5, pids: 64, life: 10m}
    maximum: {memory: 128m, cpus: 1, pids: 128, life: 1h, idle: 30m}
    on-expiry: [remove]
    sandboxes: 2
    mounts: [/usr/share]
    write-paths: [/workspace, /tmp]
`

// TestPolicyRefuses asks for more than a policy allows: the refusal names the
// part, and the audit the rule.
func TestPolicyRefuses(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.policy(strictPolicy)
	s.start()
	key := s.keyOf("team", "small")
	c := s.with(key)
	defer c.Close()
	for name, tt := range map[string]struct {
		spec sandpit.Spec
		part string // in the message
		rule string
	}{
		"image":        {sandpit.Spec{Image: "debian:13"}, "debian:13", "small.images"},
		"memory":       {sandpit.Spec{Limits: sandpit.Limits{Memory: 256 << 20}}, "memory", "small.maximum.memory"},
		"cpus":         {sandpit.Spec{Limits: sandpit.Limits{CPUs: 2}}, "cpus", "small.maximum.cpus"},
		"pids":         {sandpit.Spec{Limits: sandpit.Limits{Pids: 1000}}, "pids", "small.maximum.pids"},
		"mount":        {sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/etc", Target: "/x", ReadOnly: true}}}, "/etc", "small.mounts"},
		"for writing":  {sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/usr/share", Target: "/x"}}}, "for writing", "small.mounts"},
		"write path":   {sandpit.Spec{Write: []string{"/etc"}}, "/etc", "small.write-paths"},
		"life":         {sandpit.Spec{Limits: sandpit.Limits{Life: 2 * time.Hour}}, "life", "small.maximum.life"},
		"idle":         {sandpit.Spec{Idle: time.Hour}, "idle", "small.maximum.idle"},
		"what happens": {sandpit.Spec{OnExpiry: sandpit.ExpiryPause}, "pause", "small.on-expiry"},
	} {
		_, err := c.Create(t.Context(), tt.spec)
		if !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), tt.part) || !strings.Contains(err.Error(), tt.rule) {
			t.Errorf("%s: %v", name, err)
		}
	}
	sb := create(t, c, "one")
	for _, limits := range []sandpit.Limits{{Memory: 256 << 20}, {CPUs: 2}, {Pids: 1000}} {
		if err := sb.Update(t.Context(), sandpit.Change{Limits: limits}); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "small.maximum") {
			t.Errorf("changing it to %+v: %v", limits, err)
		}
	}
	if err := sb.SetLifetime(t.Context(), sandpit.Lifetime{Life: 2 * time.Hour}); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "life") {
		t.Errorf("a longer life: %v", err)
	}
	create(t, c, "two")
	if _, err := c.Create(t.Context(), small("three")); !errors.Is(err, sandpit.ErrQuota) || !strings.Contains(err.Error(), "limit of 2 sandboxes") || sandpit.RetryAfter(err) != 0 {
		t.Errorf("the third of two: %v", err)
	}
	_, body, _ := s.get("GET", "http://sandpit/v1/audit?denied=true&action=createSandbox&limit=100", "", "")
	for _, rule := range []string{"small.images", "small.maximum.memory", "small.mounts", "small.write-paths"} {
		if !strings.Contains(body, `"rule":"`+rule+`"`) {
			t.Errorf("the audit does not name %s: %s", rule, body)
		}
	}
}

// TestPolicyRate makes sandboxes faster than is allowed.
func TestPolicyRate(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.policy("policies:\n  slow:\n    creates-per-second: 0.0001\n")
	s.start()
	key := s.keyOf("team", "slow")
	c := s.with(key)
	defer c.Close()
	create(t, c, "one")
	if _, err := c.Create(t.Context(), small("two")); !errors.Is(err, sandpit.ErrRateLimited) || !strings.Contains(err.Error(), "per second") {
		t.Errorf("too soon: %v", err)
	}
	status, body, header := s.get("POST", "http://sandpit/v1/sandboxes", key, `{"limits":{"memory":67108864}}`)
	if status != http.StatusTooManyRequests || header.Get("Retry-After") == "" {
		t.Errorf("too soon: %d %v %s", status, header, body)
	}
}

// TestPolicyIsReloaded changes the file of a server that runs.
func TestPolicyIsReloaded(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.policy(strictPolicy)
	s.start()
	made := s.makeKey(v1.NewKey{Namespace: "team", Policy: "small"})
	c := s.with(made.Secret)
	defer c.Close()
	memory := func() string {
		_, body, _ := s.get("GET", "http://sandpit/v1/keys/"+made.ID+"/policy", "", "")
		var p v1.NamedPolicy
		var doc struct{ Maximum struct{ Memory int64 } }
		if err := errors.Join(json.Unmarshal([]byte(body), &p), json.Unmarshal(p.Policy, &doc)); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if own, _ := s.own(made.Secret); own != string(p.Policy) {
			// They were asked one after the other: it may have been read again in between.
			return fmt.Sprintf("as the key's owner is told %s, and an admin %s", own, p.Policy)
		}
		return fmt.Sprint(doc.Maximum.Memory >> 20)
	}
	if got := memory(); got != "128" {
		t.Fatalf("at most %s MiB", got)
	}
	// On demand, as SIGHUP does.
	s.policy(strings.Replace(strictPolicy, "memory: 128m", "memory: 256m", 1))
	s.reload <- struct{}{}
	testkit.Until(t, "the policy is read again", func() bool { return memory() == "256" })
	if _, err := c.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Memory: 200 << 20}}); err != nil {
		t.Errorf("what is allowed now: %v", err)
	}
	// A broken file changes nothing, and is complained of.
	s.policy("policies:\n  small:\n    imagez: [host]\n")
	s.reload <- struct{}{}
	testkit.Until(t, "it is complained of", func() bool {
		return strings.Contains(s.log.String(), "stay in force") && strings.Contains(s.log.String(), "imagez")
	})
	if got := memory(); got != "256" {
		t.Errorf("after a broken file: at most %s MiB", got)
	}
	// And by itself, when the file changes.
	s.policy(strings.Replace(strictPolicy, "memory: 128m", "memory: 96m", 1))
	testkit.Until(t, "the policy is read again", func() bool { return memory() == "96" })
	if _, err := c.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Memory: 128 << 20}}); !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("what is no longer allowed: %v", err)
	}
	// A missing value lifts no bound.
	s.policy("policies:\n  small:\n    maximum:\n    # memory: 96m\n")
	s.reload <- struct{}{}
	testkit.Until(t, "it is complained of", func() bool { return strings.Contains(s.log.String(), "policies.small.maximum: it has no value") })
	if got := memory(); got != "96" {
		t.Errorf("after a maximum without a value: at most %s MiB", got)
	}
	// A key whose policy is gone may use what it has, within what was allowed, and remove it.
	kept := create(t, c, "kept")
	s.policy("policies: {}\n")
	s.reload <- struct{}{}
	testkit.Until(t, "the policy is gone", func() bool {
		_, err := c.Create(t.Context(), small(""))
		return errors.Is(err, sandpit.ErrForbidden) && strings.Contains(err.Error(), "small")
	})
	for _, change := range []sandpit.Change{{Limits: sandpit.Limits{Memory: 4 << 30}}, {Limits: sandpit.Limits{Pids: 20000}}, {Name: "other"}} {
		if err := kept.Update(t.Context(), change); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "small") {
			t.Errorf("changing it to %+v: %v", change, err)
		}
	}
	if err := kept.SetLifetime(t.Context(), sandpit.Lifetime{Life: 100 * time.Hour}); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "small") {
		t.Errorf("a longer life: %v", err)
	}
	if out, err := sandpit.Shell(t.Context(), kept, "echo works"); err != nil || string(out.Stdout) != "works\n" {
		t.Errorf("got %q, %v", out.Stdout, err)
	}
	if err := kept.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	testkit.Until(t, "it is warned of", func() bool { return strings.Contains(s.log.String(), "the policy file names no policies any more") })
	if status, body, _ := s.get("GET", "http://sandpit/v1/keys/aaaaaaaa/policy", "", ""); status != http.StatusNotFound {
		t.Errorf("a key that is none: %d %s", status, body)
	}
}

// own is the policy as who has a key is told it.
func (s *served) own(key string) (string, error) {
	_, body, _ := s.get("GET", "http://sandpit/v1/policy", key, "")
	var p v1.NamedPolicy
	err := json.Unmarshal([]byte(body), &p)
	return string(p.Policy), err
}

// TestBrokenPolicyAtStart does not start with policies that nobody meant.
func TestBrokenPolicyAtStart(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.policy("policies:\n  small:\n    maximum: {memory: much}\n")
	opt := s.options()
	err := runFor(t, opt)
	if !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), "policy.yaml:3") {
		t.Errorf("got %v", err)
	}
}

// TestRoomIsWaitedFor makes a sandbox where there is no room, and then makes room.
func TestRoomIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.settings.Sandboxes = 2
	s.start()
	a, b := s.with(s.keyOf("a", "")), s.with(s.keyOf("b", ""))
	defer a.Close()
	defer b.Close()
	first := create(t, a, "")
	create(t, a, "")
	// Many of one tenant wait, and then one of another: it is served second.
	var order []string
	var mu sync.Mutex
	var waiting sync.WaitGroup
	enter := func(c sandpit.Client, name string) {
		waiting.Go(func() {
			sb, err := c.Create(t.Context(), small(""))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for range 6 {
		enter(a, "a")
	}
	testkit.Until(t, "six wait", func() bool { return s.waiting() == 6 })
	enter(b, "b")
	testkit.Until(t, "seven wait", func() bool { return s.waiting() == 7 })
	if err := first.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
	if at := strings.Index(strings.Join(order, ""), "b"); at < 0 || at > 1 {
		t.Errorf("who came last of another tenant was served in the order %v", order)
	}
}

// waiting is how many callers wait for room.
func (s *served) waiting() int {
	s.t.Helper()
	return s.figure("sandpit_sandbox_creates_waiting")
}

// TestManyAtOnce has far more asked for than there is room for.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	many := 100
	if long() {
		many = 1000
	}
	s := newServed(t)
	s.settings.Sandboxes = 8
	s.start()
	key := s.keyOf("crowd", "")
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var made, kept, full atomic.Int64
	var all sync.WaitGroup
	c := s.unix()
	defer c.Close()
	others := s.with(key)
	defer others.Close()
	for i := range many {
		all.Go(func() {
			c := c
			if i%2 == 0 {
				c = others // whose rate is bounded, too
			}
			sb, err := c.Create(ctx, small(""))
			switch {
			case err == nil:
				made.Add(1)
				if i%4 >= 2 {
					kept.Add(1)
				} else if err := sb.Remove(t.Context()); err != nil {
					t.Errorf("removing: %v", err)
				}
			case errors.Is(err, sandpit.ErrExhausted):
				full.Add(1)
				if sandpit.RetryAfter(err) <= 0 {
					t.Errorf("when to ask again is not said: %v", err)
				}
			case ctx.Err() != nil:
				full.Add(1)
			default:
				t.Errorf("creating: %v", err)
			}
		})
	}
	// The room is full for good, and others wait: they are given up, or wait for
	// the server's bound.
	testkit.Until(t, "the room is full", func() bool { return kept.Load() == 8 && s.waiting() > 0 })
	if !long() {
		giveUp()
	}
	all.Wait()
	t.Logf("%d made, %d refused or given up", made.Load(), full.Load())
	if made.Load() < 8 {
		t.Errorf("%d made where there is room for 8", made.Load())
	}
	// It has come through that, and has forgotten nothing and nobody.
	if status, body, _ := s.get("GET", "http://sandpit/healthz", "", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	// What was given up may still be in its hands.
	testkit.Until(t, "nobody waits", func() bool { return s.waiting() == 0 })
	var left []os.DirEntry
	testkit.Until(t, "nothing is left", func() bool {
		s.clean()
		var err error
		left, err = os.ReadDir(s.home + "/sandboxes")
		return len(left) == 0 && (err == nil || errors.Is(err, os.ErrNotExist))
	}, func() string { return fmt.Sprint(left) })
	sb := create(t, c, "after")
	if out, err := sandpit.Exec(t.Context(), sb, "echo", "well"); err != nil || string(out.Stdout) != "well\n" {
		t.Errorf("%q %v", out.Stdout, err)
	}
}

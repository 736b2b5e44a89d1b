package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// upgradePort has a forwarded port, whose command goes on over the upgrade.
func upgradePort(u *upgrade) func(*upgrade) {
	if !hasPython() {
		return func(u *upgrade) { testkit.Lacks(u.t, python) }
	}
	sb := u.box(sandpit.Spec{Name: "port"})
	serveFiles(u.t, sb)
	cmd := u.oldCommand("forward", "port", "0:8000")
	var said testkit.Buffer
	cmd.Stdout = &said
	start(u, cmd)
	u.until("the port is forwarded", func() bool { return strings.Contains(said.String(), "\n") })
	address, _, _ := strings.Cut(said.String(), " -> ")
	fetch := func(u *upgrade) {
		u.t.Helper()
		resp, err := http.Get("http://" + address)
		if err != nil {
			u.t.Error(err)
			return
		}
		defer resp.Body.Close()
		if data, err := io.ReadAll(resp.Body); err != nil || string(data) != "hello\n" {
			u.t.Errorf("through the forwarded port: %q %v", data, err)
		}
	}
	fetch(u)
	return func(u *upgrade) {
		network := sb.(sandpit.Networker)
		if ports, err := network.Ports(u.t.Context()); err != nil || len(ports) != 1 || ports[0].Port != 8000 {
			u.t.Errorf("it listens at %+v, %v", ports, err)
		}
		fetch(u)
		conn, err := network.Dial(u.t.Context(), 8000)
		if err != nil {
			u.t.Fatal(err)
		}
		_ = conn.Close()
	}
}

// start starts a command, which the end of the test kills.
func start(u *upgrade, cmd *exec.Cmd) {
	u.t.Helper()
	if err := cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// upgradeImage has a sandbox of an image that the old program has put into the store.
func upgradeImage(u *upgrade) func(*upgrade) {
	root := filepath.Join(u.home, "root")
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		u.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc", "hello"), []byte("hello\n"), 0o644); err != nil {
		u.t.Fatal(err)
	}
	if out, err := u.oldCommand("images", "import", "dir:"+root, "my/root:1").CombinedOutput(); err != nil {
		u.t.Fatalf("%v %s", err, out)
	}
	sb := u.box(sandpit.Spec{Name: "image", Image: "my/root:1", WorkDir: "/"})
	return func(u *upgrade) {
		t := u.t
		// It is in use: nobody takes its files away.
		if out, err := commandLineAt(t, u.home, "images", "prune", "--all").CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
		r, err := sb.Files().Open(t.Context(), "/etc/hello", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if data, err := io.ReadAll(r); err != nil || string(data) != "hello\n" {
			t.Errorf("a file of the image is %q, %v", data, err)
		}
		if out, err := commandLineAt(t, u.home, "images", "import", "dir:"+root, "my/root:2").CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
		u.box(sandpit.Spec{Name: "image-2", Image: "my/root:2", WorkDir: "/"})
	}
}

// tenant is how a key is used.
func (u *upgrade) tenant(key string) client.Options {
	return tlsOptions(u.t, &service{home: u.home, tls: u.address, key: key})
}

// upgradeTenant has keys with policies, over TLS.
func upgradeTenant(u *upgrade) func(*upgrade) {
	newKey := func(policy string) v1.Key {
		var key v1.Key
		if err := u.c.Call(u.t.Context(), http.MethodPost, "/v1/keys", v1.NewKey{Name: policy, Namespace: "team", Policy: policy}, &key); err != nil {
			u.t.Fatal(err)
		}
		return key
	}
	small, revoked := newKey("small"), newKey("default")
	u.team = small.Secret
	if err := u.c.Call(u.t.Context(), http.MethodDelete, "/v1/keys/"+revoked.ID, nil, nil); err != nil {
		u.t.Fatal(err)
	}
	with := func(u *upgrade, key string) *client.Client {
		c, err := client.New(u.tenant(key))
		if err != nil {
			u.t.Fatal(err)
		}
		u.t.Cleanup(func() { _ = c.Close() })
		return c
	}
	mine, err := with(u, small.Secret).Create(u.t.Context(), sandpit.Spec{Name: "files"})
	if err != nil {
		u.t.Fatal(err)
	}
	return func(u *upgrade) {
		t := u.t
		c := with(u, small.Secret)
		page, err := c.List(t.Context(), sandpit.ListQuery{})
		if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != mine.ID() {
			t.Fatalf("it sees %+v, %v", page, err)
		}
		sb, err := c.Get(t.Context(), "files")
		if err != nil {
			t.Fatal(err)
		}
		if got := u.shell(sb, "echo well"); got != "well\n" {
			t.Errorf("it says %q", got)
		}
		if _, err := c.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Memory: 1 << 30}}); !errors.Is(err, sandpit.ErrForbidden) {
			t.Errorf("more than its policy allows: %v", err)
		}
		if _, err := with(u, revoked.Secret).List(t.Context(), sandpit.ListQuery{}); !errors.Is(err, sandpit.ErrForbidden) {
			t.Errorf("with a key that was revoked: %v", err)
		}
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// upgradeWebhook has a receiver of events, which checks who sends them.
func upgradeWebhook(u *upgrade) func(*upgrade) {
	secret := []byte("a secret that both ends have")
	const forged = "?"
	names := make(chan string, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		mac := hmac.New(sha256.New, secret)
		_, _ = io.WriteString(mac, req.Header.Get("webhook-id")+"."+req.Header.Get("webhook-timestamp")+"."+string(body))
		if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); err != nil || req.Header.Get("webhook-signature") != want {
			names <- forged
			return
		}
		var said struct{ Data sandpit.Event }
		if json.Unmarshal(body, &said) == nil {
			names <- said.Data.Name
		}
	}))
	u.t.Cleanup(receiver.Close)
	hook := v1.NewWebhook{URL: receiver.URL, Kinds: []string{"sandbox.created"}, Secret: "whsec_" + base64.StdEncoding.EncodeToString(secret)}
	if err := u.c.Call(u.t.Context(), http.MethodPost, "/v1/webhooks", hook, nil); err != nil {
		u.t.Fatal(err)
	}
	told := func(u *upgrade, name string) {
		u.t.Helper()
		u.box(sandpit.Spec{Name: name})
		for {
			select {
			case got := <-names:
				switch got {
				case name:
					return
				case forged:
					u.t.Fatal("it was told something that is not signed as it should be")
				}
			case <-time.After(patience):
				u.t.Fatalf("it was not told of %s", name)
			}
		}
	}
	told(u, "told-by-the-old")
	return func(u *upgrade) { told(u, "told-by-the-new") }
}

// upgradeEvents has a listener, who asks the new server for what came after what
// the old one has told: he learns that he may have missed some, and what comes now
// has a greater number.
func upgradeEvents(u *upgrade) func(*upgrade) {
	first := func(u *upgrade, after uint64) sandpit.Event {
		u.t.Helper()
		ctx, cancel := context.WithTimeout(u.t.Context(), patience)
		defer cancel()
		for ev, err := range u.c.Events(ctx, sandpit.EventQuery{After: after}) {
			if err != nil {
				u.t.Fatal(err)
			}
			return ev
		}
		u.t.Fatal("there are no events")
		return sandpit.Event{}
	}
	ev := first(u, 1)
	for ev.Kind == sandpit.EventLost {
		ev = first(u, ev.Seq)
	}
	return func(u *upgrade) {
		t := u.t
		lost := first(u, ev.Seq)
		if lost.Kind != sandpit.EventLost || lost.Seq <= ev.Seq {
			t.Errorf("after %+v comes %+v", ev, lost)
		}
		u.box(sandpit.Spec{Name: "event"})
		if now := first(u, lost.Seq); now.Seq <= lost.Seq || now.Kind == sandpit.EventLost {
			t.Errorf("after %+v comes %+v", lost, now)
		}
	}
}

// upgradeRepeated sends a request to both servers, with one Idempotency-Key.
func upgradeRepeated(u *upgrade) func(*upgrade) {
	ask := func(u *upgrade) (string, string) {
		u.t.Helper()
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return server.DialHome(ctx, u.home) }}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(u.t.Context(), http.MethodPost, "http://sandpit/v1/sandboxes", strings.NewReader(`{"name":"once"}`))
		if err != nil {
			u.t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "an upgrade")
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			u.t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		var made v1.Sandbox
		if err != nil || resp.StatusCode != http.StatusCreated || json.Unmarshal(body, &made) != nil {
			u.t.Fatalf("%s %s %v", resp.Status, body, err)
		}
		return made.ID, resp.Header.Get("Idempotent-Replayed")
	}
	id, _ := ask(u)
	return func(u *upgrade) {
		if again, replayed := ask(u); again != id || replayed != "true" {
			u.t.Errorf("the sandbox was %s, is %s (replayed: %s)", id, again, replayed)
		}
	}
}

// upgradeAudit looks for what both have written into one chain. That it holds to
// the end remove says.
func upgradeAudit(u *upgrade) func(*upgrade) {
	return func(u *upgrade) {
		t := u.t
		if out, err := commandLineAt(t, u.home, "audit", "verify").CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
		u.box(sandpit.Spec{Name: "audited"})
		out, err := commandLineAt(t, u.home, "audit", "grep", "--json").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "told-by-the-old") || !strings.Contains(string(out), "audited") {
			t.Errorf("what is found has not what both have written: %v %s", err, out)
		}
	}
}

// upgradeMixed uses commands of the one program with the server of the other: who
// replaces the program has the old server until it is started anew, and a shell may
// still have the old program.
func upgradeMixed(u *upgrade) func(*upgrade) {
	use := func(u *upgrade, name string, command func(argv ...string) *exec.Cmd) {
		u.t.Helper()
		for _, step := range []struct {
			argv []string
			want string // in what it writes
		}{
			{[]string{"run", "echo", "well"}, "well\n"},
			{[]string{"create", "--memory", "64m", name}, name + "\n"},
			{[]string{"exec", name, "--", "sh", "-c", "echo hello >/tmp/file; cat /tmp/file"}, "hello\n"},
			{[]string{"ls", name, "/tmp"}, "file"},
			{[]string{"ps", name}, "PID"},
			{[]string{"logs", name}, "hello"},
			{[]string{"stats", "--json", name}, name},
			{[]string{"stop", name}, ""},
			{[]string{"start", name}, ""},
			{[]string{"ps"}, name},
			{[]string{"rm", name}, name},
		} {
			cmd := command(step.argv...)
			if cmd.Args[1] == "create" && u.limits.Memory == 0 {
				cmd.Args = slices.Delete(cmd.Args, 2, 4)
			}
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), step.want) {
				u.t.Errorf("%q: %v %s", step.argv, err, out)
			}
		}
	}
	use(u, "by-the-new", func(argv ...string) *exec.Cmd { return commandLineAt(u.t, u.home, argv...) })
	return func(u *upgrade) { use(u, "by-the-old", u.oldCommand) }
}

// upgradeFigures looks whether what was used counts on.
func upgradeFigures(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "figures"})
	u.shell(sb, "head -c 1000000 /dev/zero >/tmp/zeros; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	before, err := sb.Metrics(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	return func(u *upgrade) {
		t := u.t
		now, err := sb.Metrics(t.Context())
		if err != nil || now.CPU < before.CPU || now.MemoryPeak < before.MemoryPeak || before.Disk > now.Disk {
			t.Errorf("they were %+v, are %+v, %v", before, now, err)
		}
		var history []sandpit.Sample
		u.until("there is a sample", func() bool {
			history, err = sb.(sandpit.Meter).History(t.Context(), time.Time{})
			return err != nil || len(history) > 0
		})
		if err != nil || history[0].CPU < before.CPU {
			t.Errorf("the samples are %+v, %v", history, err)
		}
	}
}

// upgradeExpired has a sandbox whose time is over before the new server is there.
func upgradeExpired(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "expired"})
	u.ends = guestOf(u.t, u.home, sb.ID())
	if err := sb.(sandpit.Lifecycle).SetLifetime(u.t.Context(), sandpit.Lifetime{Life: time.Second}); err != nil {
		u.t.Fatal(err)
	}
	return func(u *upgrade) {
		u.until("it is removed", func() bool {
			_, err := u.c.Get(u.t.Context(), "expired")
			return errors.Is(err, sandpit.ErrNotFound)
		})
		if left, _ := filepath.Glob(filepath.Join(u.home, "*", sb.ID()+"*")); left != nil {
			u.t.Errorf("%v are left", left)
		}
	}
}

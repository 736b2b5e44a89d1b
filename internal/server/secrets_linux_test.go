package server_test

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// noted is a network that notes the terms on which sandboxes join it, and moves nothing.
type noted struct {
	engine.Network // for rules

	mu     sync.Mutex
	joined []*member // in order
	fails  error     // of Set
}

type member struct {
	engine.Joined
	network *noted
	terms   engine.Terms
	closed  bool
}

func (n *noted) Join(_ context.Context, file *os.File, t engine.Terms) (engine.Joined, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := &member{network: n, terms: t}
	n.joined = append(n.joined, m)
	return m, file.Close()
}

// of returns the latest terms.
func (n *noted) of(i int) (engine.Terms, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.joined[i].terms, n.joined[i].closed
}

func (m *member) Set(_ context.Context, t engine.Terms) error {
	m.network.mu.Lock()
	defer m.network.mu.Unlock()
	if m.network.fails != nil {
		return m.network.fails
	}
	m.terms = t
	return nil
}

func (*member) Traffic() (t engine.Traffic)     { return t }
func (*member) Denials() []sandpit.EgressDenial { return nil }

func (m *member) Close() error {
	m.network.mu.Lock()
	defer m.network.mu.Unlock()
	m.closed = true
	return nil
}

// values are secrets that no answer, log, entry of the audit or file may have.
var values = []string{"value-in-a-file", "value-of-team-a", "rotated-of-team-a", "value-of-the-server", "value-in-the-environment"}

func TestSecrets(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t, "to make the interface of a sandbox")
	n := &noted{Network: network.InProcess{}}
	s := newServed(t)
	s.policy("policies:\n  few: {secrets: ['open*']}\n")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("value-in-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.settings.Secrets = []server.ConfiguredSecret{{Name: "opened", Hosts: []string{"file.example"}, From: "file:" + file}, {Name: "xai", From: "cmd:cat " + file}}
	s.change = func(o *server.Options) { o.Network = n }
	s.start()
	a, b, few := s.keyOf("a", "default"), s.keyOf("b", "default"), s.keyOf("b", "few")
	var answers strings.Builder
	ask := func(status int, method, path, key, body string) string {
		t.Helper()
		got, answer, _ := s.get(method, "http://sandpit"+path, key, body)
		answers.WriteString(answer)
		if got != status {
			t.Errorf("%s %s: %d, want %d: %s", method, path, got, status, answer)
		}
		return answer
	}

	// A service's name is enough; the server's secrets are the operator's.
	ask(200, "PUT", "/v1/secrets/openai", a, `{"value":"value-of-team-a"}`)
	ask(403, "PUT", "/v1/secrets/github?scope=server", a, `{"value":"value-of-team-a"}`)
	ask(200, "PUT", "/v1/secrets/github?scope=server", "", `{"value":"value-of-the-server","service":"github"}`)
	ask(400, "PUT", "/v1/secrets/x?scope=server", "", `{"value":"value-of-the-server"}`)
	ask(409, "PUT", "/v1/secrets/opened?scope=server", "", `{"value":"value-of-the-server","hosts":["evil.example"]}`)
	ask(409, "DELETE", "/v1/secrets/opened?scope=server", "", "")
	ask(200, "PUT", "/v1/secrets/plain", a, `{"value":"value-in-the-environment"}`)
	for _, body := range []string{`{"value":""}`, `{"value":"value-of-team-a","service":"none"}`, `{"value":"value-of-team-a","hosts":["10.0.0.0/8"]}`, `{"value":"value-of-team-a\u0000"}`, `{"value":7}`, `{"value":"value-of-team-a","source":"env:X"}`} {
		ask(400, "PUT", "/v1/secrets/bad", a, body)
	}
	list := ask(200, "GET", "/v1/secrets", a, "")
	for _, want := range []string{`"name":"openai","scope":"namespace","service":"openai","hosts":["api.openai.com"],"variables":["OPENAI_API_KEY"]`, `"name":"github","scope":"server"`, `"name":"xai","scope":"server","service":"xai","hosts":["api.x.ai"]`} {
		if !strings.Contains(list, want) {
			t.Errorf("the list lacks %s: %s", want, list)
		}
	}
	if list := ask(200, "GET", "/v1/secrets", b, ""); strings.Contains(list, "openai") || !strings.Contains(list, "github") {
		t.Errorf("another namespace sees %s", list)
	}
	ask(404, "DELETE", "/v1/secrets/openai", b, "")
	ask(404, "PUT", "/v1/secrets/openai/value", b, `{"value":"value-of-team-a"}`)
	if list := ask(200, "GET", "/v1/secrets?service=github", a, ""); strings.Contains(list, "openai") {
		t.Errorf("a filtered list is %s", list)
	}
	if services := ask(200, "GET", "/v1/services", a, ""); !strings.Contains(services, `"name":"anthropic"`) {
		t.Errorf("the services are %s", services)
	}

	// A sandbox has placeholders, the network the values.
	c := s.with(a)
	defer c.Close()
	spec := small("one")
	spec.Secrets = []sandpit.Secret{{Name: "openai"}, {Name: "github", Variable: "TOKEN", Hosts: []string{"api.github.com"}}, {Name: "plain", Env: true}}
	sb := createOf(t, c, spec)
	out, err := sandpit.Shell(t.Context(), sb, "echo $OPENAI_API_KEY $TOKEN; echo $PLAIN | tr a-z A-Z")
	if err != nil {
		t.Fatal(err)
	}
	vars := strings.Fields(string(out.Stdout))
	terms, _ := n.of(0)
	if len(vars) != 3 || len(terms.Secrets) != 2 || terms.Secrets[0].Placeholder != vars[0] || terms.Secrets[1].Placeholder != vars[1] ||
		!strings.HasPrefix(vars[0], "sk-sandpit") || !strings.HasPrefix(vars[1], "ghp_sandpit") || vars[2] != "VALUE-IN-THE-ENVIRONMENT" {
		t.Fatalf("the sandbox has %q", vars)
	}
	if string(terms.Secrets[0].Value) != "value-of-team-a" || string(terms.Secrets[1].Value) != "value-of-the-server" || !slices.Equal(terms.Secrets[1].Hosts, []string{"api.github.com:443"}) {
		t.Error("the network has other secrets")
	}
	if want := []string{"api.openai.com:443", "api.github.com:443"}; !slices.Equal(terms.Egress.Allow, want) {
		t.Errorf("it may reach %q", terms.Egress.Allow)
	}
	info, err := sb.Info(t.Context())
	if err != nil || !slices.ContainsFunc(info.NotEnforced, func(g sandpit.Gap) bool { return g.What == "secret-env" && strings.HasSuffix(g.Why, ": plain") }) {
		t.Errorf("it is described as %+v, %v", info, err)
	}

	other := s.with(b)
	defer other.Close()
	second := small("two")
	second.Secrets = []sandpit.Secret{{Name: "opened"}}
	if err := createOf(t, other, second).Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if terms, _ := n.of(1); len(terms.Secrets) != 1 || string(terms.Secrets[0].Value) != "value-in-a-file" || !slices.Equal(terms.Secrets[0].Hosts, []string{"file.example:443"}) {
		t.Error("a secret of the settings is not as it is there")
	}

	// What is refused leaves nothing.
	if answer := ask(403, "PUT", "/v1/secrets/never-used", few, `{"value":"x"}`); !strings.Contains(answer, "few.secrets") {
		t.Errorf("storing what the policy does not allow to use: %s", answer)
	}
	ask(200, "PUT", "/v1/secrets/shown", b, `{"value":"value-of-team-a"}`)
	if answer := ask(403, "PUT", "/v1/secrets/shown/value", few, `{"value":"x"}`); !strings.Contains(answer, "few.secrets") {
		t.Errorf("rotating what the policy does not allow to use: %s", answer)
	}
	ask(204, "DELETE", "/v1/secrets/shown", few, "")
	if answer := ask(404, "DELETE", "/v1/secrets/github", a, ""); !strings.Contains(answer, "is a secret of the server") || !strings.Contains(answer, "--server") {
		t.Errorf("removing a secret of the server: %s", answer)
	}
	less := s.with(few)
	defer less.Close()
	for about, x := range map[string]struct {
		c    sandpit.Client
		use  sandpit.Secret
		kind error
		text string
	}{
		"another namespace's":      {other, sandpit.Secret{Name: "openai"}, sandpit.ErrNotFound, "openai"},
		"another host":             {c, sandpit.Secret{Name: "openai", Hosts: []string{"evil.example"}}, sandpit.ErrForbidden, "evil.example"},
		"without hosts":            {c, sandpit.Secret{Name: "plain"}, sandpit.ErrInvalid, "bound to no host"},
		"the value of the server":  {c, sandpit.Secret{Name: "github", Env: true}, sandpit.ErrForbidden, "default.secrets"},
		"what the policy does not": {less, sandpit.Secret{Name: "github"}, sandpit.ErrForbidden, "few.secrets"},
	} {
		if _, err := x.c.Create(t.Context(), sandpit.Spec{Secrets: []sandpit.Secret{x.use}}); !errors.Is(err, x.kind) || !strings.Contains(err.Error(), x.text) {
			t.Errorf("%s: %v", about, err)
		}
	}
	twice := small("")
	twice.Env, twice.Secrets = []string{"OPENAI_API_KEY=x"}, []sandpit.Secret{{Name: "openai"}}
	if _, err := c.Create(t.Context(), twice); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), "OPENAI_API_KEY") {
		t.Errorf("a variable that is set twice: %v", err)
	}
	if page, err := c.List(t.Context(), sandpit.ListQuery{}); err != nil || len(page.Sandboxes) != 1 {
		t.Errorf("there are %d sandboxes, %v", len(page.Sandboxes), err)
	}

	// Rotation and removal are in force when they are answered.
	ask(200, "PUT", "/v1/secrets/openai/value", a, `{"value":"rotated-of-team-a"}`)
	if terms, _ := n.of(0); string(terms.Secrets[0].Value) != "rotated-of-team-a" || terms.Secrets[0].Placeholder != vars[0] {
		t.Error("a rotated value is not in force")
	}
	ask(204, "DELETE", "/v1/secrets/github?scope=server", "", "")
	if terms, _ := n.of(0); len(terms.Secrets) != 1 || terms.Secrets[0].Name != "openai" {
		t.Errorf("after a removal it has %d secrets", len(terms.Secrets))
	}

	// The next server finds them again.
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	if terms, _ := n.of(2); len(terms.Secrets) != 1 || terms.Secrets[0].Placeholder != vars[0] || string(terms.Secrets[0].Value) != "rotated-of-team-a" {
		t.Errorf("an adopted sandbox has %d secrets", len(terms.Secrets))
	}
	s.grep(t, answers.String(), values...)
	if _, audit, _ := s.get("GET", "http://sandpit/v1/audit?limit=1000", "", ""); !strings.Contains(audit, `secrets \"openai\", \"github\", \"plain\" as env`) || !strings.Contains(audit, `"action":"rotateSecret"`) || !strings.Contains(audit, `secret openai`) {
		t.Errorf("the audit is %s", audit)
	}

	// A former value that can't be replaced is not used any more.
	n.mu.Lock()
	n.fails = sandpit.ErrUnavailable
	n.mu.Unlock()
	ask(503, "DELETE", "/v1/secrets/openai", a, "")
	if _, closed := n.of(2); !closed {
		t.Error("the sandbox still reaches the network")
	}
}

// A value that a create request brings needs no permission but that for its hosts, is used in place of a stored
// one of its name, and goes with the sandbox.
func TestOwnSecrets(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t, "to make the interface of a sandbox")
	n := &noted{Network: network.InProcess{}}
	s := newServed(t)
	s.policy("policies:\n  none: {secrets: [], egress: [api.openai.com, own.example]}\n")
	s.change = func(o *server.Options) { o.Network = n }
	s.start()
	a, b := s.keyOf("a", "none"), s.keyOf("b", "none")
	var answers strings.Builder
	ask := func(status int, method, path, key, body string, header ...string) string {
		t.Helper()
		got, answer, _ := s.get(method, "http://sandpit"+path, key, body, header...)
		answers.WriteString(answer)
		if got != status {
			t.Errorf("%s %s: %d, want %d: %s", method, path, got, status, answer)
		}
		return answer
	}
	inForce := func(i int, want ...string) {
		t.Helper()
		terms, closed := n.of(i)
		var got []string
		for _, x := range terms.Secrets {
			got = append(got, x.Name+" "+strings.Join(x.Hosts, ",")+" "+string(x.Value))
		}
		if closed || !slices.Equal(got, want) {
			t.Errorf("the secrets in force are %q, want %q", got, want)
		}
	}

	// Stored secrets of the same names are not used, and their changes do not matter.
	owner := s.keyOf("a", "default") // whose policy lets it store them
	ask(200, "PUT", "/v1/secrets/openai", owner, `{"value":"value-of-team-a"}`)
	create := `{"name":"one","limits":{"memory":67108864,"disk":8388608},"secrets":[{"name":"openai","value":"own-of-the-sandbox"},{"name":"crm","hosts":["own.example:8443"],"variable":"TOKEN","value":"own-of-crm"},{"name":"plain","env":true,"value":"own-in-the-environment"}]}`
	for range 2 { // the second is an answer that was kept
		ask(201, "POST", "/v1/sandboxes", a, create, "Idempotency-Key", "once")
	}
	openai, crm := "openai api.openai.com:443 own-of-the-sandbox", "crm own.example:8443 own-of-crm"
	inForce(0, openai, crm)
	c := s.with(a)
	defer func() { c.Close() }()
	sb, err := c.Get(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := sandpit.Shell(t.Context(), sb, "echo $OPENAI_API_KEY; echo $TOKEN; echo $PLAIN | tr a-z A-Z"); err != nil || !strings.HasPrefix(string(out.Stdout), "sk-sandpit") || !strings.HasSuffix(string(out.Stdout), "\nOWN-IN-THE-ENVIRONMENT\n") {
		t.Errorf("the environment is %q, %v", string(out.Stdout), err)
	}
	ask(200, "PUT", "/v1/secrets/openai/value", owner, `{"value":"rotated-of-team-a"}`)
	ask(204, "DELETE", "/v1/secrets/openai", a, "")
	inForce(0, openai, crm)

	list := ask(200, "GET", "/v1/secrets?sandbox=one", a, "")
	for _, want := range []string{`"name":"openai","scope":"sandbox","service":"openai","hosts":["api.openai.com"],"variables":["OPENAI_API_KEY"]`, `"name":"crm","scope":"sandbox","hosts":["own.example:8443"],"variables":["TOKEN"]`} {
		if !strings.Contains(list, want) || strings.Contains(list, "plain") {
			t.Errorf("the list is %s, and lacks %s", list, want)
		}
	}
	if list := ask(200, "GET", "/v1/secrets", a, ""); strings.Contains(list, "sandbox") {
		t.Errorf("the namespace has %s", list)
	}

	// Rotation and removal; only of what there is, and by the namespace.
	ask(404, "GET", "/v1/secrets?sandbox=one", b, "")
	ask(404, "PUT", "/v1/secrets/crm/value?sandbox=one", b, `{"value":"own-of-another"}`)
	ask(404, "DELETE", "/v1/secrets/crm?sandbox=one", b, "")
	ask(404, "PUT", "/v1/secrets/plain/value?sandbox=one", a, `{"value":"own-of-another"}`)
	ask(404, "PUT", "/v1/secrets/none/value?sandbox=one", a, `{"value":"own-of-another"}`)
	ask(400, "PUT", "/v1/secrets/crm/value?sandbox=one", a, `{"value":"own\r\nof-another"}`)
	ask(400, "PUT", "/v1/secrets/crm/value?sandbox=one&scope=namespace", a, `{"value":"own-of-another"}`)
	ask(400, "PUT", "/v1/secrets/crm?sandbox=one", a, `{"value":"own-of-another"}`)
	inForce(0, openai, crm)
	ask(200, "PUT", "/v1/secrets/crm/value?sandbox=one", a, `{"value":"own-that-was-rotated"}`)
	crm = "crm own.example:8443 own-that-was-rotated"
	inForce(0, openai, crm)
	ask(204, "DELETE", "/v1/secrets/openai?sandbox=one", a, "")
	ask(404, "DELETE", "/v1/secrets/openai?sandbox=one", a, "")
	inForce(0, crm)

	// What is refused leaves nothing.
	for body, want := range map[string]string{
		`{"name":"crm","value":"own-of-crm"}`:                                     "bound to no host",
		`{"name":"crm","value":"own-of-crm","hosts":["denied.example"]}`:          "denied.example",
		`{"name":"crm","value":"own-of-crm\u0001","hosts":["own.example"]}`:       "control characters",
		`{"name":"crm","value":"own-of-crm","hosts":["10.0.0.1"]}`:                "not a host of a secret",
		`{"name":"crm","value":{"own-of-crm":1},"hosts":["own.example"]}`:         "value",
		`{"name":"crm","value":"` + strings.Repeat("own-of-crm", 6554) + `"}`:     "value",
		`{"name":"crm","env":true,"value":"own-of-crm","hosts":["own.example"]}`:  "both bound to hosts and in the environment",
		`{"name":"crm","hosts":["own.example"]}`:                                  "none.secrets",
		`{"name":"crm","value":"own-of-crm","hosts":["own.example"],"source":""}`: "source",
	} {
		if got, answer, _ := s.get("POST", "http://sandpit/v1/sandboxes", a, `{"secrets":[`+body+`]}`); got/100 != 4 || !strings.Contains(answer, want) || strings.Contains(answer, "own-of-crm") {
			t.Errorf("%.100s: %d %s", body, got, answer)
		}
	}

	// The next server finds them again, also a value that was changed and one that was removed.
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	inForce(1, crm)
	ask(200, "PUT", "/v1/secrets/crm/value?sandbox=one", a, `{"value":"own-of-crm"}`)
	inForce(1, "crm own.example:8443 own-of-crm")
	own := []string{"own-of", "own-in", "own-that"}
	s.grep(t, answers.String(), own...)
	_, audit, _ := s.get("GET", "http://sandpit/v1/audit?limit=1000", "", "")
	for _, want := range []string{`secrets \"openai\" of its own, \"crm\" of its own, \"plain\" of its own as env`, `secret crm sandbox \"one\"`} {
		if !strings.Contains(audit, want) {
			t.Errorf("the audit lacks %s: %s", want, audit)
		}
	}
	s.grep(t, audit, own...)

	// They go with the sandbox.
	ask(204, "DELETE", "/v1/sandboxes/one", a, "")
	ask(404, "GET", "/v1/secrets?sandbox=one", a, "")
}

// grep looks for values in all that the server has written, and in what it has answered.
func (s *served) grep(t testing.TB, answers string, values ...string) {
	t.Helper()
	_, metrics, _ := s.get(http.MethodGet, "http://sandpit/metrics", "", "")
	texts := map[string]string{"an answer": answers, "the log": s.log.String(), "the metrics": metrics}
	err := filepath.WalkDir(s.home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasPrefix(path, filepath.Join(s.home, "guest")) {
			return nil //nolint:nilerr // it may have gone
		}
		data, err := os.ReadFile(path)
		if err == nil {
			texts[path] = string(data)
		}
		return nil
	})
	if err != nil || len(texts) < 6 {
		t.Fatalf("%d texts, %v", len(texts), err)
	}
	for where, text := range texts {
		for _, value := range values {
			if strings.Contains(text, value) {
				t.Errorf("%s has %q", where, value)
			}
		}
	}
}

// A sandbox reaches the present hosts of its secrets, as far as its policy allows, whatever its own rules are: they
// stay as the caller asked for them.
func TestSecretsChangeHosts(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t, "to make the interface of a sandbox")
	n := &noted{Network: network.InProcess{}}
	s := newServed(t)
	s.policy("policies:\n  some: {secrets: ['*'], egress: [one.test, two.test, own.test, denied.test], deny: [denied.test]}\n")
	s.change = func(o *server.Options) { o.Network = n }
	s.start()
	key := s.keyOf("team", "some")
	set := func(host string) {
		t.Helper()
		if got, answer, _ := s.get("PUT", "http://sandpit/v1/secrets/token", key, `{"value":"v","hosts":["`+host+`"]}`); got != 200 {
			t.Fatalf("binding the secret to %s: %d %s", host, got, answer)
		}
	}
	c := s.with(key)
	defer c.Close()
	set("one.test")
	spec := small("one")
	spec.Secrets = []sandpit.Secret{{Name: "token"}}
	bad := spec
	bad.Egress.Allow = []string{"denied.test:443"}
	if _, err := c.Create(t.Context(), bad); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "is denied") {
		t.Errorf("a rule that the policy denies, beside a secret: %v", err)
	}
	sb := createOf(t, c, spec)
	reaches := func(i int, about string, asked []string, want ...string) {
		t.Helper()
		box := sb.(sandpit.Egresser)
		if e, err := box.Egress(t.Context()); err != nil || !slices.Equal(e.Allow, asked) {
			t.Errorf("%s, it asks for %q, %v, want %q", about, e.Allow, err, asked)
		}
		if terms, closed := n.of(i); closed || !slices.Equal(terms.Egress.Allow, want) {
			t.Errorf("%s, it may reach %q, want %q", about, terms.Egress.Allow, want)
		}
		for _, host := range []string{"one.test", "two.test", "other.example", "denied.test"} {
			d, err := box.CheckEgress(t.Context(), host+":443")
			if err != nil || d.Allowed != slices.Contains(want, host+":443") {
				t.Errorf("%s, %s: %+v, %v", about, host, d, err)
			}
			if d.Allowed && !slices.Contains(asked, d.Rule) && !strings.Contains(d.Why, `secret "token"`) {
				t.Errorf("%s, %s is reached because %s", about, host, d.Why)
			}
		}
	}
	gap := func(want bool) {
		t.Helper()
		info, err := sb.Info(t.Context())
		if is := slices.ContainsFunc(info.NotEnforced, func(g sandpit.Gap) bool {
			return g.What == "secret-hosts" && strings.Contains(g.Why, "other.example:443")
		}); err != nil || is != want {
			t.Errorf("the gaps are %+v, %v", info.NotEnforced, err)
		}
	}
	reaches(0, "with a secret alone", nil, "one.test:443")
	if err := sb.(sandpit.Egresser).SetEgress(t.Context(), sandpit.Egress{}); err != nil {
		t.Error(err)
	}
	reaches(0, "with no rules", nil, "one.test:443")
	set("two.test")
	reaches(0, "with another host", nil, "two.test:443")
	change := sandpit.EgressChange{Remove: sandpit.EgressRules{Allow: []string{"two.test:443"}}, Add: sandpit.EgressRules{Allow: []string{"own.test:1"}}}
	if err := sb.(sandpit.Egresser).ChangeEgress(t.Context(), change); err != nil {
		t.Error(err)
	}
	asked := []string{"own.test:1"}
	reaches(0, "with a rule", asked, "own.test:1", "two.test:443")
	gap(false)
	set("other.example")
	reaches(0, "with a host that the policy does not allow", asked, "own.test:1")
	gap(true)
	if err := sb.(sandpit.Egresser).SetEgress(t.Context(), sandpit.Egress{Allow: asked}); err != nil {
		t.Error(err)
	}
	reaches(0, "with the same rule", asked, "own.test:1")
	second := small("two")
	second.Secrets = spec.Secrets
	if _, err := c.Create(t.Context(), second); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "some.egress") {
		t.Errorf("a new sandbox: %v", err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	c = s.with(key)
	defer c.Close()
	var err error
	if sb, err = c.Get(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	gap(true)
	set("one.test")
	reaches(1, "after an adoption", asked, "own.test:1", "one.test:443")
	gap(false)
	if got, answer, _ := s.get("DELETE", "http://sandpit/v1/secrets/token", key, ""); got != 204 {
		t.Errorf("removing the secret: %d %s", got, answer)
	}
	reaches(1, "without the secret", asked, "own.test:1")
}

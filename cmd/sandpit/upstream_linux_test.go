package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/internal/upstream/upstreamtest"
)

// securePage serves a page over TLS, and returns its port.
func securePage(t *testing.T, a *authority) string {
	t.Helper()
	origin := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the page")) }))
	origin.Config.ErrorLog = log.New(io.Discard, "", 0)
	origin.TLS = &tls.Config{GetCertificate: a.certificate}
	origin.StartTLS()
	t.Cleanup(origin.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(origin.URL, "https://"), ":")
	return port
}

// TestUpstreamProxy runs curl in a network in which there is a proxy and nothing else. Its certificate and
// the origin's are signed by authorities of the ca-bundle, which curl trusts whether TLS is intercepted or not.
func TestUpstreamProxy(t *testing.T) {
	needSandboxes(t)
	testkit.NeedRoot(t, "to make a network namespace")
	testkit.NeedProgram(t, "curl")
	home, authority := dataDir(t), newAuthority(t)
	port := securePage(t, authority)
	space := newNetworkNamespace(t)
	for i, scheme := range []string{"http", "https", "socks5"} {
		t.Run(scheme, func(t *testing.T) {
			p := upstreamtest.StartOn(t, scheme, space.listen(t, 3128+i))
			bundle := filepath.Join(t.TempDir(), "ca.pem")
			writeFile(t, bundle, append(authority.pem, p.Roots...))
			t.Setenv("SANDPIT_UPSTREAM_PROXY", p.URL.String())
			t.Setenv("SANDPIT_CA_BUNDLE", bundle)
			url := "https://good.test:" + port + "/"
			get := []string{"--", "curl", "-sS", "-m", "20", url}
			for _, rule := range []string{"good.test:" + port, "GET:" + url + "*"} {
				out, err := space.run(home, binDir(t), append([]string{"run", "--allow", rule}, get...)...)
				if err != nil || out != "the page" {
					t.Errorf("%s: %v\n%s", rule, err, out)
				}
			}
			if asked := p.Asked(); !slices.Equal(asked, []string{"good.test", "good.test"}) {
				t.Errorf("the proxy was asked for %q", asked)
			}
			wrong := *p.URL
			wrong.User = nil
			t.Setenv("SANDPIT_UPSTREAM_PROXY", wrong.String())
			out, err := space.run(home, binDir(t), append([]string{"run", "--allow", "good.test:" + port}, get...)...)
			if err == nil || !strings.Contains(out, "sandpit: good.test could not be reached: the upstream proxy: ") {
				t.Errorf("without a password: %v\n%s", err, out)
			}
		})
	}
	for _, c := range []struct{ flag, value, want string }{
		{"--upstream-proxy", "http://u:hush@127.0.0.1:1", "SANDPIT_UPSTREAM_PROXY"},
		{"--upstream-proxy", "gopher://127.0.0.1:1", `"gopher" is not a kind of proxy`},
		{"--ca-bundle", "/etc/passwd", "/etc/passwd has no certificate"},
	} {
		out, err := space.run(home, binDir(t), "run", c.flag, c.value, "--allow", "good.test", "true")
		if err == nil || !strings.Contains(out, c.want) || strings.Contains(out, "hush") {
			t.Errorf("%s %s: %v\n%s", c.flag, c.value, err, out)
		}
	}
}

// TestUpstreamOfServer checks that a server's sandboxes use the proxy and the certificates of its settings,
// although its network process can read none of the files, and that the password is shown nowhere.
func TestUpstreamOfServer(t *testing.T) {
	needSandboxes(t)
	testkit.NeedRoot(t, "for a network process of another user")
	testkit.NeedProgram(t, "curl")
	testkit.NeedTUN(t)
	home, p, theirs, machines := shortHome(t), upstreamtest.Start(t, "https"), newAuthority(t), newAuthority(t)
	t.Cleanup(func() { endServer(t, home) })
	dir := t.TempDir() // which only root can enter
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	system, settings := filepath.Join(dir, "system.pem"), filepath.Join(dir, "server.yaml")
	writeFile(t, system, machines.pem)
	t.Setenv("SSL_CERT_FILE", system)
	writeFile(t, filepath.Join(dir, "ca.pem"), append(theirs.pem, p.Roots...))
	writeFile(t, settings, fmt.Appendf(nil, "upstream-proxy: %s\nno-proxy: [.corp.test]\nca-bundle: ca.pem\ndns: [127.0.0.1:1]\n", p.URL))
	s := startService(t, home, nil, "--config", settings)

	ports := map[string]*authority{securePage(t, theirs): theirs, securePage(t, machines): machines}
	var allow []string
	for port := range ports {
		allow = append(allow, "GET:https://good.test:"+port+"/*")
	}
	sb, err := s.client().Create(t.Context(), sandpit.Spec{Egress: sandpit.Egress{Allow: allow}})
	if err != nil {
		t.Fatal(err)
	}
	for port := range ports {
		res, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"curl", "-sS", "--max-time", "20", "https://good.test:" + port + "/"}})
		if err != nil || string(res.Stdout) != "the page" {
			t.Errorf("port %s: %v, %+v", port, err, res)
		}
	}
	process := networkProcessOf(serverPID(t, home))
	if process == 0 {
		t.Fatal("there is no network process")
	}
	for _, name := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(process), name))
		if err != nil || strings.Contains(string(text), upstreamtest.Password) || strings.Contains(string(text), "hush") {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if strings.Contains(s.log.String(), "hush") {
		t.Errorf("the log has the password:\n%s", s.log)
	}
	_, err = s.client().Create(t.Context(), sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"udp:good.test:53"}}})
	if err == nil || !strings.Contains(err.Error(), "the upstream proxy carries TCP only") {
		t.Errorf("err = %v", err)
	}
}

// Flags about the way out are those of a server that is started for them. One that runs already keeps its own,
// which is refused with what to do about that.
func TestUpstreamFlagsOfRunningServer(t *testing.T) {
	needSandboxes(t)
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	testkit.Need(t, "/dev/net/tun", err)
	tun.Close()
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	start := func(argv ...string) (string, error) {
		cmd := commandLine(t, append([]string{"sandpit"}, argv...)...)
		cmd.Env = append(cmd.Env, "SANDPIT_HOME="+home, "VALUE=hush-of-the-test")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := start("secret", "set", "crm", "--host", "crm.example.com", "--from", "env:VALUE"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pid := serverPID(t, home)
	run := []string{"run", "--no-proxy", "corp.test", "--secret", "crm", "--", "true"}
	if out, err := start(run...); err == nil || !strings.Contains(out, "--no-proxy has no effect on this user's server, which is running") || !strings.Contains(out, fmt.Sprintf("'kill %d'", pid)) {
		t.Errorf("%v: %s", err, out)
	}
	signalServer(t, pid, unix.SIGTERM)
	if out, err := start(run...); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

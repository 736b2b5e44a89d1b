package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Where TLS is intercepted, the programs of the host image trust the sandbox's authority without
// any setting: through the files of the system, and through variables.
func TestInterceptedClients(t *testing.T) {
	needSandboxes(t)
	testkit.NeedRoot(t, "to make a network namespace")
	home, authority := dataDir(t), newAuthority(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, ca, authority.pem)
	t.Setenv("SSL_CERT_FILE", ca) // which sandpit trusts in origins
	r := &registries{t: t, dir: t.TempDir()}
	r.makeGit()
	git, err := exec.Command("git", "--exec-path").Output()
	testkit.Need(t, "git", err)
	mux := http.NewServeMux()
	mux.HandleFunc("/ok/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "reached %s\n", r.URL.Path) })
	mux.HandleFunc("/not/", func(http.ResponseWriter, *http.Request) { t.Error("a request that no rule allows") })
	mux.Handle("/sandpit/", &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(git)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Join(r.dir, "git"), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	})
	net := newNetworkNamespace(t)
	listener := net.listen(t, 443)
	server := &http.Server{
		Handler: mux, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{GetCertificate: authority.certificate, NextProtos: []string{"h2", "http/1.1"}},
	}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.ServeTLS(listener, "", "") }()

	flags := []string{
		"run", "--allow", "GET:https://good.test/ok/*", "--allow", "*:https://good.test/sandpit/*", "--resolve", "good.test:127.0.0.1",
		"-w", "/tmp", "-e", "HOME=/tmp", "-m", "2g", "--", "sh", "-c",
	}
	for _, c := range []struct{ needs, script, want string }{
		{"curl", "curl -sS https://good.test/ok/curl", "reached /ok/curl"},
		{"curl", "env -i /usr/bin/curl -sS https://good.test/ok/system", "reached /ok/system"},
		{"curl", "curl -sS --http1.1 https://good.test/ok/1", "reached /ok/1"},
		{"python3", `python3 -c 'import urllib.request as r; print(r.urlopen("https://good.test/ok/python").read())'`, "reached /ok/python"},
		{"node", `node -e 'fetch("https://good.test/ok/node").then(r => r.text()).then(console.log)'`, "reached /ok/node"},
		{"git", "git clone -q https://good.test/sandpit/hello.git && cat hello/text", "hello from git"},
		{"curl", "curl -sS https://good.test/not/", "sandpit: no rule allows GET /not/"},
		{"curl", "curl -sS --path-as-is https://good.test/ok/../not/", "can be read in more than one way"},
		{"curl", "curl -sS -X POST https://good.test/ok/post", "sandpit: no rule allows POST /ok/post"},
	} {
		if _, err := exec.LookPath(c.needs); err != nil {
			t.Logf("%s is not here", c.needs)
			continue
		}
		if out, err := net.run(home, binDir(t), append(flags[:len(flags):len(flags)], c.script)...); err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v\n%s", c.script, err, out)
		}
	}
	if _, err := os.Stat("/etc/sandpit"); err == nil {
		t.Error("/etc/sandpit is on the host")
	}
}

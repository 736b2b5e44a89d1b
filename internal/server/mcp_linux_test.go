package server_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The inspector of the Model Context Protocol's authors uses tools over HTTP, and their conformance suite finds nothing wrong
// in what does not need tools of its own.
func TestMCPClients(t *testing.T) {
	s := newServed(t)
	at := testkit.Address(t)
	s.settings.Listen = append(s.settings.Listen, server.Listen{Address: server.Address{Network: "tcp", Host: at}, Service: server.DefaultService})

	// They send no key: a proxy adds it. All else reaches the gate as it is.
	var bearer string
	target := &url.URL{Scheme: "http", Host: at}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", bearer)
	}, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0)})
	defer proxy.Close()
	defer http.DefaultClient.CloseIdleConnections()
	s.settings.Origins = []string{proxy.URL} // the suite takes this for the default; pages of this machine have no right here without it
	s.start()
	bearer = "Bearer " + s.makeKey(v1.NewKey{Namespace: "models"}).Secret

	npm, node := testkit.NeedProgram(t, "npm"), testkit.NeedProgram(t, "node")
	g := newGenerator(t, "mcp", []string{"HOME=" + t.TempDir()})
	programs := filepath.Join(g.modules(npm), ".bin")
	inspect := func(args ...string) string {
		t.Helper()
		return g.run(node, append([]string{filepath.Join(programs, "mcp-inspector"), "--cli", proxy.URL + "/mcp", "--transport", "http"}, args...)...)
	}
	call := func(tool string, args ...string) string {
		t.Helper()
		all := []string{"--method", "tools/call", "--tool-name", tool}
		for _, arg := range args {
			all = append(all, "--tool-arg", arg)
		}
		return inspect(all...)
	}
	if got := inspect("--method", "tools/list"); !strings.Contains(got, `"run_command"`) {
		t.Errorf("the tools are %s", got)
	}
	call("create_sandbox", "name=box")
	if got := call("run_command", "sandbox=box", "command=expr 6 '*' 7"); !strings.Contains(got, `stdout ---\n42`) {
		t.Errorf("the command says %s", got)
	}
	call("write_file", "sandbox=box", "path=/tmp/a", "content=written")
	if got := inspect("--method", "resources/templates/list"); !strings.Contains(got, `"sandpit://{sandbox}/files{+path}"`) {
		t.Errorf("the templates are %s", got)
	}
	if got := inspect("--method", "resources/read", "--uri", "sandpit://box/files/tmp/a"); !strings.Contains(got, `"text": "written"`) {
		t.Errorf("the resource is %s", got)
	}
	call("remove_sandbox", "sandbox=box")

	for _, scenario := range []string{"server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection"} {
		if got := g.run(node, filepath.Join(programs, "conformance"), "server", "--url", proxy.URL+"/mcp", "--scenario", scenario); !strings.Contains(got, " 0 failed") {
			t.Errorf("%s says %s", scenario, got)
		}
	}
}

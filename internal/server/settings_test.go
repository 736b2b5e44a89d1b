package server_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/secret"
	"github.com/sandpit-dev/sandpit/internal/server"
)

func TestReadSettings(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "server.yaml")
	text := `# of a team
listen:
  - 0.0.0.0:8443
  - address: unix:///run/sandpit.sock
    service: sandpit
tls-cert: server.pem
tls-key: /etc/ssl/server.key
policy: policy.yaml
memory: 64g
cpus: 1.5
sandboxes: 500
connections: 100
connections-per-address: 10
idle-exit: 10m
logs: 20g
logs-per-namespace: 2g
audit-size: 40g
audit-time: 720h
hosts: [sandpit.example]
upstream-proxy: http://u:p@proxy.example:3128
no-proxy: [.corp.example, 10.0.0.0/8]
ca-bundle: ca.pem
dns: [10.0.0.53, "[2001:db8::53]:5353"]
services: [{name: own, hosts: [api.example.com], variables: [OWN_KEY], prefix: own_, header: X-Key, query: true}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := server.Settings{
		Listen: []server.Listen{
			{Address: server.Address{Network: "tcp", Host: "0.0.0.0:8443"}},
			{Address: server.Address{Network: "unix", Host: "/run/sandpit.sock"}, Service: "sandpit"},
		},
		Cert: filepath.Join(dir, "server.pem"), Key: "/etc/ssl/server.key", PolicyFile: filepath.Join(dir, "policy.yaml"),
		Memory: 64 << 30, CPUs: 1.5, Sandboxes: 500, Connections: 100, ConnectionsPerAddress: 10, IdleExit: 10 * time.Minute, Logs: 20 << 30, LogsPerNamespace: 2 << 30, AuditSize: 40 << 30, AuditTime: 720 * time.Hour, Hosts: []string{"sandpit.example"},
		Upstream: server.Upstream{Proxy: "http://u:p@proxy.example:3128", NoProxy: ".corp.example,10.0.0.0/8", CABundle: filepath.Join(dir, "ca.pem")},
		DNS:      []netip.AddrPort{netip.MustParseAddrPort("10.0.0.53:53"), netip.MustParseAddrPort("[2001:db8::53]:5353")},
		Services: []secret.Service{{Name: "own", Hosts: []string{"api.example.com"}, Variables: []string{"OWN_KEY"}, Prefix: "own_", Header: "X-Key", Query: true}},
	}
	got, err := server.ReadSettings(file, true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Error(diff)
	}
	missing := filepath.Join(dir, "none")
	if got, err := server.ReadSettings(missing, false); err != nil || cmp.Diff(server.Settings{}, got) != "" {
		t.Errorf("one that nobody asked for: %+v, %v", got, err)
	}
	if _, err := server.ReadSettings(missing, true); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("one that was asked for: %v", err)
	}
}

// Values that differ from the usual ones are read: defaults, addresses, ports.
func TestUnusualSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server.yaml")
	text := `idle-exit: never
domain: Sandboxes.example.
hosts: [sandpit, my_host.example, 192.0.2.1, "::1", "[2001:db8::1]:8443", "a.example:80"]
origins: ["https://a.example", "HTTPS://A.Example:443", "http://Localhost:03000", "http://[::1]:80", "http://[2001:DB8:0::1]:8080", "http://127.0.0.1:443", "chrome-extension://abc"]
listen: ["unix:/run/a.sock", "/run/b.sock"]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := server.ReadSettings(file, true)
	if err != nil || got.IdleExit >= 0 || len(got.Hosts) != 6 || got.Listen[0].Host != "/run/a.sock" || got.Listen[1].Host != "/run/b.sock" {
		t.Errorf("got %+v, %v", got, err)
	}
	want := []string{"https://a.example", "https://a.example", "http://localhost:3000", "http://[::1]", "http://[2001:db8::1]:8080", "http://127.0.0.1:443", "chrome-extension://abc"}
	if diff := cmp.Diff(want, got.Origins); diff != "" {
		t.Errorf("origins as browsers send them:\n%s", diff)
	}
}

// What is wrong is told with its line; nothing in the file is passed over.
func TestBrokenSettings(t *testing.T) {
	for text, want := range map[string]string{
		"sandboxes: 5\n8: x\n": `server.yaml:2: unknown field "8"`,
		"dns: [ns.example]\n":  `server.yaml:1: dns[0]: name server "ns.example": write ADDRESS`,
		"sandboxes: 1.5\n":     "server.yaml:1: sandboxes: it must be a whole number",
		"secret-key: tpm\n":    "server.yaml:1: secret-key: it must be file or keyring",
		"services: [{name: a, hosts: [a.test], oauth: {token: \"http://a.test/\", device: \"https://a.test/\"}}]\n": "is not a URL for logins",
		"services: [{name: a, hosts: [a.test], oauth: {token: \"https://a.test/\"}}]\n":                             "oauth lacks a URL",
		"domain:\n":                              "server.yaml:1: domain: it has no value",
		"listen: [~]\n":                          "server.yaml:1: listen[0]: it has no value",
		"listen: [{address: }]\n":                "server.yaml:1: listen[0].address: it has no value",
		"listen: ~\n":                            "server.yaml:1: listen: it must be a list",
		"sandboxes: ~\n":                         "server.yaml:1: sandboxes: it has no value",
		"hosts:\n":                               "server.yaml:1: hosts: it must be a list",
		"plain-http: yes\n":                      "server.yaml:1: plain-http: it must be true or false",
		"listen: []\nlisden: []\n":               `server.yaml:2: unknown field "lisden"`,
		"listen: 8443\n":                         "server.yaml:1: ",
		"sandboxes: 5\n---\nsandboxes: 6\n":      "server.yaml:3: it must be a single document",
		"---\n---\nsandboxes: 6\n":               "server.yaml:2: it must be a single document",
		"listen: [\n":                            "server.yaml:1: it is not valid YAML",
		"just words\n":                           "server.yaml:1: ",
		"listen: [here]\n":                       `server.yaml:1: listen[0]: "here" is not a listen address`,
		"listen:\n- address: :1\n  servise: a\n": `server.yaml:3: listen[0]: unknown field "servise"`,
		"listen: [{service: sandpit}]\n":         "server.yaml:1: listen[0]: it has no address",
		"listen: [[a]]\n":                        "server.yaml:1: ",
		"listen: [{address: \"127.0.0.1:1\", service: e2b}, {address: \"127.0.0.1:1\", service: microsandbox}]\n": "e2b and microsandbox can't be served on the same address, 127.0.0.1:1",
		"listen: [\"127.0.0.1:1\", {address: \"127.0.0.1:1\", service: e2b}]\n":                                   "sandpit and e2b can't be served on the same address",
		"listen: [\"127.0.0.1:1\", \"127.0.0.1:1\"]\n":                                                            "listening on 127.0.0.1:1 is asked for twice",
		"listen: [\"0.0.0.0:1\"]\n":                    "without TLS would send keys unencrypted",
		"tls-cert: server.pem\n":                       "is missing",
		"memory: -1\n":                                 "server.yaml:1: memory: ",
		"cpus: many\n":                                 "cpus: ",
		"sandboxes: -1\n":                              "server.yaml:1: sandboxes: it must be a whole number from 1 to 1000000",
		"sandboxes: 0\n":                               "server.yaml:1: sandboxes: it must be a whole number from 1 to 1000000",
		"domain: foo bar\n":                            `domain: "foo bar" is not a domain name`,
		"hosts: [a/b]\n":                               `hosts[0]: "a/b" is not a domain name`,
		"origins: [foo]\n":                             `origins[0]: "foo" is not an origin`,
		"origins: [\"https://a/\"]\n":                  `origins[0]: "https://a/" is not an origin`,
		"origins: [\"https://u@a\"]\n":                 `origins[0]: "https://u@a" is not an origin`,
		"origins: [\"https://a:99999\"]\n":             `origins[0]: "https://a:99999" is not an origin`,
		"origins: [\"https://b\u00fccher.example\"]\n": `origins[0]: "https://bücher.example" is not an origin`,
		"origins: [\"null\"]\n":                        `origins[0]: "null" is not an origin`,
		"listen: [\"unix://rel/x.sock\"]\n":            `"unix://rel/x.sock" is not a listen address`,
		"listen: [\"unix:x.sock\"]\n":                  `"unix:x.sock" is not a listen address`,
		"sandboxes: 5\nsandboxes: 6\n":                 "server.yaml:2: ",
		"Sandboxes: 5\n":                               `server.yaml:1: unknown field "Sandboxes"`,
		"connections: 15\n":                            "server.yaml:1: connections: it must be a whole number from 16 to 1000000",
		"connections: 0\n":                             "server.yaml:1: connections: it must be a whole number from 16 ",
		"connections-per-address: 0\n":                 "connections-per-address: it must be a whole number from 1 ",
		"connections-per-address: -1\n":                "connections-per-address: ",
		"logs: 1g\nlogs-per-namespace: 2g\n":           "logs-per-namespace: 2 GiB is more than logs, 1 GiB",
		"idle-exit: soon\n":                            "idle-exit: ",
		"audit-size: 1m\n":                             "audit-size: 1 MiB is too small",
		"logs: much\n":                                 "logs: ",
		"audit-time: never\n":                          "audit-time: ",
		strings.Repeat("# more\n", 1<<20/7+1):          "longer than 1 MiB",
		"a: &a [*a]\n":                                 "server.yaml:1: ",
		"listen: [\"unix:///\"]\nsandboxes: 1\n":       "is not a listen address",
	} {
		file := filepath.Join(t.TempDir(), "server.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := server.ReadSettings(file, true)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "\n") ||
			!errors.Is(err, sandpit.ErrInvalid) && !errors.Is(err, sandpit.ErrForbidden) {
			t.Errorf("%.40q: got %v, want it to contain %q", text, err, want)
		}
	}
	// A file without an end is not read to it.
	if _, err := server.ReadSettings("/dev/zero", true); err == nil || !strings.Contains(err.Error(), "longer than 1 MiB") {
		t.Errorf("/dev/zero: %v", err)
	}
}

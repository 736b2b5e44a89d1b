package server_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/dialect/e2b"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Older SDKs of E2B, and the newest ones, work over TLS with host names, which is all that some of them know:
// E2B_DOMAIN.
func TestE2BVersionsClients(t *testing.T) {
	testkit.NeedLong(t, "it installs and runs several versions of each SDK")
	testkit.NeedRoot(t, "a name server of its own")
	s := newServed(t)
	s.overTCP()
	s.settings.Domain = "sandboxes.example"
	authority := certifyNames(t, s.home, "*.e2b.sandboxes.example")
	s.change = func(o *server.Options) {
		o.Dialects, o.Network = []dialect.Dialect{e2b.New()}, network.InProcess{}
	}
	s.policy(baseImages + "policies:\n  default: {open-ports: true}\n") // names that are not below localhost
	s.start()
	create(t, s.unix(), "probe")
	key := s.makeKey(v1.NewKey{Namespace: "e2b", Format: "e2b"}).Secret
	host, port, err := net.SplitHostPort(s.tcp)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"E2B_DOMAIN=e2b.sandboxes.example:" + port, "E2B_API_KEY=" + key, "NODE_EXTRA_CA_CERTS=" + authority, "SSL_CERT_FILE=" + authority}
	around := nameServer(t, host)
	npm, node, python := testkit.NeedProgram(t, "npm"), testkit.NeedProgram(t, "node"), testkit.NeedProgram(t, "python3")

	for _, version := range recipeVersions(t, "e2b-javascript") {
		t.Run(version+"/JavaScript", func(t *testing.T) {
			g := newGenerator(t, "e2b-javascript", env)
			g.version(version)
			g.modules(npm)
			g.around = around
			compatible(t, g.printed(node, "scenario.mjs"), g.printed(node, "code.mjs"), g.printed(node, "templates.mjs"))
		})
	}
	for _, version := range recipeVersions(t, "e2b-python") {
		t.Run(version+"/Python", func(t *testing.T) {
			g := newGenerator(t, "e2b-python", env)
			g.version(version)
			bin := filepath.Join(g.venv(python), "python")
			g.around = around
			for _, form := range [][]string{nil, {"async"}} {
				run := func(program string) string { return g.printed(bin, append([]string{program}, form...)...) }
				compatible(t, run("scenario.py"), run("code.py"), run("templates.py"))
			}
		})
	}
}

// printed is run for a program that also writes a log, to its standard error.
func (g *generator) printed(program string, args ...string) string {
	g.t.Helper()
	var log bytes.Buffer
	cmd := g.command(program, args...)
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		g.t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, log.Bytes())
	}
	return string(out)
}

// certifyNames writes the certificate and key that a server of s.overTCP uses: for host names, by an authority whose certificate is in
// the file that it returns.
func certifyNames(t *testing.T, dir string, names ...string) (authority string) {
	t.Helper()
	template := func(serial int64) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: fmt.Sprint("test ", serial)}, BasicConstraintsValid: true,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		}
	}
	ca, leaf := template(1), template(2)
	ca.IsCA, ca.KeyUsage = true, x509.KeyUsageCertSign
	leaf.DNSNames, leaf.ExtKeyUsage = names, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"authority.pem": {Type: "CERTIFICATE", Bytes: caDER}, "cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "authority.pem")
}

// nameServer returns what runs a command where every name has one address, which is of this machine.
func nameServer(t *testing.T, address string) func(*exec.Cmd) {
	t.Helper()
	host, _, err := net.SplitHostPort(testkit.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	c, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", net.JoinHostPort(host, "53"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())}}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = c.WriteTo(answer, from) // the client asks again
			}
		}
	}()
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+host+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		cmd.Args = append([]string{"sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, conf, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
	}
}

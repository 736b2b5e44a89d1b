package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestKeyIsNeeded asks over TCP on loopback, with good keys, bad ones and none.
func TestKeyIsNeeded(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.overTCP()
	s.start()
	if len(s.said) != 1 || !regexp.MustCompile(`^sp_[a-z2-7]{8}_[a-z2-7]{40}$`).MatchString(s.key) {
		t.Fatalf("the first key was said as %q", s.said)
	}
	url := "https://" + s.tcp + "/v1/sandboxes"
	other := newServed(t)
	other.overTCP()
	other.start()
	for name, key := range map[string]string{"none": "", "of another server": other.key, "unknown": "sp_aaaaaaaa_" + strings.Repeat("a", 40), "half of one": s.key[:20], "changed": s.key[:len(s.key)-1] + "9"} {
		status, body, header := s.get("GET", url, key, "")
		if status != http.StatusUnauthorized || !strings.Contains(body, `"unauthenticated"`) || header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if status, body, _ := s.get("GET", url, s.key, ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	// Nothing of it is in the data directory.
	_ = filepath.WalkDir(s.home, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(data), s.key[12:]) {
			t.Errorf("%s has the key", path)
		}
		return nil
	})
	// What is not TLS gets no answer that could carry a key on.
	resp, err := s.http().Get("http://" + s.tcp + "/v1/sandboxes")
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP on the port of TLS: %s", resp.Status)
		}
	}

	// The first key is made and shown once.
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	first := s.key
	s.said = nil
	s.start()
	if len(s.said) != 0 {
		t.Errorf("a server that has a key said %q", s.said)
	}
	if status, body, _ := s.get("GET", url, first, ""); status != http.StatusOK {
		t.Errorf("after a restart: %d %s", status, body)
	}
}

// TestKeysEnd revokes keys, and lets them expire.
func TestKeysEnd(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.overTCP()
	s.start()
	url := "https://" + s.tcp + "/v1/sandboxes"
	k := s.makeKey(v1.NewKey{Name: "gone", Namespace: "a"})
	if status, body, _ := s.get("GET", url, k.Secret, ""); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if status, body, _ := s.get("DELETE", "http://sandpit/v1/keys/"+k.ID, "", ""); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, body)
	}
	if status, body, _ := s.get("GET", url, k.Secret, ""); status != http.StatusUnauthorized {
		t.Errorf("a revoked key: %d %s", status, body)
	}
	k = s.makeKey(v1.NewKey{Name: "short", Namespace: "a", Expires: 0.2})
	time.Sleep(time.Until(*k.ExpiresAt) + time.Millisecond)
	if status, body, _ := s.get("GET", url, k.Secret, ""); status != http.StatusUnauthorized {
		t.Errorf("an expired key: %d %s", status, body)
	}
	// Only an admin manages keys.
	k = s.makeKey(v1.NewKey{Name: "plain", Namespace: "a"})
	for _, ask := range [][3]string{
		{"GET", "/v1/keys"},
		{"POST", "/v1/keys", `{"name":"more","admin":true}`},
		{"DELETE", "/v1/keys/" + k.ID},
		{"GET", "/v1/keys/" + k.ID + "/policy"},
		{"GET", "/v1/audit"},
		{"GET", "/metrics"},
		{"DELETE", "/v1/images?image=debian"},
	} {
		if status, body, _ := s.get(ask[0], "https://"+s.tcp+ask[1], k.Secret, ask[2]); status != http.StatusForbidden || !strings.Contains(body, `"forbidden"`) {
			t.Errorf("%s %s: %d %s", ask[0], ask[1], status, body)
		}
	}
}

// TestWorkEndsWithItsKey ends keys under what goes on with them, which the client
// says.
func TestWorkEndsWithItsKey(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.overTCP()
	s.start()
	owner := s.tls(s.keyOf("team", ""))
	defer owner.Close()
	sb := create(t, owner, "")
	s.endUnderWork(sb, v1.NewKey{Name: "revoked", Namespace: "team"})
	for life := 1.0; !s.endUnderWork(sb, v1.NewKey{Name: "expired", Namespace: "team", Expires: life}); life *= 2 {
	}
	testkit.Until(t, "their commands are gone", func() bool {
		out, err := sandpit.Shell(t.Context(), sb, `cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -c "slee[p] 6000"`)
		return err == nil && strings.TrimSpace(string(out.Stdout)) == "0"
	})
}

// endUnderWork makes a key, begins what goes on with it, and revokes it unless it
// expires. It is false if it has expired before all had begun.
func (s *served) endUnderWork(sb sandpit.Sandbox, key v1.NewKey) bool {
	s.t.Helper()
	k := s.makeKey(key)
	c := s.tls(k.Secret)
	defer c.Close()
	same, err := c.Get(s.t.Context(), sb.ID())
	var all []sandpit.Process
	for _, cmd := range []sandpit.Command{{Argv: []string{"sleep", "6000"}}, {Argv: []string{"sleep", "6000"}, Stdin: true}} {
		var p sandpit.Process
		if err == nil {
			p, err = same.Start(s.t.Context(), cmd)
			all = append(all, p)
		}
	}
	if errors.Is(err, sandpit.ErrForbidden) && key.Expires > 0 && key.Expires < 60 {
		return false // the machine is slow
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if key.Expires == 0 {
		if status, body, _ := s.get("DELETE", "http://sandpit/v1/keys/"+k.ID, "", ""); status != http.StatusNoContent {
			s.t.Fatalf("%d %s", status, body)
		}
	}
	for _, p := range all {
		if res, err := p.Wait(s.t.Context()); !errors.Is(err, sandpit.ErrForbidden) {
			s.t.Errorf("%s: its command has ended: %+v, %v", key.Name, res, err)
		}
	}
	for _, err := range c.Events(s.t.Context(), sandpit.EventQuery{}) {
		if !errors.Is(err, sandpit.ErrForbidden) {
			s.t.Errorf("%s: its events: %v", key.Name, err)
		}
	}
	return true
}

// TestCertificateIsRenewed replaces the certificate of a server that runs.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.overTCP()
	s.start()
	presented := func() *x509.Certificate {
		conn, err := tls.Dial("tcp", s.tcp, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // whose it is is what is asked
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0]
	}
	first := presented()
	// Half of a pair changes nothing.
	key, err := os.ReadFile(filepath.Join(s.home, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	second := testkit.Certificate(t, s.home, s.tcp)
	s.roots.AddCert(second)
	next, err := os.ReadFile(filepath.Join(s.home, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.home, "key.pem"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	if !presented().Equal(first) {
		t.Error("a certificate whose key does not fit was taken")
	}
	if err := os.WriteFile(filepath.Join(s.home, "key.pem"), next, 0o600); err != nil {
		t.Fatal(err)
	}
	if !presented().Equal(second) {
		t.Error("the new certificate was not taken")
	}
	if status, body, _ := s.get("GET", "https://"+s.tcp+"/v1/sandboxes", s.key, ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}

// TestDocumentedCertificate makes the certificate of server.md. Some clients accept none of an authority from a server.
func TestDocumentedCertificate(t *testing.T) {
	testkit.NeedProgram(t, "openssl")
	page, err := os.ReadFile("../../docs/server.md")
	if err != nil {
		t.Fatal(err)
	}
	_, command, _ := strings.Cut(string(page), "\n    openssl req ")
	command, _, _ = strings.Cut(command, "\n    cat ")
	shell := exec.Command("/bin/sh", "-c", "openssl req "+command)
	shell.Dir = t.TempDir()
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(shell.Dir, "server.pem"), filepath.Join(shell.Dir, "server.key"))
	if err != nil {
		t.Fatal(err)
	}
	if !pair.Leaf.BasicConstraintsValid || pair.Leaf.IsCA {
		t.Error("it is the certificate of an authority")
	}
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)
	for _, name := range []string{"localhost", "127.0.0.1"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlainHTTPIsRefused listens beyond loopback without TLS.
func TestPlainHTTPIsRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:80", "example.org:80"} {
		s := newServed(t)
		a, err := server.ParseAddress(address)
		if err != nil {
			t.Fatal(err)
		}
		s.settings.Listen = []server.Listen{{Address: a}}
		err = server.Run(t.Context(), s.options())
		if !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), a.String()) || !strings.Contains(sandpit.Hint(err), "plain-http") {
			t.Errorf("%s: %v (%s)", address, err, sandpit.Hint(err))
		}
	}
	// Asked for by name it is done; a key is needed all the same.
	s := newServed(t)
	s.settings.Listen, s.settings.PlainHTTP = []server.Listen{{Address: server.Address{Network: "tcp", Host: "0.0.0.0:0"}}}, true
	s.start()
	said := regexp.MustCompile(`msg=listening address=\S*:(\d+)\n`)
	testkit.Until(t, "it says where it listens", func() bool { return said.MatchString(s.log.String()) }, s.log.String)
	url := "http://127.0.0.1:" + said.FindStringSubmatch(s.log.String())[1] + "/v1/sandboxes"
	if status, body, _ := s.get("GET", url, "", ""); status != http.StatusUnauthorized {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := s.get("GET", url, s.key, ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}

// TestTenantsDoNotMeet has one tenant look for another's everything. What there
// is and what there is not must be told in the same words.
func TestTenantsDoNotMeet(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.overTCP()
	s.start()
	alice, bob := s.keyOf("alice", ""), s.keyOf("bob", "")
	a := s.tls(alice)
	defer a.Close()
	b := s.tls(bob)
	defer b.Close()
	events, stopEvents := context.WithCancel(t.Context())
	defer stopEvents()
	var bobs []sandpit.Event
	following, followed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(followed)
		close(following)
		for e, err := range b.Events(events, sandpit.EventQuery{}) {
			if err != nil {
				return
			}
			bobs = append(bobs, e)
		}
	}()
	<-following
	sb := create(t, a, "secret-name")
	p, err := sb.Start(t.Context(), sandpit.Command{Script: "echo secret-output; sleep 1000", Background: true})
	if err != nil {
		t.Fatal(err)
	}
	// What bob can see of the place where alice's sandbox is, and of no place.
	id := regexp.MustCompile(`[a-z2-7]{16}`)
	plain := func(body string, names ...string) string {
		for _, n := range names {
			body = strings.ReplaceAll(body, n, "NAME")
		}
		return id.ReplaceAllString(body, "ID")
	}
	base := "https://" + s.tcp
	nobody := strings.Repeat("a", len(sb.ID())) // what looks like an id
	for _, ask := range [][3]string{
		{"GET", ""},
		{"DELETE", ""},
		{"POST", "/stop", `{}`},
		{"POST", "/start", ``},
		{"POST", "/pause", ``},
		{"POST", "/resume", ``},
		{"PUT", "/lifetime", `{"life":60}`},
		{"GET", "/metrics"},
		{"GET", "/metrics/history"},
		{"GET", "/logs"},
		{"GET", "/ports"},
		{"POST", "/exec", `{"argv":["id"]}`},
		{"POST", "/processes", `{"argv":["id"]}`},
		{"GET", "/processes"},
		{"GET", "/processes/" + p.ID()},
		{"GET", "/processes/" + p.ID() + "/wait"},
		{"DELETE", "/processes/" + p.ID()},
		{"POST", "/processes/" + p.ID() + "/signal", `{"signal":9}`},
		{"GET", "/files/content?path=/etc/passwd"},
		{"PUT", "/files/content?path=/tmp/x", `{}`},
		{"GET", "/files/list?path=/"},
		{"GET", "/files/stat?path=/"},
		{"GET", "/files/archive?path=/tmp"},
		{"GET", "/ports/80/tcp"},
	} {
		var answers []string
		for _, name := range []string{sb.ID(), sb.Name(), nobody, "no-such-name"} {
			status, body, header := s.get(ask[0], base+"/v1/sandboxes/"+name+ask[1], bob, ask[2])
			header.Del("Date")
			header.Del("X-Request-Id")
			header.Del("Content-Length") // of names that are not equally long
			answers = append(answers, http.StatusText(status)+plain(body, name)+plain(strings.Join(headers(header), "\n"), name))
		}
		for _, got := range answers[1:] {
			if got != answers[0] {
				t.Errorf("%s %s: what there is, is answered with\n%s\nand what is not, with\n%s", ask[0], ask[1], answers[0], got)
			}
		}
		if strings.HasPrefix(answers[0], "OK") || strings.HasPrefix(answers[0], "Internal") {
			t.Errorf("%s %s: %s", ask[0], ask[1], answers[0])
		}
	}
	for _, path := range []string{"/v1/sandboxes", "/v1/images", "/v1/webhooks", "/v1/policy", "/v1/capabilities"} {
		if status, body, _ := s.get("GET", base+path, bob, ""); status != http.StatusOK || strings.Contains(body, sb.ID()) || strings.Contains(body, "secret-") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	// A port of a sandbox, by header and by host name.
	if status, body, _ := s.get("GET", base+"/", bob, ""); status != http.StatusNotFound {
		t.Errorf("%d %s", status, body)
	}
	// The name is free to bob, and his own.
	mine := create(t, b, sb.Name())
	if mine.ID() == sb.ID() {
		t.Error("one sandbox of two tenants")
	}
	if err := mine.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := sandpit.Exec(t.Context(), sb, "true"); err != nil {
		t.Errorf("what is alice's: %v", err)
	}
	testkit.Until(t, "bob has seen what he did", func() bool {
		_, body, _ := s.get("GET", base+"/v1/sandboxes", bob, "")
		return !strings.Contains(body, mine.ID())
	})
	stopEvents()
	<-followed
	for _, e := range bobs {
		if e.Sandbox == sb.ID() {
			t.Errorf("bob was told of %+v", e)
		}
	}
	// Nor is he told by the audit, or by figures.
	for _, path := range []string{"/v1/audit", "/metrics"} {
		if status, body, _ := s.get("GET", base+path, bob, ""); status != http.StatusForbidden {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func headers(h http.Header) []string {
	var all []string
	for name := range h {
		all = append(all, name+": "+h.Get(name))
	}
	// In an order of their own.
	for i := range all {
		for j := i; j > 0 && all[j] < all[j-1]; j-- {
			all[j], all[j-1] = all[j-1], all[j]
		}
	}
	return all
}

// TestSocketOfAnotherUser reaches for the unix socket as somebody else.
func TestSocketOfAnotherUser(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t, "to become another user")
	s := newServed(t)
	s.start()
	path := server.SocketIn(s.home).Host
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v", info.Mode())
	}
	out, err := asUser(t, 65534, path)
	if err == nil || !strings.Contains(out, "ermission denied") {
		t.Errorf("a user who is not the server's: %v %s", err, out)
	}
	// Also where its file lets him in, as a service manager's may.
	for _, name := range []string{s.home, path} {
		if err := os.Chmod(name, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	out, err = asUser(t, 65534, path)
	if err != nil || !strings.Contains(out, " 401 ") || strings.Contains(out, "sandboxes") {
		t.Errorf("a user who is not the server's: %v %s", err, out)
	}
	if status, body, _ := s.get("GET", "http://sandpit/v1/sandboxes", "", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}

// asUser asks at a unix socket with the credentials of another user, which are
// those of the thread that connects.
func asUser(t *testing.T, uid int, path string) (answer string, err error) {
	t.Helper()
	type result struct {
		text string
		err  error
	}
	done := make(chan result)
	go func() {
		// The thread ends with the goroutine: nobody else gets to be that user.
		runtime.LockOSThread()
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			done <- result{err: err}
			return
		}
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
			done <- result{err: e}
			return
		}
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
		file := os.NewFile(uintptr(fd), "socket")
		defer file.Close()
		if err != nil {
			done <- result{text: err.Error(), err: err}
			return
		}
		if _, err := io.WriteString(file, "GET /v1/sandboxes HTTP/1.1\r\nHost: sandpit\r\nConnection: close\r\n\r\n"); err != nil {
			done <- result{err: err}
			return
		}
		text, err := io.ReadAll(file)
		done <- result{string(text), err}
	}()
	r := <-done
	return r.text, r.err
}

package main

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
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
	space := newNetworkNamespace(t)
	listener := space.listen(t, 443)
	server := &http.Server{
		Handler: mux, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{GetCertificate: authority.certificate, NextProtos: []string{"h2", "http/1.1"}},
	}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.ServeTLS(listener, "", "") }()

	get := `cat >/tmp/Get.java <<'end'
class Get {
	public static void main(String[] a) throws Exception {
		System.out.print(new String(new java.net.URL(a[0]).openStream().readAllBytes()));
	}
}
end
`
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
		{"openssl", "env -i /usr/bin/openssl s_client -connect good.test:443 -verify_return_error -brief -CApath /etc/ssl/certs </dev/null 2>&1", "Verification: OK"},
		{"wget", "env -i /usr/bin/wget -qO- https://good.test/ok/wget", "reached /ok/wget"},
		{"java", get + "java -Xmx512m /tmp/Get.java https://good.test/ok/java", "reached /ok/java"},
		{"java", get + "env -i /usr/bin/java -Xmx512m /tmp/Get.java https://good.test/ok/java", "reached /ok/java"},
		{"curl", "curl -sS https://good.test/not/", "sandpit: no rule allows GET /not/"},
		{"curl", "curl -sS --path-as-is https://good.test/ok/../not/", "can be read in more than one way"},
		{"curl", "curl -sS -X POST https://good.test/ok/post", "sandpit: no rule allows POST /ok/post"},
	} {
		t.Run(c.needs, func(t *testing.T) {
			testkit.NeedProgram(t, c.needs)
			if out, err := space.run(home, binDir(t), append(flags[:len(flags):len(flags)], c.script)...); err != nil || !strings.Contains(out, c.want) {
				t.Errorf("%s: %v\n%s", c.script, err, out)
			}
		})
	}
	t.Run("Debian", func(t *testing.T) { // a real image, in which OpenSSL looks into the directory
		testkit.NeedLong(t, "it unpacks an image")
		if out, err := space.run(home, binDir(t), "images", "import", imagetest.Debian(t), "debian:test"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		const script = `env -i /usr/bin/python3 -c 'import urllib.request as r; print(r.urlopen("https://good.test/ok/debian").read())'`
		args := append(slices.Concat([]string{"run", "--image", "debian:test"}, flags[1:]), script)
		if out, err := space.run(home, binDir(t), args...); err != nil || !strings.Contains(out, "reached /ok/debian") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	if _, err := os.Stat("/etc/sandpit"); err == nil {
		t.Error("/etc/sandpit is on the host")
	}
}

// In images laid out as Fedora's and Alpine's, OpenSSL trusts the sandbox's authority and the
// image's roots, wherever these distributions have it look, without a variable. The images are
// made of this machine's openssl and links as those of the distributions.
func TestInterceptedLayouts(t *testing.T) {
	needSandboxes(t)
	testkit.NeedRoot(t, "to make a network namespace")
	testkit.NeedProgram(t, "openssl")
	home, origins, theirs := dataDir(t), newAuthority(t), newAuthority(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, ca, origins.pem)
	t.Setenv("SSL_CERT_FILE", ca) // which sandpit trusts in origins
	space := newNetworkNamespace(t)
	for port, a := range map[int]*authority{443: origins, 8443: theirs} { // the second is not intercepted
		listener := space.listen(t, port)
		server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), TLSConfig: &tls.Config{GetCertificate: a.certificate}}
		t.Cleanup(func() { server.Close() })
		go func() { _ = server.ServeTLS(listener, "", "") }()
	}
	for name, c := range map[string]struct {
		bundle string
		links  map[string]string
		dirs   []string // looked up by hash
		look   []string
	}{
		"fedora": {
			bundle: "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
			links:  map[string]string{"etc/ssl/certs": "../pki/tls/certs", "etc/pki/tls/cert.pem": "../ca-trust/extracted/pem/tls-ca-bundle.pem"},
			dirs:   []string{"etc/pki/tls/certs", "etc/pki/ca-trust/extracted/pem/directory-hash"},
			look: []string{
				"-CApath /etc/pki/tls/certs", "-CApath /etc/ssl/certs", "-CApath /etc/pki/ca-trust/extracted/pem/directory-hash",
				"-CAfile /etc/pki/tls/cert.pem",
			},
		},
		"alpine": {
			bundle: "etc/ssl/certs/ca-certificates.crt",
			links:  map[string]string{"etc/ssl/cert.pem": "certs/ca-certificates.crt"},
			dirs:   []string{"etc/ssl/certs"},
			look:   []string{"-CApath /etc/ssl/certs", "-CAfile /etc/ssl/cert.pem"},
		},
	} {
		dir := filepath.Join(t.TempDir(), name)
		testkit.CopyProgram(t, dir, "openssl")
		for _, d := range append(c.dirs, filepath.Dir(c.bundle), "etc/ssl", "etc/pki/tls") {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		writeFile(t, filepath.Join(dir, c.bundle), theirs.pem)
		hash, err := exec.Command("openssl", "x509", "-noout", "-subject_hash", "-in", filepath.Join(dir, c.bundle)).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range c.dirs {
			writeFile(t, filepath.Join(dir, d, strings.TrimSpace(string(hash))+".0"), theirs.pem)
		}
		for link, to := range c.links {
			if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
				t.Fatal(err)
			}
		}
		for _, look := range c.look {
			for _, port := range []string{"443", "8443"} {
				args := []string{
					"run", "--image", "dir:" + dir, "--allow", "GET:https://good.test/*", "--allow", "other.test:8443", "--resolve", "good.test:127.0.0.1",
					"--resolve", "other.test:127.0.0.1", "--", "/usr/bin/openssl", "s_client", "-brief", "-verify_return_error",
					"-no-CAstore", "-connect",
				}
				host, elsewhere := "good.test", "-no-CApath"
				if port == "8443" {
					host = "other.test"
				}
				if strings.HasPrefix(look, "-CApath") {
					elsewhere = "-no-CAfile"
				}
				args = append(append(args, host+":"+port, elsewhere), strings.Fields(look)...)
				if out, err := space.run(home, binDir(t), args...); err != nil || !strings.Contains(out, "Verification: OK") {
					t.Errorf("%s, %s, port %s: %v\n%s", name, look, port, err, out)
				}
			}
		}
	}
}

// The value of a secret that is bound to hosts reaches them, also after it was replaced, and is
// nowhere else: not in the sandbox's memory (its guest's too), files and environment, not in what
// commands and logs say, and not in the data directory in clear. (The catalogue's G2 and G5.)
func TestBoundSecretsStayOutside(t *testing.T) {
	needSandboxes(t)
	testkit.NeedRoot(t, "to read the memory of processes")
	testkit.NeedProgram(t, "curl")
	home, authority := shortHome(t), newAuthority(t)
	dir := readableDir(t)
	ca := filepath.Join(dir, "ca.pem")
	writeFile(t, ca, authority.pem)
	t.Setenv("SSL_CERT_FILE", ca) // which the server trusts in origins
	var key, password atomic.Value
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // which echoes everything
			_, basic, _ := r.BasicAuth()
			key.Store(r.Header.Get("X-Key"))
			password.Store(basic)
			_ = r.Header.Write(w)
		}),
		TLSConfig: &tls.Config{GetCertificate: authority.certificate, NextProtos: []string{"h2", "http/1.1"}}, ErrorLog: log.New(io.Discard, "", 0),
	}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.ServeTLS(listener, "", "") }()
	origin := fmt.Sprintf("good.test:%d", listener.Addr().(*net.TCPAddr).Port)

	startServer(t, home)
	t.Cleanup(func() { endServer(t, home) })
	var said strings.Builder // by all commands
	sandpit := func(stdin string, argv ...string) string {
		t.Helper()
		cmd := commandLineAt(t, home, argv...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
		said.Write(out)
		return string(out)
	}
	// Random, so that no earlier run has left them in memory; the program has them in no constant.
	values := []string{"value-" + rand.Text(), "value-" + rand.Text(), "value-" + rand.Text(), "value-" + rand.Text()} // the latter two are the sandbox's own
	sandpit(values[0], "secret", "set", "key", "--host", origin)
	source := filepath.Join(t.TempDir(), "value")
	writeFile(t, source, []byte(values[2]))
	sandpit("", "create", "--secret", "key=THE_KEY", "--secret", "own=OWN_KEY@"+origin, "--secret-from", "own=cmd:cat "+source, "--resolve", "good.test:127.0.0.1", "box")
	ask := func(variable, value string) {
		t.Helper()
		out := sandpit("", "exec", "box", "--", "sh", "-c", `k=$`+variable+`; curl -sS -m 20 -H "X-Key: $k" -u "user:$k" https://`+origin+"/ | tee /tmp/answer")
		if key.Load() != value || password.Load() != value || !strings.Contains(out, "X-Key") {
			t.Fatalf("the origin got %v and %v\n%s", key.Load(), password.Load(), out)
		}
	}
	placeholder := strings.TrimSpace(sandpit("", "exec", "box", "--", "printenv", "THE_KEY"))
	ask("THE_KEY", values[0])
	sandpit(values[1], "secret", "rotate", "key")
	ask("THE_KEY", values[1])
	ask("OWN_KEY", values[2])
	sandpit(values[3], "secret", "rotate", "own", "--sandbox", "box")
	signalServer(t, serverPID(t, home), unix.SIGKILL)
	startServer(t, home) // which has it from the record
	ask("OWN_KEY", values[3])
	ask("THE_KEY", values[1])
	sandpit("", "exec", "box", "--", "sh", "-c", `(sleep 86623; echo) >/dev/null 2>&1 &`)
	for _, argv := range [][]string{{"inspect", "box"}, {"ps", "--json"}, {"secret", "ls"}, {"secret", "ls", "--sandbox", "box"}, {"logs", "box"}, {"audit", "grep"}} {
		sandpit("", argv...)
	}
	var hidden []string
	for _, v := range values {
		hidden = append(hidden, v, base64.StdEncoding.EncodeToString([]byte("user:" + v))[8:])
	}
	has := func(where string, text []byte) {
		t.Helper()
		for _, v := range hidden {
			if bytes.Contains(text, []byte(v)) {
				t.Errorf("%s has a value", where)
			}
		}
	}
	has("a command", []byte(said.String()))

	var pids []string
	testkit.Until(t, "the sandbox's processes are found", func() bool {
		pids = sandboxOf(t, "86623")
		return len(pids) >= 3 // also its guest and a helper
	}, func() string { return fmt.Sprint(pids) })
	holders := 0 // what would be found if it was there
	for _, pid := range pids {
		for _, name := range []string{"environ", "cmdline"} {
			text, err := os.ReadFile(filepath.Join("/proc", pid, name))
			if err != nil {
				t.Fatal(err)
			}
			has(name+" of a process inside", text)
		}
		text := memory(t, pid)
		has("the memory of a process inside", text)
		if bytes.Contains(text, []byte(placeholder)) {
			holders++
		}
	}
	if holders < 2 {
		t.Errorf("%d processes have the placeholder", holders)
	}
	files := func(what, root string) (n int) {
		_ = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				text, _ := os.ReadFile(name)
				has(what+" "+name, text)
				n++
			}
			return nil
		})
		return n
	}
	for _, dir := range []string{"/tmp", "/etc", "/home", "/run", "/var", "/dev/shm"} {
		if files("inside", "/proc/"+pids[0]+"/root"+dir) == 0 && dir == "/tmp" {
			t.Error("no file was found inside")
		}
	}
	if files("the data directory's", home) == 0 {
		t.Error("no file was found in the data directory")
	}
}

// sandboxOf returns the processes of the sandbox in which a process has an argument.
func sandboxOf(t *testing.T, argument string) (pids []string) {
	t.Helper()
	var space string
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		if args, _ := os.ReadFile(p + "/cmdline"); strings.HasPrefix(string(args), "sleep\x00"+argument+"\x00") {
			space, _ = os.Readlink(p + "/ns/pid")
		}
	}
	for _, p := range all {
		if is, err := os.Readlink(p + "/ns/pid"); err == nil && space != "" && is == space {
			pids = append(pids, filepath.Base(p))
		}
	}
	return pids
}

// memory returns what a process can read of its memory.
func memory(t *testing.T, pid string) (all []byte) {
	t.Helper()
	maps, err := os.ReadFile(filepath.Join("/proc", pid, "maps"))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(filepath.Join("/proc", pid, "mem"))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || mode[0] != 'r' || to-from > 256<<20 {
			continue
		}
		part := make([]byte, to-from)
		n, _ := mem.ReadAt(part, from)
		all = append(all, part[:n]...)
	}
	if len(all) == 0 {
		t.Errorf("the memory of process %s is empty", pid)
	}
	return all
}

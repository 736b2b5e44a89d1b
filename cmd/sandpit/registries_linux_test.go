package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The package managers that people use fetch from registries with --egress registries and
// nothing else. The registries are this test's own, in a network namespace without a way out.
func TestRegistries(t *testing.T) {
	needSandboxes(t)
	testkit.NeedRoot(t, "to make a network namespace")
	home := dataDir(t)
	files := t.TempDir()
	if err := os.Chmod(files, 0o755); err != nil {
		t.Fatal(err)
	}
	authority := newAuthority(t)
	ca := filepath.Join(files, "ca.pem")
	writeFile(t, ca, authority.pem)
	net := newNetworkNamespace(t)
	names := []string{
		"pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "proxy.golang.org", "github.com", "deb.debian.org",
		"index.crates.io", "static.crates.io",
	}
	r := &registries{t: t, dir: t.TempDir()}
	r.wheel, r.npm, r.module, r.crate = r.makeWheel(), r.makeNPM(), r.makeModule(), r.makeCrate()
	r.makeGit()
	r.makeDebian()
	for port, config := range map[int]*tls.Config{443: {GetCertificate: authority.certificate, NextProtos: []string{"h2", "http/1.1"}}, 80: nil} {
		server := &http.Server{Handler: r, TLSConfig: config, ErrorLog: log.New(io.Discard, "", 0)}
		listener := net.listen(t, port)
		t.Cleanup(func() { server.Close() })
		if config != nil {
			go func() { _ = server.ServeTLS(listener, "", "") }()
		} else {
			go func() { _ = server.Serve(listener) }()
		}
	}
	goRoot, _ := exec.Command("go", "env", "GOROOT").Output()
	rust, _ := exec.Command("rustc", "--print", "sysroot").Output()

	common := []string{"run", "--egress", "registries", "--mount", files + ":/ca:ro", "-w", "/tmp", "-e", "HOME=/tmp"}
	for _, name := range names {
		common = append(common, "--resolve", name+":127.0.0.1")
	}
	for _, c := range []struct {
		name, script, want string
		flags              []string
		needs              string
	}{
		{
			"pip", "python3 -m venv v && v/bin/pip install -q --disable-pip-version-check hello-sandpit && v/bin/python -c 'import hello_sandpit; print(hello_sandpit.text)'",
			"hello from pip",
			[]string{"-e", "PIP_CERT=/ca/ca.pem"},
			"python3",
		},
		{
			"npm", "npm install --silent --no-audit --no-fund hello-sandpit && node -e 'console.log(require(\"hello-sandpit\"))'",
			"hello from npm",
			[]string{"-e", "NODE_EXTRA_CA_CERTS=/ca/ca.pem", "-m", "2g"},
			"npm",
		},
		{"git", "git clone -q https://github.com/sandpit/hello.git && cat hello/text", "hello from git", []string{"-e", "GIT_SSL_CAINFO=/ca/ca.pem"}, "git"},
		{"apt", "echo 'deb [trusted=yes] http://deb.debian.org/debian ./' >list && mkdir -p s/lists/partial c/archives/partial && " +
			"a='apt-get -qq -o Dir::State=/tmp/s -o Dir::State::status=/dev/null -o Dir::Cache=/tmp/c -o Dir::Etc::sourcelist=/tmp/list -o Dir::Etc::sourceparts=/dev/null' && " +
			"$a update && $a download hello-sandpit && dpkg-deb -x hello-sandpit*.deb x && cat x/usr/share/hello-sandpit", "hello from apt", nil, "apt-get"},
		{
			"go", "go mod download -json example.com/hello@v1.0.0 >out && cat /tmp/go/pkg/mod/example.com/hello@v1.0.0/text", "hello from go",
			[]string{"-e", "SSL_CERT_FILE=/ca/ca.pem", "-e", "GONOSUMDB=example.com", "-e", "GOFLAGS=-modcacherw", "-e", "PATH=" + filepath.Join(strings.TrimSpace(string(goRoot)), "bin") + ":/usr/bin:/bin"},
			"go",
		},
		{
			"cargo", "mkdir src && touch src/lib.rs && printf '[package]\\nname=\"p\"\\nversion=\"1.0.0\"\\n[dependencies]\\nhello-sandpit=\"1\"\\n' >Cargo.toml && " +
				"cargo fetch -q && cat .cargo/registry/src/*/hello-sandpit-1.0.0/text", "hello from cargo",
			[]string{"-e", "CARGO_HTTP_CAINFO=/ca/ca.pem", "--mount", strings.TrimSpace(string(rust)) + ":/rust:ro", "-e", "PATH=/rust/bin:/usr/bin:/bin"},
			"rustc",
		},
	} {
		testkit.NeedProgram(t, c.needs)
		out, err := net.run(home, binDir(t), append(append(common, c.flags...), "--", "sh", "-c", c.script)...)
		if err != nil || !strings.Contains(out, c.want) || strings.Contains(out, "denied") {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
	}
	// Nothing else is reached, although the address is the same.
	out, err := net.run(home, binDir(t), append(common, "--resolve", "example.com:127.0.0.1", "--", "curl", "-sS", "-m", "10", "http://example.com/")...)
	if err == nil || !strings.Contains(out, "--allow example.com") {
		t.Errorf("another name: %v\n%s", err, out)
	}
}

// networkNamespace is a network of its own, with a loopback only.
type networkNamespace struct{ do chan func() }

func newNetworkNamespace(t *testing.T) *networkNamespace {
	t.Helper()
	n := &networkNamespace{do: make(chan func())}
	ready := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = exec.Command("ip", "link", "set", "lo", "up").Run()
		}
		ready <- err
		for f := range n.do {
			f()
		}
	}()
	testkit.Need(t, "a network namespace", <-ready)
	t.Cleanup(func() { close(n.do) })
	return n
}

// listen listens at a port of the namespace's loopback.
func (n *networkNamespace) listen(t *testing.T, port int) (l net.Listener) {
	t.Helper()
	var err error
	done := make(chan struct{})
	n.do <- func() {
		defer close(done)
		l, err = net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	}
	<-done
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// run runs sandpit in the namespace.
func (n *networkNamespace) run(home, bin string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(bin, "sandpit"), args...)
	cmd.Env = append(os.Environ(), "SANDPIT_HOME="+home)
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	started := make(chan error)
	n.do <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// TestOwnAddressesByRoute tries an address that is no interface's, and the machine's own by a route.
func TestOwnAddressesByRoute(t *testing.T) {
	needSandboxes(t)
	testkit.NeedRoot(t, "to make a network namespace")
	testkit.NeedProgram(t, "curl")
	home, space := dataDir(t), newNetworkNamespace(t)
	listening := make(chan error)
	space.do <- func() {
		out, err := exec.Command("sh", "-c", "ip route add local 203.1.113.0/24 dev lo; ip route add local 2600:113::/64 dev lo").CombinedOutput()
		if err == nil {
			var l net.Listener
			if l, err = net.Listen("tcp", ":8080"); err == nil {
				s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") })}
				t.Cleanup(func() { s.Close() })
				go func() { _ = s.Serve(l) }()
			}
		}
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		listening <- err
	}
	if err := <-listening; err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"203.1.113.9", "[2600:113::9]"} {
		run := func(args ...string) string {
			out, _ := space.run(home, binDir(t), append(append([]string{"run"}, args...), "--", "curl", "-sS", "-m", "10", "http://"+address+":8080/")...)
			return out
		}
		if out := run("--egress", "public"); strings.Contains(out, "reached") || !strings.Contains(out, "this machine's own") {
			t.Errorf("%s by a preset: %s", address, out)
		}
		if out := run("--allow", address+":8080"); !strings.Contains(out, "reached") {
			t.Errorf("%s by a rule that names it: %s", address, out)
		}
	}
}

// authority makes certificates for any name.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "registries of a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{hello.ServerName}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, &a.key.PublicKey, a.key)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}, err
}

// registries serves one package of each kind.
type registries struct {
	t                         *testing.T
	dir                       string
	wheel, npm, module, crate []byte
}

func (r *registries) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	data := func(b []byte) { _, _ = w.Write(b) }
	switch where := req.Host + req.URL.Path; {
	case where == "pypi.org/simple/hello-sandpit/":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<a href=\"https://files.pythonhosted.org/p/hello_sandpit-1.0-py3-none-any.whl#sha256=%s\">hello_sandpit-1.0-py3-none-any.whl</a>", hexSum(r.wheel))
	case where == "files.pythonhosted.org/p/hello_sandpit-1.0-py3-none-any.whl":
		data(r.wheel)
	case where == "registry.npmjs.org/hello-sandpit":
		sum, sum1 := sha512.Sum512(r.npm), sha1.Sum(r.npm)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"name": "hello-sandpit", "dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": map[string]any{"name": "hello-sandpit", "version": "1.0.0", "dist": map[string]string{
				"tarball": "https://registry.npmjs.org/hello-sandpit/-/hello-sandpit-1.0.0.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]), "shasum": hex.EncodeToString(sum1[:]),
			}}},
		})
	case where == "registry.npmjs.org/hello-sandpit/-/hello-sandpit-1.0.0.tgz":
		data(r.npm)
	case where == "proxy.golang.org/example.com/hello/@v/v1.0.0.info":
		data([]byte(`{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}`))
	case where == "proxy.golang.org/example.com/hello/@v/v1.0.0.mod":
		data([]byte("module example.com/hello\n"))
	case where == "proxy.golang.org/example.com/hello/@v/v1.0.0.zip":
		data(r.module)
	case where == "index.crates.io/config.json":
		data([]byte(`{"dl":"https://static.crates.io/crates"}`))
	case where == "index.crates.io/he/ll/hello-sandpit":
		fmt.Fprintf(w, `{"name":"hello-sandpit","vers":"1.0.0","deps":[],"cksum":"%s","features":{},"yanked":false}`+"\n", hexSum(r.crate))
	case where == "static.crates.io/crates/hello-sandpit/1.0.0/download":
		data(r.crate)
	case strings.HasPrefix(where, "github.com/sandpit/"):
		git, err := exec.Command("git", "--exec-path").Output()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		(&cgi.Handler{
			Path: filepath.Join(strings.TrimSpace(string(git)), "git-http-backend"),
			Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Join(r.dir, "git"), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
		}).ServeHTTP(w, req)
	case strings.HasPrefix(where, "deb.debian.org/debian/"):
		http.StripPrefix("/debian", http.FileServer(http.Dir(filepath.Join(r.dir, "debian")))).ServeHTTP(w, req)
	default:
		http.NotFound(w, req)
	}
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (r *registries) zip(files map[string]string) []byte {
	buf := new(bytes.Buffer)
	z := zip.NewWriter(buf)
	for name, text := range files {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		r.t.Fatal(err)
	}
	return buf.Bytes()
}

func (r *registries) tarball(files map[string]string) []byte {
	buf := new(bytes.Buffer)
	gz := gzip.NewWriter(buf)
	w := tar.NewWriter(gz)
	for name, text := range files {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		r.t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		r.t.Fatal(err)
	}
	return buf.Bytes()
}

func (r *registries) makeWheel() []byte {
	const info = "hello_sandpit-1.0.dist-info/"
	return r.zip(map[string]string{
		"hello_sandpit.py":     "text = 'hello from pip'\n",
		info + "METADATA":      "Metadata-Version: 2.1\nName: hello-sandpit\nVersion: 1.0\n",
		info + "WHEEL":         "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":        "hello_sandpit.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n",
		info + "top_level.txt": "hello_sandpit\n",
	})
}

func (r *registries) makeNPM() []byte {
	return r.tarball(map[string]string{
		"package/package.json": `{"name":"hello-sandpit","version":"1.0.0","main":"index.js"}`,
		"package/index.js":     `module.exports = "hello from npm"`,
	})
}

func (r *registries) makeModule() []byte {
	return r.zip(map[string]string{"example.com/hello@v1.0.0/go.mod": "module example.com/hello\n", "example.com/hello@v1.0.0/text": "hello from go\n"})
}

func (r *registries) makeCrate() []byte {
	const dir = "hello-sandpit-1.0.0/"
	return r.tarball(map[string]string{
		dir + "Cargo.toml": "[package]\nname = \"hello-sandpit\"\nversion = \"1.0.0\"\n", dir + "src/lib.rs": "", dir + "text": "hello from cargo\n",
	})
}

func (r *registries) command(dir, name string, args ...string) {
	r.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

func (r *registries) makeGit() {
	work, bare := filepath.Join(r.dir, "work"), filepath.Join(r.dir, "git/sandpit/hello.git")
	writeFile(r.t, filepath.Join(work, "text"), []byte("hello from git\n"))
	r.command(work, "git", "init", "-q")
	r.command(work, "git", "add", ".")
	r.command(work, "git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "x")
	r.command(r.dir, "git", "clone", "-q", "--bare", work, bare)
}

func (r *registries) makeDebian() {
	pkg, repo := filepath.Join(r.dir, "pkg"), filepath.Join(r.dir, "debian")
	control := "Package: hello-sandpit\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.com>\nDescription: says hello\n"
	writeFile(r.t, filepath.Join(pkg, "DEBIAN/control"), []byte(control))
	writeFile(r.t, filepath.Join(pkg, "usr/share/hello-sandpit"), []byte("hello from apt\n"))
	const name = "hello-sandpit_1.0_all.deb"
	if err := os.MkdirAll(repo, 0o755); err != nil {
		r.t.Fatal(err)
	}
	r.command(r.dir, "dpkg-deb", "--build", "--root-owner-group", pkg, filepath.Join(repo, name))
	deb, err := os.ReadFile(filepath.Join(repo, name))
	if err != nil {
		r.t.Fatal(err)
	}
	writeFile(r.t, filepath.Join(repo, "Packages"), fmt.Appendf(nil, "%sFilename: ./%s\nSize: %d\nSHA256: %s\n", control, name, len(deb), hexSum(deb)))
}

// writeFile writes a file that everybody may read.
func writeFile(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

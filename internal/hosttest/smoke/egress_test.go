package smoke

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// tun is what interfaces of sandboxes are made with.
const tun = "/dev/net/tun"

// Where the account may open /dev/net/tun, a sandbox reaches the name that it may, with and without
// a server, and nothing else. Everywhere else egress is refused by name, with a reason and a way out,
// which doctor knows, too.
func TestEgress(t *testing.T) {
	testkit.NeedWorkingHost(t)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	origin := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "reached "+r.URL.Path) })}
	t.Cleanup(func() { origin.Close() })
	go func() { _ = origin.Serve(listener) }()
	port := listener.Addr().(*net.TCPAddr).Port
	at := fmt.Sprintf("good.test:%d", port)
	allow := []string{"--allow", at, "--resolve", "good.test:127.0.0.1", "--resolve", "bad.test:127.0.0.1"}
	get := func(host, path string) []string {
		return []string{"bash", "-c", fmt.Sprintf(`exec 3<>/dev/tcp/%s/%d && printf 'GET %s HTTP/1.0\r\nHost: %[1]s:%[2]d\r\n\r\n' >&3 && cat <&3`, host, port, path)}
	}
	run := func(host string) (string, string, int) {
		return sandpit(t, append(append(append([]string{"run"}, allow...), "--"), get(host, "/run")...)...)
	}

	out, errs, code := run("good.test")
	file, closed := os.OpenFile(tun, os.O_RDWR, 0)
	if closed != nil {
		if code != 125 || out != "" || !strings.Contains(errs, "reaching the network") || !strings.Contains(errs, tun) || !strings.Contains(errs, "hint: ") {
			t.Errorf("exit code %d without %s (%v)\n%s%s", code, tun, closed, out, errs)
		}
		if report, _, _ := sandpit(t, "doctor", "--json"); !gapAbout(t, report, "egress") {
			t.Errorf("doctor has no gap about egress, with a reason and a fix\n%s", report)
		}
		t.Logf("the refusal:\n%s", errs)
		return
	}
	file.Close()
	if code != 0 || !strings.Contains(out, "reached /run") {
		t.Errorf("the allowed name: exit code %d\n%s%s", code, out, errs)
	}
	if out, errs, code := run("bad.test"); code == 0 || strings.Contains(out, "reached") {
		t.Errorf("another name: exit code %d\n%s%s", code, out, errs)
	}
	if out, errs, code := run("127.0.0.1"); code == 0 || strings.Contains(out, "reached") {
		t.Errorf("the address: exit code %d\n%s%s", code, out, errs)
	}

	home := filepath.Join(t.TempDir(), "home")
	with := func(args ...string) (string, error) {
		cmd := exec.Command(os.Getenv("SANDPIT_TEST_BINARY"), args...)
		cmd.Env = append(os.Environ(), "SANDPIT_HOME="+home)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	serve(t, home)
	if out, err := with(append(append([]string{"create"}, allow...), "box")...); err != nil {
		t.Fatalf("create: %v\n%s", err, out)
	}
	fetch := func(path string) (string, error) {
		return with(append([]string{"exec", "box", "--"}, get("good.test", path)...)...)
	}
	if out, err := fetch("/1"); err != nil || !strings.Contains(out, "reached /1") {
		t.Errorf("the allowed name, with a server: %v\n%s", err, out)
	}
	if out, err := with("network", "deny", "box", "good.test"); err != nil {
		t.Errorf("deny: %v\n%s", err, out)
	}
	if out, err := fetch("/2"); err == nil || strings.Contains(out, "reached") {
		t.Errorf("a name that was denied: %v\n%s", err, out)
	}
	if out, err := with("rm", "-f", "box"); err != nil {
		t.Errorf("rm: %v\n%s", err, out)
	}
}

// gapAbout reports whether what doctor says has a complete gap.
func gapAbout(t *testing.T, text, what string) bool {
	t.Helper()
	var report struct {
		Drivers []struct {
			Gaps []struct{ What, Why, Fix string }
		}
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, d := range report.Drivers {
		for _, gap := range d.Gaps {
			if gap.What == what && gap.Why != "" && gap.Fix != "" {
				return true
			}
		}
	}
	return false
}

// serve runs a server until the test has ended.
func serve(t *testing.T, home string) {
	t.Helper()
	cmd := exec.Command(os.Getenv("SANDPIT_TEST_BINARY"), "serve")
	cmd.Env = append(os.Environ(), "SANDPIT_HOME="+home)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listens := make(chan struct{})
	said := new(testkit.Buffer)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(said, lines.Text())
			if bytes.Contains(lines.Bytes(), []byte("msg=listening")) {
				close(listens)
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server ended with %v\n%s", err, said)
		}
	})
	select {
	case <-listens:
	case <-read:
		t.Fatalf("the server has ended\n%s", said)
	}
}

package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestSecretsReachTheirHosts stores a secret, uses it with curl in sandboxes of run and create, rotates and
// removes it: the origin gets the present value, and the sandbox never has one.
func TestSecretsReachTheirHosts(t *testing.T) {
	needSandboxes(t)
	testkit.NeedTUN(t)
	const first, second = "first-value-of-the-secret", "second-value-of-the-secret"
	_, port, roots := originOverTLS(t, readableDir(t), func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		fmt.Fprintf(w, "got the %s over HTTP/%d\n", map[string]string{first: "first", second: "second"}[token], r.ProtoMajor)
	})
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	sandpit := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(binDir(t), "sandpit"), args...)
		cmd.Env = append(os.Environ(), "SANDPIT_HOME="+home, "SSL_CERT_FILE="+roots)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("sandpit %q: %v\n%s", args, err, out)
		}
		if strings.Contains(string(out), first) || strings.Contains(string(out), second) {
			t.Errorf("sandpit %q writes a value: %s", args, out)
		}
		return string(out)
	}
	expect := func(about, out, want string) {
		t.Helper()
		if !strings.Contains(out, want) {
			t.Errorf("%s: %q lacks %q", about, out, want)
		}
	}
	load := "curl -sS --max-time 20 -H \"Authorization: Bearer $TOKEN\" https://example.com:" + port + "/"
	flags := []string{"--secret", "token", "--resolve", "example.com:127.0.0.1"}
	sandpit(first+"\n", "secret", "set", "token", "--host", "example.com:"+port)
	expect("run", sandpit("", append(append([]string{"run"}, flags...), "--", "sh", "-c", load)...), "got the first over HTTP/2")
	sandpit("", append(append([]string{"create"}, flags...), "box")...)
	expect("create", sandpit("", "exec", "box", "--", "sh", "-c", load+"; env; cat /proc/*/environ; find / -xdev -newer /etc/hostname -type f -size -100k -exec cat {} + 2>/dev/null; true"), "got the first")
	sandpit(second, "secret", "rotate", "token")
	expect("rotated", sandpit("", "exec", "box", "--", "sh", "-c", load), "got the second")
	sandpit("", "secret", "rm", "token")
	expect("removed", sandpit("", "exec", "box", "--", "sh", "-c", load+" -k || echo not reached"), "not reached")
	sandpit("", "network", "allow", "box", "example.com:"+port)
	expect("removed, and allowed", sandpit("", "exec", "box", "--", "sh", "-c", load+" -k"), "got the  over")
	for _, part := range []string{"state", "audit", "sandboxes", "server.log"} {
		err := filepath.WalkDir(filepath.Join(home, part), func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if strings.Contains(string(data), first) || strings.Contains(string(data), second) {
				t.Errorf("%s has a value", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

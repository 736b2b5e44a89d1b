package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/oauth/oauthtest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestLogin logs in to a provider by a browser and by a device code, and uses the token in a sandbox with curl. When it
// is revoked, the origin's 401 has it renewed, and curl does not notice.
func TestLogin(t *testing.T) {
	needSandboxes(t)
	testkit.NeedTUN(t)
	provider := oauthtest.New(t)
	_, port, roots := originOverTLS(t, readableDir(t), func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !provider.Valid(token) {
			http.Error(w, "who is that?", http.StatusUnauthorized)
			return
		}
		fmt.Fprintln(w, "welcome")
	})
	home := shortHome(t)
	how := provider.OAuth()
	settings := fmt.Sprintf("services:\n  - name: own\n    hosts: [example.com:%s]\n    variables: [TOKEN]\n    oauth: {authorize: %q, token: %q, device: %q, client_id: %q, scopes: [openid, offline_access]}\n",
		port, how.Authorize, how.Token, how.Device, how.ClientID)
	file := filepath.Join(home, "server.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	startService(t, home, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+roots) }, "--config", file)
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), filepath.Join(binDir(t), "sandpit"), args...)
		cmd.Env = append(os.Environ(), "SANDPIT_HOME="+home)
		return cmd
	}
	login := func(prompt string, act func(found string), args ...string) {
		t.Helper()
		cmd := command(append([]string{"secret", "login", "own"}, args...)...)
		said, err := cmd.StderrPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for lines := bufio.NewScanner(said); lines.Scan(); {
			fmt.Fprintln(&all, lines.Text())
			if m := regexp.MustCompile(prompt).FindStringSubmatch(lines.Text()); m != nil {
				act(m[1])
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("secret login %q: %v\n%s", args, err, all.String())
		}
	}
	load := "curl -sS --max-time 40 -H \"Authorization: Bearer $TOKEN\" https://example.com:" + port + "/"
	welcome := func(about string) {
		t.Helper()
		out, err := command("exec", "box", "--", "sh", "-c", load).CombinedOutput()
		if err != nil || string(out) != "welcome\n" {
			t.Errorf("%s: %v %s", about, err, out)
		}
	}
	login(`log in at (http\S+)`, func(address string) {
		if status, text, err := provider.Visit(t.Context(), address); err != nil || status != 200 {
			t.Errorf("the browser ends at %d %s, %v", status, text, err)
		}
	}, "--no-browser")
	if out, err := command("create", "--secret", "own", "--resolve", "example.com:127.0.0.1", "box").CombinedOutput(); err != nil {
		t.Fatalf("create: %v\n%s", err, out)
	}
	welcome("by a browser")
	before := provider.Renewals()
	provider.Revoke()
	welcome("revoked")
	if n := provider.Renewals() - before; n != 1 {
		t.Errorf("%d renewals", n)
	}
	login(`enter the code (\S+)`, func(code string) {
		if err := provider.CompleteDeviceAuthorization(t.Context(), code, "id2"); err != nil {
			t.Error(err)
		}
	}, "--device")
	welcome("by a device code")
}

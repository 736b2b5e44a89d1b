// Package browsertest opens web pages in a real browser, for tests: a headless Chromium, which
// it drives over two pipes with the Chrome DevTools Protocol.
//
// Chromium isolates pages with namespaces of the kernel, and does not do that for root. If
// root runs the test, the browser gets another user, so that it works as people run it.
package browsertest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

const (
	program = "chromium-headless-shell"

	// user is who runs the browser in place of root: a user that nobody else has.
	user = 54399
)

// Page is a page in a browser of its own, which ends with the test. One goroutine may use it.
type Page struct {
	t       testing.TB
	in      io.Writer
	out     *bufio.Reader
	session string
	calls   int
}

// Open opens a URL and waits until the page has loaded. It skips the test if there is no
// browser.
func Open(t testing.TB, url string) *Page {
	t.Helper()
	path := testkit.NeedProgram(t, program)
	p := &Page{t: t}
	p.start(path)
	var target struct{ TargetID string }
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	p.session = attached.SessionID
	p.Go(url)
	return p
}

// start starts the browser.
func (p *Page) start(path string) {
	p.t.Helper()
	home, err := os.MkdirTemp("", "sandpit-browser") // not t.TempDir, which only its owner may enter
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = os.RemoveAll(home) })
	cmd := exec.Command(path, "--remote-debugging-pipe", "--user-data-dir="+home, "--no-first-run", "--disable-background-networking", "--disable-gpu")
	cmd.Env = []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		if err := os.Chown(home, user, user); err != nil {
			p.t.Fatal(err)
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	}
	var log testkit.Buffer
	cmd.Stderr = &log
	theirIn, in, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4, as the browser expects
	err = cmd.Start()
	_, _ = theirIn.Close(), theirOut.Close()
	if err != nil {
		p.t.Fatal(err)
	}
	// The program may be a script, whose child is the browser.
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	hung := time.AfterFunc(testkit.Patience, kill)
	p.t.Cleanup(func() {
		hung.Stop()
		kill()
		_ = cmd.Wait()
		_, _ = in.Close(), out.Close()
		if p.t.Failed() {
			p.t.Logf("the browser: %s", log.String())
		}
	})
	p.in, p.out = in, bufio.NewReaderSize(out, 64<<10)
}

// call calls a method of the protocol. Messages end with NUL.
func (p *Page) call(method string, params, result any) {
	p.t.Helper()
	p.calls++
	msg := map[string]any{"id": p.calls, "method": method, "params": params}
	if p.session != "" {
		msg["sessionId"] = p.session
	}
	text, err := json.Marshal(msg)
	if err == nil {
		_, err = p.in.Write(append(text, 0))
	}
	for err == nil {
		var line []byte
		if line, err = p.out.ReadBytes(0); err != nil {
			break
		}
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err = json.Unmarshal(bytes.TrimSuffix(line, []byte{0}), &answer); err != nil || answer.ID != p.calls {
			continue // an event
		}
		if answer.Error != nil {
			err = errors.New(answer.Error.Message)
		} else if result != nil {
			err = json.Unmarshal(answer.Result, result)
		}
		if err == nil {
			return
		}
	}
	p.t.Fatalf("browser: %s: %v", method, err)
}

// Go opens another URL and waits until the page has loaded.
func (p *Page) Go(url string) {
	p.t.Helper()
	var went struct{ ErrorText string }
	p.call("Page.navigate", map[string]any{"url": url}, &went)
	if went.ErrorText != "" {
		p.t.Fatalf("browser: opening %s: %s", url, went.ErrorText)
	}
	p.Eval(`new Promise(ok => document.readyState == "complete" ? ok() : addEventListener("load", () => ok()))`, nil)
}

// Eval evaluates an expression of JavaScript in the page, waits if it is a promise, and reads
// its value, as JSON, into out, unless that is nil. An exception fails the test.
func (p *Page) Eval(script string, out any) {
	p.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	p.call("Runtime.evaluate", map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true}, &got)
	err := error(nil)
	if got.ExceptionDetails != nil {
		err = fmt.Errorf("it threw %s", got.ExceptionDetails)
	} else if out != nil {
		err = json.Unmarshal(got.Result.Value, out)
	}
	if err != nil {
		p.t.Fatalf("browser: evaluating %.200s: %v", script, err)
	}
}

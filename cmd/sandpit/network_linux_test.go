package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// networkProcessOf returns the process that keeps the networks of a server's sandboxes, or 0.
func networkProcessOf(server int) int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		line, _ := os.ReadFile(name)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if strings.HasPrefix(string(line), "sandpit-network\x00") && parentOf(pid) == server {
			return pid
		}
	}
	return 0
}

func parentOf(pid int) int {
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// TestNetworkProcessIsKilled kills the process of the networks while sandboxes load pages: they live on,
// new connections work, and the process ends with its server, however that ends.
func TestNetworkProcessIsKilled(t *testing.T) {
	needSandboxes(t)
	testkit.NeedProgram(t, "curl")
	testkit.NeedTUN(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	s := startService(t, home, nil)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("page")) }))
	t.Cleanup(origin.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(origin.URL, "http://"), ":")
	url := "http://good.test:" + port + "/"

	var boxes []sandpit.Sandbox
	for range 3 {
		sb, err := s.client().Create(t.Context(), sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"good.test:" + port}, Resolve: []string{"good.test:127.0.0.1"}}})
		if err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, sb)
	}
	loads := func(sb sandpit.Sandbox) bool {
		res, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"curl", "-sS", "--max-time", "20", url}})
		return err == nil && string(res.Stdout) == "page"
	}
	var background []sandpit.Process
	for _, sb := range boxes {
		if !loads(sb) {
			t.Fatal("the page can't be loaded")
		}
		p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sh", "-c", "while :; do curl -s --max-time 5 -o /dev/null " + url + "; done"}, Background: true})
		if err != nil {
			t.Fatal(err)
		}
		background = append(background, p)
	}
	server := serverPID(t, home)
	last := 0
	for range 3 {
		testkit.Until(t, "the process runs", func() bool {
			pid := networkProcessOf(server)
			if pid == 0 || pid == last {
				return false
			}
			last = pid
			return true
		})
		if err := unix.Kill(last, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for _, sb := range boxes {
			testkit.Until(t, "new connections work", func() bool { return loads(sb) })
		}
	}
	for _, p := range background {
		if err := p.Signal(t.Context(), syscall.SIGCONT); err != nil {
			t.Errorf("a program of a sandbox has ended: %v", err)
		}
	}
	last = networkProcessOf(server)
	_ = s.cmd.Process.Kill()
	testkit.Until(t, "the process ends with its server", func() bool { return unix.Kill(last, 0) != nil })

	c := startService(t, home, nil).client()
	for i, sb := range boxes {
		adopted, err := c.Get(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "the next server's network works", func() bool { return loads(adopted) })
		if d, err := adopted.(sandpit.Egresser).CheckEgress(t.Context(), "other.test:"+port); err != nil || d.Allowed {
			t.Errorf("what no rule allows: %+v, %v", d, err)
		}
		// What had connections open when the server was killed has gone on.
		found, err := adopted.(sandpit.ProcessKeeper).Processes(t.Context())
		if err != nil || !slices.ContainsFunc(found, func(p sandpit.ProcessInfo) bool { return p.PID == background[i].PID() && p.Result == nil }) {
			t.Errorf("its processes are %+v, %v", found, err)
		}
	}
}

// In a container that was given no /dev/net/tun, egress is refused by name, and the hint says how to
// give it one. All else works.
func TestEgressWithoutDevice(t *testing.T) {
	needSandboxes(t)
	testkit.NeedRoot(t, "to hide a device")
	home, program := dataDir(t), filepath.Join(binDir(t), "sandpit")
	hidden := func(args ...string) (string, error) {
		cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", `{ [ ! -d /dev/net ] || mount -t tmpfs none /dev/net; } && exec "$0" "$@"`, program}, args...)...)
		cmd.Env = append(os.Environ(), "SANDPIT_HOME="+home)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const want = "sandpit: reaching the network: /dev/net/tun can't be used: no such file or directory\n" +
		"hint: load the module (modprobe tun); in a container, pass the device on (--device /dev/net/tun)\n"
	if out, err := hidden("run", "--allow", "good.test", "--", "true"); err == nil || out != want {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := hidden("run", "--", "echo", "works"); err != nil || out != "works\n" {
		t.Errorf("without egress: %v\n%s", err, out)
	}
}

// At a terminal, exec ends with the denials of its sandbox while the command ran, as run does.
func TestExecTellsDenials(t *testing.T) {
	needSandboxes(t)
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	testkit.Need(t, "/dev/net/tun", err)
	tun.Close()
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	s := startSession(t, "sh", "-c", `export SANDPIT_HOME=`+home+` SANDPIT_QUIET=false
sandpit create --allow a.test box && sandpit exec box -- getent hosts first.test
sandpit exec box -- getent hosts second.test; echo code-$?; sandpit exec -q box -- getent hosts third.test; sandpit exec box -- true; sandpit rm box; echo the-end`)
	s.expect("the-end")
	out := s.output()
	for _, want := range []string{
		", last to first.test (no rule allows it); to allow it: sandpit network allow box first.test\r\n",
		", last to second.test (no rule allows it); to allow it: sandpit network allow box second.test\r\n", "code-2",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if n := strings.Count(out, "sandpit: network access was denied "); n != 2 {
		t.Errorf("%d lines tell denials: %s", n, out)
	}
}

package probe

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestMain answers as the child of userNamespace.
func TestMain(m *testing.M) {
	if os.Getenv("PROBE_CHILD") != "" {
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestTraits compares this host with SANDPIT_TEST_TRAITS: words KEY=VALUE, of
// which a value with commas names parts that must all be there.
func TestTraits(t *testing.T) {
	is := map[string]string{
		"uid":       uid(),
		"arch":      runtime.GOARCH,
		"kernel":    read("/proc/sys/kernel/osrelease"),
		"cgroup":    cgroupLayout(),
		"delegated": delegated(),
		"systemd":   yes(exists("/run/systemd/system")),
		"bus":       yes(os.Getenv("DBUS_SESSION_BUS_ADDRESS") != "" || os.Getenv("XDG_RUNTIME_DIR") != ""),
		"lsm":       read("/sys/kernel/security/lsm"),
		"userns":    userNamespace(),
		"subuid":    yes(hasSubuids()),
		"container": yes(exists("/.dockerenv") || exists("/run/.containerenv")),
	}
	for _, key := range []string{"uid", "arch", "kernel", "cgroup", "delegated", "systemd", "bus", "lsm", "userns", "subuid", "container"} {
		t.Logf("%-9s = %s", key, is[key])
	}
	t.Logf("own group = %q", read("/proc/self/cgroup"))

	for trait := range strings.FieldsSeq(os.Getenv("SANDPIT_TEST_TRAITS")) {
		key, want, _ := strings.Cut(trait, "=")
		got, known := is[key]
		if !known {
			t.Errorf("no such trait: %q", trait)
			continue
		}
		if !holds(key, got, want) {
			t.Errorf("%s = %q, and this host should have %q", key, got, want)
		}
	}
}

func holds(key, got, want string) bool {
	switch key {
	case "kernel":
		return strings.HasPrefix(got, want+".")
	case "lsm", "delegated":
		parts := strings.FieldsFunc(got, func(r rune) bool { return r == ',' || r == ' ' })
		for part := range strings.SplitSeq(want, ",") {
			if !slices.Contains(parts, part) {
				return false
			}
		}
		return true
	case "userns":
		return strings.HasPrefix(got, want)
	}
	return got == want
}

func uid() string {
	if os.Getuid() == 0 {
		return "root"
	}
	return "user"
}

// cgroupLayout is "v2", "v1", or "hybrid" where both are mounted.
func cgroupLayout() string {
	v1, v2 := false, false
	for line := range strings.Lines(read("/proc/self/mountinfo")) {
		_, after, _ := strings.Cut(line, " - ")
		switch fs, _, _ := strings.Cut(after, " "); fs {
		case "cgroup":
			v1 = true
		case "cgroup2":
			v2 = true
		}
	}
	switch {
	case v1 && v2:
		return "hybrid"
	case v1:
		return "v1"
	case v2:
		return "v2"
	}
	return "none"
}

// delegated lists the controllers that this account may hand to groups of its
// own, or "no".
func delegated() string {
	for line := range strings.Lines(read("/proc/self/cgroup")) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		dir := filepath.Join("/sys/fs/cgroup", path)
		if syscall.Access(dir, 2 /* W_OK */) != nil || syscall.Access(filepath.Join(dir, "cgroup.procs"), 2) != nil {
			return "no"
		}
		return strings.ReplaceAll(strings.TrimSpace(read(filepath.Join(dir, "cgroup.controllers"))), " ", ",")
	}
	return "no"
}

// userNamespace is "open", or "closed" with the kernel's reason.
func userNamespace() string {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"PROBE_CHILD=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		return fmt.Sprintf("closed: %v", err)
	}
	return "open"
}

func hasSubuids() bool {
	me, err := user.Current()
	if err != nil {
		return false
	}
	for line := range strings.Lines(read("/etc/subuid")) {
		if owner, _, _ := strings.Cut(line, ":"); owner == me.Username || owner == me.Uid {
			_, err := exec.LookPath("newuidmap")
			return err == nil
		}
	}
	return false
}

func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

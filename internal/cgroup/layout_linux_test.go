package cgroup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/feature"
)

// fakeFiles is a machine as a table: the files that can be read, and below
// which directories this user may write.
type fakeFiles struct {
	files map[string]string
	ours  []string // files and directories, with all below if they end in "/"
}

func (f fakeFiles) read(name string) []byte {
	if s, ok := f.files[name]; ok {
		return []byte(s)
	}
	return nil
}

func (f fakeFiles) exists(name string) bool { _, ok := f.files[name]; return ok }

func (f fakeFiles) writable(name string) bool {
	for _, o := range f.ours {
		if name == o || strings.HasSuffix(o, "/") && strings.HasPrefix(name+"/", o) {
			return true
		}
	}
	return false
}

// What machines show, taken from real ones and shortened.
const (
	mountsV2 = `22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
25 22 0:23 / /sys rw,nosuid,nodev,noexec,relatime shared:6 - sysfs sysfs rw
29 25 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
30 25 0:27 / /sys/fs/pstore rw - pstore pstore rw
`
	mountsHybridBare = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	selfHybridBare = `9:name=systemd:/
8:pids:/
6:freezer:/
5:devices:/
4:memory:/runner/09e8
3:cpuset:/
2:cpuacct:/
1:cpu:/
0::/
`
	mountsV1Systemd = `30 25 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/systemd rw,nosuid shared:10 - cgroup cgroup rw,xattr,name=systemd
34 30 0:30 / /sys/fs/cgroup/pids rw,nosuid shared:13 - cgroup cgroup rw,pids
35 30 0:31 / /sys/fs/cgroup/net_cls,net_prio rw,nosuid shared:14 - cgroup cgroup rw,net_cls,net_prio
36 30 0:32 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:15 - cgroup cgroup rw,cpu,cpuacct
37 30 0:33 / /sys/fs/cgroup/freezer rw,nosuid shared:16 - cgroup cgroup rw,freezer
38 30 0:34 / /sys/fs/cgroup/memory rw,nosuid shared:17 - cgroup cgroup rw,memory
39 30 0:35 / /sys/fs/cgroup/devices rw,nosuid shared:18 - cgroup cgroup rw,devices
`
	selfV1Systemd = `8:devices:/user.slice
7:memory:/user.slice/user-1000.slice/session-1.scope
6:freezer:/
5:cpu,cpuacct:/user.slice
4:net_cls,net_prio:/
3:pids:/user.slice/user-1000.slice/session-1.scope
1:name=systemd:/user.slice/user-1000.slice/session-1.scope
`
	mountsDockerV1 = `700 650 0:98 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs rw,mode=755
701 700 0:27 /docker/4f0c /sys/fs/cgroup/systemd RO,nosuid master:10 - cgroup cgroup rw,xattr,name=systemd
702 700 0:30 /docker/4f0c /sys/fs/cgroup/pids RO,nosuid master:13 - cgroup cgroup rw,pids
703 700 0:32 /docker/4f0c /sys/fs/cgroup/cpu,cpuacct RO,nosuid master:15 - cgroup cgroup rw,cpu,cpuacct
704 700 0:34 /docker/4f0c /sys/fs/cgroup/memory RO,nosuid master:17 - cgroup cgroup rw,memory
705 700 0:33 /docker/4f0c /sys/fs/cgroup/freezer RO,nosuid master:16 - cgroup cgroup rw,freezer
`
	selfDockerV1 = `8:memory:/docker/4f0c
6:freezer:/docker/4f0c
5:cpu,cpuacct:/docker/4f0c
3:pids:/docker/4f0c
1:name=systemd:/docker/4f0c
`
	all = "cpuset cpu io memory hugetlb pids rdma misc\n"
)

func TestDetect(t *testing.T) {
	const root = "/sys/fs/cgroup"
	const user = root + "/user.slice/user-1000.slice/user@1000.service"
	tests := []struct {
		name            string
		self, mountinfo string
		files           map[string]string
		ours            []string
		uid             int
		bus             string
		kernel          version  // 0: 6.12
		want            []string // a line per place
		gaps            []string // limit: words of why
		mode            string
	}{
		{
			name: "hybrid without systemd, root",
			self: selfHybridBare, mountinfo: mountsHybridBare, ours: []string{root + "/"},
			files: map[string]string{root + "/memory/memory.memsw.limit_in_bytes": "9", root + "/memory" + tcpLimit: "9", root + "/unified/cgroup.controllers": "hugetlb\n"},
			mode:  "hybrid",
			want: []string{
				"v2 " + root + "/unified []", "v1 " + root + "/pids [pids]",
				"v1 " + root + "/devices [devices]", "v1 " + root + "/memory [memory] memsw", "v1 " + root + "/cpu [cpu]",
			},
		},
		{
			name: "hybrid, ordinary user", uid: 65534,
			self: selfHybridBare, mountinfo: mountsHybridBare, mode: "hybrid",
			gaps: []string{"memory: v1", "cpus: v1", "pids: v1"},
		},
		{
			name: "v2 with systemd, root",
			self: "0::/user.slice/user-0.slice/session-1.scope\n", mountinfo: mountsV2, ours: []string{root + "/"},
			files: map[string]string{root + "/cgroup.controllers": all},
			mode:  "v2", want: []string{"v2 " + root + "/sandpit [memory, cpu, pids] shared"},
		},
		{
			name: "v2 with systemd, user in a session", uid: 1000, bus: "/run/user/1000/bus",
			self: "0::/user.slice/user-1000.slice/session-3.scope\n", mountinfo: mountsV2, ours: []string{"/run/user/1000/bus"},
			files: map[string]string{user + "/cgroup.controllers": "cpu memory pids\n"},
			mode:  "v2", want: []string{"v2  [memory, cpu, pids] scope"},
		},
		{
			name: "v2 with systemd, user without cpu delegated", uid: 1000, bus: "/run/user/1000/bus",
			self: "0::/user.slice/user-1000.slice/session-3.scope\n", mountinfo: mountsV2, ours: []string{"/run/user/1000/bus"},
			files: map[string]string{user + "/cgroup.controllers": "memory pids\n"},
			mode:  "v2", want: []string{"v2  [memory, pids] scope"}, gaps: []string{"cpus: cpu controller is not available in the user's systemd"},
		},
		{
			name: "v2, user without a manager", uid: 1000, bus: "/run/user/1000/bus",
			self: "0::/user.slice/user-1000.slice/session-3.scope\n", mountinfo: mountsV2, mode: "v2",
			gaps: []string{"memory: belongs to another user", "cpus: belongs to another user", "pids: belongs to another user"},
		},
		{
			name: "v2, delegated service of our own", uid: 1000, bus: "/run/user/1000/bus",
			self:      "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-u1.service\n",
			mountinfo: mountsV2, ours: []string{user + "/", "/run/user/1000/bus"},
			files: map[string]string{
				user + "/cgroup.controllers":                                 "cpu memory pids\n",
				user + "/app.slice/cgroup.subtree_control":                   "cpu memory pids\n",
				user + "/app.slice/cgroup.controllers":                       "cpu memory pids\n",
				user + "/app.slice/run-u1.service/cgroup.controllers":        "cpu memory pids\n",
				user + "/app.slice/run-u1.service/cgroup.procs":              "77\n",
				user + "/app.slice/run-u1.service/cgroup.subtree_control":    "",
				user + "/app.slice/run-u1.service/irrelevant-other-cgroup.x": "",
			},
			mode: "v2", want: []string{"v2 " + user + "/app.slice/run-u1.service [memory, cpu, pids] leaf"},
		},
		{
			name: "v2, delegated service with a shell in it", uid: 1000, bus: "/run/user/1000/bus",
			self:      "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-u1.service\n",
			mountinfo: mountsV2, ours: []string{user + "/", "/run/user/1000/bus"},
			files: map[string]string{
				user + "/cgroup.controllers":                          "cpu memory pids\n",
				user + "/app.slice/run-u1.service/cgroup.controllers": "cpu memory pids\n",
				user + "/app.slice/run-u1.service/cgroup.procs":       "70\n77\n",
			},
			mode: "v2", want: []string{"v2  [memory, cpu, pids] scope"},
		},
		{
			name: "docker v2, default", self: "0::/\n",
			mountinfo: "800 799 0:30 / /sys/fs/cgroup ro,nosuid,nodev,noexec - cgroup2 cgroup rw,nsdelegate\n", ours: []string{root + "/"},
			files: map[string]string{root + "/cgroup.controllers": all, root + "/cgroup.type": "domain\n"},
			mode:  "v2", gaps: []string{"memory: read-only", "cpus: read-only", "pids: read-only"},
		},
		{
			name: "docker v2, privileged, with a shell", self: "0::/\n", mountinfo: mountsV2, ours: []string{root + "/"},
			files: map[string]string{root + "/cgroup.controllers": all, root + "/cgroup.type": "domain\n", root + "/cgroup.procs": "1\n77\n"},
			mode:  "v2", gaps: []string{"memory: other processes", "cpus: other processes", "pids: other processes"},
		},
		{
			name: "docker v2, privileged, alone", self: "0::/\n", mountinfo: mountsV2, ours: []string{root + "/"},
			files: map[string]string{root + "/cgroup.controllers": all, root + "/cgroup.type": "domain\n", root + "/cgroup.procs": "77\n"},
			mode:  "v2", want: []string{"v2 " + root + " [memory, cpu, pids] leaf"},
		},
		{
			name: "docker v2, privileged, processes moved to a leaf", self: "0::/init\n", mountinfo: mountsV2, ours: []string{root + "/"},
			files: map[string]string{
				root + "/cgroup.controllers": all, root + "/cgroup.type": "domain\n", root + "/cgroup.procs": "",
				root + "/init/cgroup.controllers": "", root + "/init/cgroup.procs": "1\n77\n",
			},
			mode: "v2", want: []string{"v2 " + root + " [memory, cpu, pids] enable"},
		},
		{
			name: "the same, prepared by another", self: "0::/init\n", mountinfo: mountsV2, ours: []string{root + "/"},
			files: map[string]string{
				root + "/cgroup.controllers": all, root + "/cgroup.type": "domain\n", root + "/cgroup.procs": "",
				root + "/cgroup.subtree_control": all, root + "/init/cgroup.controllers": all, root + "/init/cgroup.procs": "77\n",
			},
			mode: "v2", want: []string{"v2 " + root + " [memory, cpu, pids]"},
		},
		{
			name: "v1 with systemd, root", self: selfV1Systemd, mountinfo: mountsV1Systemd, ours: []string{root + "/"}, mode: "v1",
			want: []string{
				"v1 " + root + "/freezer [freezer]", "v1 " + root + "/memory [memory]", "v1 " + root + "/devices [devices]",
				"v1 " + root + "/cpu,cpuacct [cpu, cpuacct]", "v1 " + root + "/pids [pids]",
			},
			gaps: []string{"tcp-buffers: v1"},
		},
		{
			name: "before Linux 6.0, root", self: selfV1Systemd, mountinfo: mountsV1Systemd, ours: []string{root + "/"}, mode: "v1", kernel: kernel(5, 15),
			want: []string{
				"v1 " + root + "/freezer [freezer]", "v1 " + root + "/memory [memory]", "v1 " + root + "/devices [devices]",
				"v1 " + root + "/cpu,cpuacct [cpu, cpuacct]", "v1 " + root + "/pids [pids]",
			},
			gaps: []string{"tcp-buffers: v1", "guest-pids: counts the guest"},
		},
		{
			name: "v1, user", uid: 1000, self: selfV1Systemd, mountinfo: mountsV1Systemd, mode: "v1",
			gaps: []string{"memory: v1", "cpus: v1", "pids: v1"},
		},
		{
			name: "hybrid with systemd, root", self: selfV1Systemd + "0::/user.slice/user-0.slice/session-1.scope\n",
			mountinfo: mountsV1Systemd + "40 30 0:40 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n", ours: []string{root + "/"},
			files: map[string]string{root + "/unified/cgroup.controllers": ""}, mode: "hybrid",
			want: []string{
				"v2 " + root + "/unified []",
				"v1 " + root + "/devices [devices]", "v1 " + root + "/memory [memory]",
				"v1 " + root + "/cpu,cpuacct [cpu, cpuacct]", "v1 " + root + "/pids [pids]",
			},
			gaps: []string{"tcp-buffers: v1"},
		},
		{
			name: "hybrid with systemd, user: v2 is delegated, v1 is not", uid: 1000,
			self: selfV1Systemd + "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service\n", ours: []string{root + "/unified/user.slice/user-1000.slice/user@1000.service/"},
			mountinfo: mountsV1Systemd + "40 30 0:40 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n", mode: "hybrid",
			want: []string{"v2 " + root + "/unified/user.slice/user-1000.slice/user@1000.service/app.slice/x.service []"},
			gaps: []string{"memory: v1", "cpus: v1", "pids: v1"},
		},
		{
			name: "docker v1, default", self: selfDockerV1, mountinfo: strings.ReplaceAll(mountsDockerV1, "RO", "ro"), ours: []string{root + "/"},
			mode: "v1", gaps: []string{"memory: read-only", "cpus: read-only", "pids: read-only"},
		},
		{
			name: "docker v1, privileged", self: selfDockerV1, mountinfo: strings.ReplaceAll(mountsDockerV1, "RO", "rw"), ours: []string{root + "/"}, mode: "v1",
			want: []string{
				"v1 " + root + "/freezer [freezer]", "v1 " + root + "/memory [memory]",
				"v1 " + root + "/cpu,cpuacct [cpu, cpuacct]", "v1 " + root + "/pids [pids]",
			},
			gaps: []string{"tcp-buffers: v1"},
		},
		{
			name: "v1, an own cgroup given to the user", uid: 1000, self: "4:memory:/team/a b\n0::/\n",
			mountinfo: `35 31 0:32 /team /mnt/a\040b rw - cgroup cgroup rw,memory` + "\n", ours: []string{"/mnt/a b/a b/"}, mode: "v1",
			want: []string{"v1 /mnt/a b/a b [memory]"}, gaps: []string{"cpus: no cpu controller", "pids: no pids controller", "tcp-buffers: v1"},
		},
		{
			name: "own cgroup outside of the namespace's tree", uid: 1000, self: "0::/../../x\n", mountinfo: mountsV2, mode: "v2",
			gaps: []string{"memory: not visible", "cpus: not visible", "pids: not visible"},
		},
		{
			name: "nothing mounted", self: "0::/\n", mountinfo: "", mode: "none",
			gaps: []string{"memory: no memory controller", "cpus: no cpu controller", "pids: no pids controller"},
		},
		{name: "no cgroups in the kernel", mode: "none", gaps: []string{"memory: no memory", "cpus: no cpu", "pids: no pids"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.kernel == 0 {
				tt.kernel = kernel(6, 12)
			}
			h := host{
				prober: fakeFiles{tt.files, tt.ours}, uid: tt.uid, pid: 77, kernel: tt.kernel, bus: tt.bus,
				self: []byte(tt.self), mountinfo: []byte(tt.mountinfo),
			}
			l := h.detect()
			if diff := cmp.Diff(tt.want, describe(l)); diff != "" {
				t.Errorf("places (-want +got):\n%s", diff)
			}
			if l.mode != tt.mode {
				t.Errorf("mode is %q, want %q", l.mode, tt.mode)
			}
			gaps := l.Gaps()
			if len(gaps) != len(tt.gaps) {
				t.Fatalf("gaps are %v, want %q", gaps, tt.gaps)
			}
			for i, g := range gaps {
				what, words, _ := strings.Cut(tt.gaps[i], ": ")
				if g.What != what || !strings.Contains(g.Why, words) || g.Fix == "" {
					t.Errorf("gap %+v, want %q", g, tt.gaps[i])
				}
				if l.Enforceable(feature.Feature(g.What)) {
					t.Errorf("%s is said to be enforceable in spite of its gap", g.What)
				}
			}
		})
	}
}

func describe(l *Layout) []string {
	var out []string
	for _, p := range l.places {
		s := "v1 "
		if p.v2 {
			s = "v2 "
		}
		s += p.dir + " [" + p.ctrls.String() + "]"
		if p.prep != prepNone {
			s += " " + []string{"", "shared", "enable", "leaf", "scope"}[p.prep]
		}
		if p.memsw {
			s += " memsw"
		}
		out = append(out, s)
	}
	return out
}

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]version{
		"6.18.44-fc-v657": kernel(6, 18), "5.14": kernel(5, 14), "5.10.0-9-amd64": kernel(5, 10), "": 0, "x.y": 0, "99999999.1": 0,
	} {
		if got := parseVersion(in); got != want {
			t.Errorf("parseVersion(%q) = %x, want %x", in, got, want)
		}
	}
	if !(kernel(5, 9) < kernel(5, 14) && kernel(5, 14) < kernel(6, 1)) {
		t.Error("kernel versions do not compare as numbers")
	}
}

func TestField(t *testing.T) {
	events := []byte("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
	for key, want := range map[string]int64{"oom": 3, "oom_kill": 2, "oom_k": -1, "max": 12, "": -1} {
		if got := field(events, key); got != want {
			t.Errorf("field(%q) = %d, want %d", key, got, want)
		}
	}
	for in, want := range map[string]int64{"42\n": 42, "max\n": -1, "": -1, "9223372036854771712\n": 9223372036854771712, "99999999999999999999": -1} {
		if got := number([]byte(in)); got != want {
			t.Errorf("number(%q) = %d, want %d", in, got, want)
		}
	}
}

func FuzzDetect(f *testing.F) {
	f.Add([]byte(selfHybridBare), []byte(mountsHybridBare))
	f.Add([]byte(selfV1Systemd), []byte(mountsV1Systemd))
	f.Add([]byte(selfDockerV1), []byte(mountsDockerV1))
	f.Add([]byte("0::/\n"), []byte(mountsV2))
	f.Add([]byte("0::/../x (deleted)\n:::\n1:memory:\n"), []byte("1 2 3 /\\777 /\\ rw - cgroup2 - cgroup2"))
	f.Fuzz(func(t *testing.T, self, mountinfo []byte) {
		h := host{prober: fakeFiles{ours: []string{"/"}}, self: self, mountinfo: mountinfo, pid: 1}
		l := h.detect()
		for _, p := range l.places {
			if !strings.HasPrefix(p.dir, "/") {
				t.Errorf("place %q is no absolute path", p.dir)
			}
		}
		_ = l.Gaps()
		_ = l.String()
	})
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine says on what was measured.
func machine(dir string) []fact {
	var uts unix.Utsname
	_ = unix.Uname(&uts)
	facts := []fact{
		{"kernel", unix.ByteSliceToString(uts.Release[:]) + " " + unix.ByteSliceToString(uts.Machine[:]) + tickRate(unix.ByteSliceToString(uts.Release[:]))},
		{"processor", fmt.Sprintf("%d of %s", runtime.NumCPU(), processor())},
		{"cgroups", cgroupMode()},
		{"file system", fmt.Sprintf("%s of %s", fsType(dir), dir)},
		{"user", fmt.Sprintf("uid %d", os.Geteuid())},
	}
	return facts
}

// load is the number of processes that want to run, over 1, 5 and 15 minutes.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	f := strings.Fields(string(data))
	return strings.Join(f[:min(len(f), 3)], " ")
}

// tickRate finds CONFIG_HZ where the kernel or its package tells it.
func tickRate(release string) string {
	for _, read := range []func() (string, error){
		func() (string, error) { return unzipped("/proc/config.gz") },
		func() (string, error) { data, err := os.ReadFile("/boot/config-" + release); return string(data), err },
		func() (string, error) {
			data, err := os.ReadFile("/lib/modules/" + release + "/config")
			return string(data), err
		},
	} {
		text, err := read()
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			if hz, ok := strings.CutPrefix(strings.TrimSpace(line), "CONFIG_HZ="); ok {
				return ", HZ=" + hz
			}
		}
	}
	return ", HZ unknown"
}

func processor() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// cgroupMode tells the layouts apart by the file systems at and under
// /sys/fs/cgroup, as systemd does.
func cgroupMode() string {
	const top = "/sys/fs/cgroup"
	switch fsMagic(top) {
	case unix.CGROUP2_SUPER_MAGIC:
		return "v2"
	case unix.TMPFS_MAGIC:
		dirs, _ := filepath.Glob(top + "/*")
		v1, v2 := 0, 0
		for _, d := range dirs {
			switch fsMagic(d) {
			case unix.CGROUP_SUPER_MAGIC:
				v1++
			case unix.CGROUP2_SUPER_MAGIC:
				v2++
			}
		}
		if v2 > 0 {
			return fmt.Sprintf("hybrid (%d v1 hierarchies, and v2)", v1)
		}
		return fmt.Sprintf("v1 (%d hierarchies)", v1)
	}
	return "none"
}

func fsMagic(path string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0
	}
	return int64(st.Type)
}

func fsType(path string) string {
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	}
	magic := fsMagic(path)
	if name, ok := names[magic]; ok {
		return name
	}
	return fmt.Sprintf("file system %#x", magic)
}

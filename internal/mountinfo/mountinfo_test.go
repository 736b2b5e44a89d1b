package mountinfo_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/mountinfo"
)

func TestAll(t *testing.T) {
	list := `32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 8:1 /a\040b /mnt/c\134d\011e ro shared:9 master:2 - ext4 /dev/sda1 rw
34 31 0:4 net:[4026531840] /run/netns/x rw - nsfs nsfs rw
35 31 0:40 /x\999\7 /y\777\ rw - fuse.a b
x 31 0:29 / / rw - tmpfs tmpfs rw
39 x 0:29 / / rw - tmpfs tmpfs rw
36 31 0:29 / / rw
37 31 0:29 /  rw - tmpfs tmpfs rw
38 31 0:29 / /last rw - tmpfs none rw,size=1`
	var got []string
	for m := range mountinfo.All([]byte(list)) {
		got = append(got, fmt.Sprintf("%d %d %s %q %q %s %s %s", m.ID, m.Parent, m.Dev, m.Root(), m.Point(), m.Options, m.Type, m.Super))
	}
	want := []string{
		`32 31 0:29 "/" "/sys/fs/cgroup/cpu" rw,relatime cgroup rw,cpu`,
		`33 31 8:1 "/a b" "/mnt/c\\d\te" ro ext4 rw`,
		`34 31 0:4 "net:[4026531840]" "/run/netns/x" rw nsfs rw`,
		`35 31 0:40 "/x\\999\\7" "/y\\777\\" rw fuse.a `,
		`37 31 0:29 "/" "" rw tmpfs rw`,
		`38 31 0:29 "/" "/last" rw tmpfs rw,size=1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// escape is what the kernel does to names (mangle of fs/proc_namespace.c).
func escape(s string) string {
	return strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`).Replace(s)
}

// Whatever a directory is called, it is read as it was written, and changes no
// other line.
func FuzzAll(f *testing.F) {
	f.Add("/a b", "/c\n1 2 0:3 / /d rw - tmpfs e rw", []byte("1 2 0:3 / / rw - x"))
	f.Add(`/\040 - `, "/#", []byte{})
	f.Add("-", "-", []byte("1"))
	f.Fuzz(func(t *testing.T, root, point string, rest []byte) {
		for m := range mountinfo.All(rest) {
			_, _ = m.Root(), m.Point()
		}
		if root == "" || point == "" {
			return
		}
		const other = "7 1 0:6 / /other rw - tmpfs tmpfs rw\n"
		line := fmt.Sprintf("5 1 0:5 %s %s rw,nosuid shared:1 - ext4 /dev/x ro\n", escape(root), escape(point))
		var got []string
		for m := range mountinfo.All(bytes.Join([][]byte{[]byte(other), []byte(line), []byte(other)}, nil)) {
			got = append(got, fmt.Sprint(m.ID), m.Root(), m.Point(), string(m.Options), string(m.Type), string(m.Super))
		}
		is := []string{"7", "/", "/other", "rw", "tmpfs", "rw"}
		want := append(append(append([]string{}, is...), "5", root, point, "rw,nosuid", "ext4", "ro"), is...)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func BenchmarkAll(b *testing.B) {
	list := bytes.Repeat([]byte("33 31 8:1 /var/lib/sandpit /run/user/1000/sandpit rw,nosuid,relatime shared:9 - ext4 /dev/sda1 rw,errors=remount-ro\n"), 1000)
	for b.Loop() {
		n := 0
		for range mountinfo.All(list) {
			n++
		}
		if n != 1000 {
			b.Fatal(n)
		}
	}
}

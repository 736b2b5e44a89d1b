package logstore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/logstore"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// onDisk returns how many bytes the logs below a directory take.
func onDisk(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// L14: the logs of one owner take their share and no more, whatever is written to
// how many of them; those of others have what is left. Each keeps the latest, and
// goes on in the room that it has. What is removed comes back, and what is there
// counts after a restart.
func TestLogsShareTheRoom(t *testing.T) {
	const each, total = 256 << 10, 400 << 10
	dir := t.TempDir()
	bounds := logstore.Bounds{Each: each, Total: total}
	room := logstore.NewRoom(dir, bounds)
	mine, others := room.Share(), room.Share()
	path := func(name string, i int) string { return filepath.Join(dir, name, fmt.Sprint(i)) }
	var logs []*logstore.Log
	const limit, lines = 128 << 10, 3000
	for i := range 4 {
		l := open(t, path("mine", i), logstore.Options{MaxBytes: limit, Share: mine})
		logs = append(logs, l)
		if i == 3 {
			// A few lines that are written together leave room for one that is written
			// alone. Lines one by one fill it up.
			for n := range 300 {
				fillLog(t, logs[2], lines+n, 1)
			}
		}
		fillLog(t, l, 0, lines)
		if got := onDisk(t, filepath.Join(dir, "mine")); got > each {
			t.Fatalf("%d logs take %d bytes", i+1, got)
		}
	}
	for i, l := range logs[:2] { // these came first
		if first, last := seqs(t, l); last != lines || first == 0 || last-first < 500 {
			t.Errorf("log %d has entries %d to %d", i, first, last)
		}
	}
	if lost := logs[3].Lost(); lost != lines {
		t.Errorf("of a log without room %d lines are lost, not %d", lost, lines)
	}

	// The others have what is left in all.
	theirs := open(t, path("others", 0), logstore.Options{MaxBytes: each, Share: others})
	fillLog(t, theirs, 0, 5000)
	if first, last := seqs(t, theirs); last != 5000 || first == 0 {
		t.Errorf("the others' log has entries %d to %d", first, last)
	}
	if got := onDisk(t, dir); got > total || got < total/2 {
		t.Errorf("all logs take %d bytes", got)
	}

	// One goes on in its room while there is no other.
	fillLog(t, logs[0], lines, lines)
	if first, last := seqs(t, logs[0]); last != 2*lines || last-first < 200 {
		t.Errorf("it has gone on with entries %d to %d", first, last)
	}

	// Room that is given back is there for others.
	for _, l := range logs[:3] {
		if err := l.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	fillLog(t, logs[3], lines, lines)
	if first, last := seqs(t, logs[3]); last != 2*lines || last-first < 200 {
		t.Errorf("when there is room it has entries %d to %d", first, last)
	}

	// What is on the disk counts for the next program.
	for _, l := range []*logstore.Log{logs[3], theirs} {
		l.Close()
	}
	again := logstore.NewRoom(dir, bounds).Share()
	before := onDisk(t, dir)
	var there []*logstore.Log // a log counts from when it is opened
	for _, p := range []string{path("mine", 3), path("others", 0)} {
		there = append(there, open(t, p, logstore.Options{MaxBytes: each, Share: again}))
	}
	for _, l := range there {
		fillLog(t, l, 100_000, 3000)
	}
	fillLog(t, open(t, path("mine", 9), logstore.Options{MaxBytes: each, Share: again}), 0, 3000)
	if got := onDisk(t, dir); got > max(each, before) {
		t.Errorf("after a restart the logs of one share grow from %d to %d bytes", before, got)
	}
}

// Logs leave some of the disk free, for what matters more.
func TestLogsLeaveRoomOnTheDisk(t *testing.T) {
	dir := t.TempDir()
	const size = 4 << 20
	testkit.Tmpfs(t, dir, unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=0700", size))
	share := logstore.NewRoom(dir, logstore.Bounds{}).Share()
	for i := range 4 {
		l := open(t, filepath.Join(dir, fmt.Sprint(i)), logstore.Options{MaxBytes: size, Share: share})
		fillLog(t, l, 0, 20_000)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < size/10-64<<10 || free > size/2 {
		t.Errorf("%d of %d bytes are free", free, size)
	}
}

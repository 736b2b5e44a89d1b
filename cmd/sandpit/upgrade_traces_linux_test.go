package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// traces are what the sandboxes of a data directory have on the machine, those
// that are held ready included, so that it can be told whether all of it is gone.
type traces struct {
	mounts map[string]bool // of the host, before
	guests map[[2]uint64]bool
	ids    map[string]bool // of cgroups
	pids   map[int]bool    // of guests and of what they run
}

func (tr *traces) before(t *testing.T) {
	tr.guests, tr.ids, tr.pids = map[[2]uint64]bool{}, map[string]bool{}, map[int]bool{}
	tr.mounts = map[string]bool{}
	for _, line := range mountLines(t) {
		tr.mounts[line] = true
	}
}

func mountLines(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// fileOf tells one file from all others.
func fileOf(name string) ([2]uint64, bool) {
	var st syscall.Stat_t
	if syscall.Stat(name, &st) != nil {
		return [2]uint64{}, false
	}
	return [2]uint64{st.Dev, st.Ino}, true
}

// ended reports whether a process is gone, or waits to be reaped.
func ended(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, ok := strings.Cut(string(data), ") ")
	return err != nil || ok && (rest[0] == 'Z' || rest[0] == 'X')
}

// note adds what there is now.
func (tr *traces) note(t *testing.T, home string) {
	t.Helper()
	_ = filepath.WalkDir(filepath.Join(home, "guest"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if file, ok := fileOf(path); ok {
				tr.guests[file] = true
			}
		}
		return nil
	})
	for _, pid := range tr.alive() {
		tr.pids[pid] = true
		groups, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
		if _, rest, ok := strings.Cut(string(groups), "/sandpit-"); ok {
			id, _, _ := strings.Cut(rest, "\n")
			id, _, _ = strings.Cut(id, "/")
			tr.ids[id] = true
		}
	}
	if len(tr.pids) == 0 {
		t.Error("no process of a guest is found")
	}
}

// alive returns the processes that execute one of the guests.
func (tr *traces) alive() []int {
	var pids []int
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if file, ok := fileOf(dir + "/exe"); ok && tr.guests[file] {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// left complains about what is still there. What is held ready ends by itself
// when its server has, which takes a moment.
func (tr *traces) left(t *testing.T, home string) {
	t.Helper()
	t.Logf("all of %d sandboxes and %d processes of guests is to be gone", len(tr.ids), len(tr.pids))
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if len(tr.alive()) == 0 && len(groupsOf(tr.ids)) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("processes %v and cgroups %v are left", tr.alive(), groupsOf(tr.ids))
			break
		}
	}
	for _, line := range mountLines(t) {
		if !tr.mounts[line] && strings.Contains(line, home) {
			t.Errorf("a mount is left: %s", line)
		}
	}
	for _, dir := range []string{"run", "sandboxes", "images/kept"} {
		if entries, err := os.ReadDir(filepath.Join(home, dir)); err != nil && !errors.Is(err, os.ErrNotExist) || len(entries) > 0 {
			t.Errorf("%s has %v, %v", dir, entries, err)
		}
	}
	records, _ := filepath.Glob("/run/sandpit/ids/*")
	for _, name := range records {
		var owner struct {
			PID int `json:"pid"`
		}
		data, err := os.ReadFile(name)
		if err == nil && json.Unmarshal(data, &owner) == nil && tr.pids[owner.PID] && ended(owner.PID) {
			t.Errorf("%s is left: a range of ids that nobody has", name)
		}
	}
}

// schemaOf returns the schema of a data directory that no server uses.
func schemaOf(t *testing.T, home string) (version int) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(home, "state", "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), "PRAGMA user_version").Scan(&version); err != nil {
		t.Fatal(err)
	}
	return version
}

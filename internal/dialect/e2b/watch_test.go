package e2b

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// A watcher that nobody asks, and a namespace with many, hold a bounded amount of memory.
func TestWatchersAreBounded(t *testing.T) {
	one, n := new(watcher), 0
	for ; one.put(watchEvent{Name: strings.Repeat("x", 200)}) == nil; n++ {
		if n > maxWaiting {
			t.Fatal("a watcher has no bound")
		}
	}
	if n < 100 || one.size > maxWaiting {
		t.Errorf("%d events of %d bytes wait", n, one.size)
	}
	var all watchers
	add := func(namespace string) (string, error) {
		return all.add(&watcher{namespace: namespace, cancel: func() {}})
	}
	first, err := add("a")
	if err != nil {
		t.Fatal(err)
	}
	for range maxOfOne - 1 {
		if _, err := add("a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := add("a"); errcode.Of(err) != errcode.QuotaExceeded {
		t.Errorf("one more: %v", err)
	}
	if _, err := add("b"); err != nil {
		t.Errorf("of another namespace: %v", err)
	}
	all.remove(first)
	all.remove(first)
	if _, err := add("a"); err != nil {
		t.Errorf("after one was removed: %v", err)
	}
	for id := range all.all {
		all.remove(id)
	}
}

// A change is told in E2B's way: a rename by both names, and a file that was replaced as a write.
func TestEvents(t *testing.T) {
	for _, x := range []struct {
		e    sandpit.FileEvent
		want string
	}{
		{sandpit.FileEvent{Kind: sandpit.WatchRename, Path: "new", From: "old"}, "old RENAME, new CREATE"},
		{sandpit.FileEvent{Kind: sandpit.WatchRename, Path: "new"}, "new CREATE"},
		{sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "d/.sandpit-1"}, ""},
		{sandpit.FileEvent{Kind: sandpit.WatchRename, Path: "d/a", From: "d/.sandpit-1"}, "d/a CREATE, d/a WRITE"},
		{sandpit.FileEvent{Kind: sandpit.WatchChmod, Path: "a"}, "a CHMOD"},
	} {
		var got []string
		for _, e := range eventsOf(x.e) {
			got = append(got, e.Name+" "+strings.TrimPrefix(e.Type, "EVENT_TYPE_"))
		}
		if text := strings.Join(got, ", "); text != x.want {
			t.Errorf("%+v is told as %q, want %q", x.e, text, x.want)
		}
	}
}

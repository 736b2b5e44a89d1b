package e2b

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// A watcher that nobody asks, and a namespace with many, hold a bounded amount of memory.
func TestWatchersAreBounded(t *testing.T) {
	book := ledger.New(ledger.Bounds{})
	one, n := &watcher{memory: book.Account("a", 2*maxWaiting), idle: time.NewTimer(watcherIdle)}, 0
	for ; one.put(watchEvent{Name: strings.Repeat("x", 200)}) == nil; n++ {
		if n > maxWaiting {
			t.Fatal("a watcher has no bound")
		}
	}
	if n < 100 || one.size > maxWaiting {
		t.Errorf("%d events of %d bytes wait", n, one.size)
	}
	if book.Used() != int64(one.size) {
		t.Errorf("%d bytes are charged, want %d", book.Used(), one.size)
	}
	if events, err := one.take(); len(events) != n || err != nil || book.Used() != 0 {
		t.Errorf("%d events are taken, %v; %d bytes are still charged", len(events), err, book.Used())
	}
	if one.memory = book.Account("a", 1<<10); one.put(watchEvent{Name: strings.Repeat("x", 1<<10)}) == nil {
		t.Error("more waits than is free")
	}
	if err := one.put(watchEvent{Name: "x"}); err != nil {
		t.Error(err)
	}
	if one.forget(); book.Used() != 0 || one.put(watchEvent{Name: "x"}) == nil {
		t.Errorf("of a watcher that is gone, %d bytes are charged", book.Used())
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

// A few namespaces with as many watchers as they may have do not keep others from having some: the one that nobody has asked for
// longest makes room.
func TestWatchersAreSharedOut(t *testing.T) {
	var all watchers
	ended := map[string]bool{}
	add := func(namespace string, i int) (string, error) {
		name := fmt.Sprint(namespace, i)
		return all.add(&watcher{namespace: namespace, sandbox: name, cancel: func() { ended[name] = true }})
	}
	ids := map[string]string{}
	for n := range maxWatchers / maxOfOne {
		for i := range maxOfOne {
			namespace := string(rune('a' + n))
			id, err := add(namespace, i)
			if err != nil {
				t.Fatal(err)
			}
			ids[fmt.Sprint(namespace, i)] = id
		}
	}
	all.remove(ids["b0"])
	if _, err := add("b", maxOfOne); err != nil || len(ended) != 1 {
		t.Errorf("%v, and %d have ended", err, len(ended))
	}
	for name, id := range ids { // all but one of each namespace are used
		if one := all.all[id]; one != nil && !strings.HasSuffix(name, "7") || name == "a17" {
			all.all[id].asked = time.Now().Add(time.Minute)
		}
	}
	clear(ended)
	const newcomers = maxWatchers/maxOfOne + 1 // after which there is room for one less of each
	for i := range newcomers {
		if _, err := add("new", i); err != nil {
			t.Fatal(err)
		}
	}
	count := map[string]int{}
	for _, one := range all.all {
		count[one.namespace]++
	}
	for namespace, n := range count {
		if want := maxOfOne - 2; namespace == "new" && n != newcomers || namespace != "new" && n < want {
			t.Errorf("%s has %d", namespace, n)
		}
	}
	if len(all.all) != maxWatchers || len(ended) != newcomers || !ended["a7"] || ended["a0"] {
		t.Errorf("there are %d; %v have ended", len(all.all), ended)
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
		{sandpit.FileEvent{Kind: sandpit.WatchChmod}, ". CHMOD"},
		{sandpit.FileEvent{Kind: sandpit.WatchRemove}, ". REMOVE"},
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

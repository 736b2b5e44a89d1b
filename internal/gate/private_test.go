package gate

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// withDetail is an error with something for the log alone.
type withDetail struct{ error }

func (withDetail) Detail() string  { return "asked 10.9.8.7" }
func (e withDetail) Unwrap() error { return e.error }

// An error that names files of the server is told to its administrators alone, and
// its details to the log.
func TestPrivateErrors(t *testing.T) {
	file := &fs.PathError{Op: "open", Path: "/srv/data/images/x", Err: fs.ErrPermission}
	for _, c := range []struct {
		err    error
		admin  bool
		status int
		code   string
		tells  bool // the file
	}{
		{file, false, 403, "permission", false},
		{file, true, 403, "permission", true},
		{fmt.Errorf("using the state in /srv/data/state: %w", sandpit.ErrUnavailable), false, 503, "unavailable", false},
		{sandpit.WithHint(sandpit.ErrNotFound, "look into /srv/data/images"), false, 404, "not_found", false},
		{fmt.Errorf(`mounting "/srv/data": %w`, sandpit.ErrForbidden), false, 403, "forbidden", true}, // as he wrote it
		{&fs.PathError{Op: "mkdir", Path: "/srv/data/x", Err: syscall.ENOSPC}, true, 507, "disk_full", false},
		{fmt.Errorf("%w (%w)", sandpit.ErrDiskFull, syscall.EDQUOT), false, 507, "disk_full", false},
		{&fs.PathError{Op: "write", Path: "/tmp/x", Err: sandpit.ErrNoSpace}, false, 507, "no_space", false},
		{fmt.Errorf("making a cgroup: %w: %w", sandpit.ErrExhausted, syscall.ENOSPC), false, 503, "overloaded", false},
		{withDetail{sandpit.ErrForbidden}, false, 403, "forbidden", false},
	} {
		log := new(testkit.Buffer)
		opts := Options{DataDir: "/srv/data", Log: slog.New(slog.NewTextHandler(log, nil))}
		call := &Call{gate: New(opts), Ctx: t.Context(), ID: "id", Caller: Caller{Admin: c.admin}}
		e := call.Describe(c.err)
		if e.Status != c.status || e.Code != c.code || e.Message == "" {
			t.Errorf("%v: %+v", c.err, e)
		}
		if tells := strings.Contains(e.Message+e.Hint+e.Path, "/srv/data"); tells != c.tells {
			t.Errorf("%v: %+v", c.err, e)
		}
		if !c.tells && strings.Contains(c.err.Error(), "/srv/data") && !strings.Contains(log.String(), "/srv/data") {
			t.Errorf("%v: the log says %q", c.err, log)
		}
		if _, ok := c.err.(withDetail); ok && !strings.Contains(log.String(), "10.9.8.7") {
			t.Errorf("the log says %q", log)
		}
	}
}

// A ticket ends after its time, with its key, or when it is used. Tickets are bounded for each
// namespace and in all, and administrators have room of their own.
func TestTicketsAreBounded(t *testing.T) {
	var all tickets
	now := time.Now()
	add := func(secret string, c Caller, until time.Time) bool {
		return all.add(secret, &ticket{caller: c, until: until})
	}
	later := now.Add(time.Hour)
	k := Caller{Key: "k", Namespace: "n"}
	add("late", k, now.Add(-1))
	if _, why := all.use("late", target{}); !strings.Contains(why, "expired") {
		t.Errorf("a late one: %q", why)
	}
	add("ended", Caller{Key: "k", Namespace: "n", Expires: now.Add(-1)}, later)
	if _, why := all.use("ended", target{}); !strings.Contains(why, "its key has ended") {
		t.Errorf("one of a key that has expired: %q", why)
	}
	for i := range maxTickets - 1 {
		if !add(fmt.Sprint(i), k, later) {
			t.Fatalf("the namespace gets only %d", i)
		}
	}
	if add("more", k, later) || add("more", Caller{Key: "k2", Namespace: "n"}, later) || !add("other", Caller{Key: "l", Namespace: "m"}, later) {
		t.Error("the bound is not that of each namespace")
	}
	if who, why := all.use("other", target{}); why != "" || who.Key != "l" {
		t.Errorf("that of the other key: %+v %q", who, why)
	}
	if _, why := all.use("other", target{}); !strings.Contains(why, "was used") {
		t.Errorf("once more: %q", why)
	}
	if _, why := all.use("0", target{hash: [sha256.Size]byte{1}}); !strings.Contains(why, "another request") {
		t.Errorf("for another request: %q", why)
	}
	if !add("more", k, later) {
		t.Error("used tickets count")
	}
	for i := range allTickets - all.total {
		if !add(fmt.Sprint("many", i), Caller{Key: "k", Namespace: fmt.Sprint(i / maxTickets)}, later) {
			t.Fatalf("all get only %d", i)
		}
	}
	if add("one more", Caller{Key: "l", Namespace: "m"}, later) || !add("admin", Caller{Key: "a", Admin: true}, later) {
		t.Error("the bound is not that of all namespaces")
	}
	all.revoke("k")
	if !add("again", k, later) {
		t.Error("revoked tickets count")
	}
	if len(all.held) != 2 || all.total != 1 || len(all.count) != 2 {
		t.Errorf("%d are held, %v", len(all.held), all.count)
	}
	for i := range 3 * allTickets { // each is used
		add(fmt.Sprint(i), k, later)
		_, _ = all.use(fmt.Sprint(i), target{})
	}
	if len(all.order) > 2*allTickets {
		t.Errorf("%d that were used are held", len(all.order))
	}
}

// The keys of one namespace hold no more together than half of all, and leave the others their part.
func TestNamespacesHoldHalf(t *testing.T) {
	g := &Gate{}
	g.limiter.init(Limits{Memory: 100, TotalMemory: 500, Spool: 400, TotalSpool: 600}.withDefaults())
	call := func(key, namespace string) *Call {
		return &Call{gate: g, Caller: Caller{Key: key, Namespace: namespace}}
	}
	for kind, all := range map[int]int64{InMemory: 250, OnDisk: 400} { // at least what one caller may
		first, second, third, other := call("k1", "a"), call("k2", "a"), call("k3", "a"), call("k4", "b")
		for _, c := range []struct {
			call *Call
			n    int64
			ok   bool
		}{
			{first, 100, true},
			{second, 100, true},
			{third, all - 200 + 1, false},
			{third, min(all-200, 100), true},
			{other, 100, true},
		} {
			if err := c.call.Hold(kind, c.n); (err == nil) != c.ok {
				t.Errorf("holding %d of kind %d by %s: %v", c.n, kind, c.call.Caller.Key, err)
			}
		}
		for _, c := range []*Call{first, second, third, other} {
			g.limiter.release(c)
		}
		if len(g.limiter.spaces) != 0 {
			t.Errorf("after the ends of all calls %v is held", g.limiter.spaces)
		}
	}
}

// What requests with previews hold counts as their key's, and is at most half of what it may hold.
// The other half stays for its owner, and all of it comes back.
func TestPreviewsHoldHalf(t *testing.T) {
	g := &Gate{}
	g.limiter.init(Limits{Memory: 100, TotalMemory: 1000, Spool: 40, TotalSpool: 1000}.withDefaults())
	owner := Caller{Key: "k1"}
	preview := owner
	preview.Preview = "p1"
	call := func(who Caller) *Call { return &Call{gate: g, Caller: who} }
	for kind, all := range map[int]int64{InMemory: 100, OnDisk: 40} {
		first, second, own := call(preview), call(preview), call(owner)
		for _, c := range []struct {
			call *Call
			n    int64
			ok   bool
		}{
			{first, all/2 + 1, false},
			{first, all / 2, true},
			{second, 1, false},
			{own, all/2 + 1, false},
			{own, all / 2, true},
			{own, 0, true},
		} {
			if err := c.call.Hold(kind, c.n); (err == nil) != c.ok {
				t.Errorf("holding %d of kind %d: %v", c.n, kind, err)
			}
		}
		for _, c := range []*Call{first, second, own} {
			g.limiter.release(c)
		}
		if held := g.limiter.of(preview).held; held != [heldKinds]int64{} || g.limiter.of(owner).held != held || g.limiter.held != held {
			t.Errorf("after the ends of all calls %v is held", held)
		}
	}
}

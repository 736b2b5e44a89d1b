package network

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A table that is full forgets names that nobody asked for lately, and gives none of their
// addresses to another name before all others.
func TestFullTableOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNames()
		held, _, _ := n.address("held.test")
		release := n.hold("held.test")
		first, first6, _ := n.address("first.test")
		for i := range maxNames - 2 {
			if _, _, ok := n.address(fmt.Sprintf("%d.test", i)); !ok {
				t.Fatalf("there is no room for name %d", i)
			}
		}
		if _, _, ok := n.address("more.test"); ok {
			t.Fatal("a name was forgotten whose address programs still use")
		}
		if a, _, ok := n.address("first.test"); !ok || a != first {
			t.Errorf("a name has got another address: %s, then %s", first, a)
		}
		time.Sleep(keepName + time.Second)
		seen := map[string]bool{}
		for i := range lastNumber - maxNames {
			a, _, ok := n.address(fmt.Sprintf("new%d.test", i))
			if !ok {
				time.Sleep(keepName + time.Second)
				if a, _, ok = n.address(fmt.Sprintf("new%d.test", i)); !ok {
					t.Fatalf("there is no room for name %d after a while", i)
				}
			}
			if seen[a.String()] || a == first || a == held {
				t.Fatalf("the address %s was given again", a)
			}
			seen[a.String()] = true
		}
		if name, given := n.name(first); name != "" || !given {
			t.Errorf("the address of a name that was forgotten is %q", name)
		}
		if name, given := n.name(first6); name != "" || !given {
			t.Errorf("the address of a name that was forgotten is %q", name)
		}
		if name, _ := n.name(held); name != "held.test" {
			t.Errorf("the address of a connection is %q", name)
		}
		release()
		for i := range 2 * maxNames {
			if i%maxNames == 0 {
				time.Sleep(keepName + time.Second)
			}
			n.address(fmt.Sprintf("last%d.test", i))
		}
		if name, _ := n.name(held); name == "held.test" {
			t.Error("a name is never forgotten once a connection has used it")
		}
		if len(n.byName) > maxNames || len(n.byAddr) != len(n.byName) || n.asked.Len() != len(n.byName) {
			t.Errorf("the table has %d names, %d addresses, %d in order", len(n.byName), len(n.byAddr), n.asked.Len())
		}
	})
}

// The two questions of a lookup, for IPv4 and for IPv6, are one denial.
func TestOneDenialForEachLookup(t *testing.T) {
	var fs flows
	for _, q := range []lookup{{"a.test", "A"}, {"a.test", "AAAA"}, {"a.test", "AAAA"}, {"a.test", "A"}, {"b.test", "A"}, {"a.test", "A"}, {"a.test", "A"}} {
		fs.refused(q.name, q.question, "no rule allows it")
	}
	counts := map[string]int64{}
	for _, d := range fs.log().Denials {
		counts[d.Destination] = d.Count
	}
	if counts["a.test"] != 4 || counts["b.test"] != 1 {
		t.Errorf("the denials are %v", counts)
	}
}

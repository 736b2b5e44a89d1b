package network

import (
	"container/list"
	"net/netip"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// names gives each name an address, and finds the name of an address again. A name that nobody
// asks for is forgotten when there are too many. Its address is given to another name only after
// all the others, so that a connection does not reach another name than it was made for. It is
// safe for concurrent use.
type names struct {
	mu     sync.Mutex
	byName map[string]*named
	byAddr map[uint16]*named
	asked  *list.List // of *named, the latest first
	last   uint16     // number that was given
}

// named is a name that has an address.
type named struct {
	name   string
	number uint16
	asked  time.Time // for the last time
	flows  int       // connections to it
	place  *list.Element
}

const (
	// maxNames is the number of names that one sandbox may have resolved: with 253 bytes
	// each, and their maps, they take 2 MiB.
	maxNames = 4096

	keepName   = 2 * dnsTTL * time.Second // after it was asked for
	lastNumber = 0xfffe
)

func newNames() *names {
	return &names{byName: map[string]*named{}, byAddr: map[uint16]*named{}, asked: list.New()}
}

// address returns the addresses of a name, or false if there are too many names that have been
// asked for lately.
func (n *names) address(name string) (a4, a6 netip.Addr, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.byName[name]
	if e == nil {
		if len(n.byName) >= maxNames && !n.forget() {
			return a4, a6, false
		}
		e = &named{name: name, number: n.free()}
		e.place = n.asked.PushFront(e)
		n.byName[name], n.byAddr[e.number] = e, e
	}
	e.asked = time.Now()
	n.asked.MoveToFront(e.place)
	b4 := netaddr.Names4().Addr().As4()
	b6 := netaddr.Names6().Addr().As16()
	b4[2], b4[3] = byte(e.number>>8), byte(e.number)
	b6[14], b6[15] = b4[2], b4[3]
	return netip.AddrFrom4(b4), netip.AddrFrom16(b6), true
}

// free returns the next number that is not given. Precondition: n.mu is held.
func (n *names) free() uint16 {
	for {
		if n.last++; n.last > lastNumber {
			n.last = 1
		}
		if n.byAddr[n.last] == nil {
			return n.last
		}
	}
}

// forget forgets the name that was not asked for the longest, unless a program may still use its
// address. Precondition: n.mu is held.
func (n *names) forget() bool {
	for place := n.asked.Back(); place != nil; place = place.Prev() {
		e, _ := place.Value.(*named)
		if time.Since(e.asked) < keepName {
			return false
		}
		if e.flows == 0 {
			n.asked.Remove(place)
			delete(n.byName, e.name)
			delete(n.byAddr, e.number)
			return true
		}
	}
	return false
}

// hold keeps a name, if it has an address, until release is called.
func (n *names) hold(name string) (release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.byName[name]
	if e == nil {
		return func() {}
	}
	e.flows++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		e.flows--
	}
}

// name returns the name of an address; given is false for an address that is not of names at
// all, and the name is empty for one that was not given to any.
func (n *names) name(a netip.Addr) (name string, given bool) {
	if !netaddr.Names4().Contains(a) && !netaddr.Names6().Contains(a) {
		return "", false
	}
	b := a.AsSlice()
	if a.Is6() && [6]byte(b[8:14]) != [6]byte{} {
		return "", true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.byAddr[uint16(b[len(b)-2])<<8|uint16(b[len(b)-1])]; e != nil {
		return e.name, true
	}
	return "", true
}

package network

import (
	"net/netip"
	"sync"

	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// names gives each name an address, and finds the name of an address again. An address is
// given once: a name that is forgotten gets another one, so that a connection never reaches
// another name than it was made for. It is safe for concurrent use.
type names struct {
	mu     sync.Mutex
	byName map[string]uint16
	byAddr map[uint16]string
	next   uint32 // the number of the next address
}

// maxNames is the number of names that one sandbox may have resolved: with 253 bytes each,
// and their maps, they take 2 MiB.
const maxNames = 4096

func newNames() *names {
	return &names{byName: map[string]uint16{}, byAddr: map[uint16]string{}, next: 1}
}

// address returns the addresses of a name, or false if there are too many names.
func (n *names) address(name string) (a4, a6 netip.Addr, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i, known := n.byName[name]
	if !known {
		if len(n.byName) >= maxNames || n.next > 0xfffe {
			return a4, a6, false
		}
		i = uint16(n.next)
		n.next++
		n.byName[name], n.byAddr[i] = i, name
	}
	b4 := netaddr.Names4().Addr().As4()
	b6 := netaddr.Names6().Addr().As16()
	b4[2], b4[3] = byte(i>>8), byte(i)
	b6[14], b6[15] = b4[2], b4[3]
	return netip.AddrFrom4(b4), netip.AddrFrom16(b6), true
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
	return n.byAddr[uint16(b[len(b)-2])<<8|uint16(b[len(b)-1])], true
}

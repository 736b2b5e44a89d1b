package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// errPrivate is the error of an address that is not of the public internet.
var errPrivate = errors.New("its address is not a public one, and private webhooks are not allowed")

// dialer returns a dialer that refuses addresses that are not public. It looks
// at the address of each connection that is about to be made, after names were
// resolved, so that no name, redirect or second answer of a DNS server leads
// elsewhere.
func dialer(private bool) *net.Dialer {
	d := &net.Dialer{Timeout: 10 * time.Second}
	if !private {
		d.ControlContext = func(_ context.Context, network, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || network != "tcp4" && network != "tcp6" {
				return fmt.Errorf("%s %s: %w", network, address, errPrivate)
			}
			if !public(at.Addr()) {
				return errPrivate
			}
			return nil
		}
	}
	return d
}

// public reports whether an address is of the public internet: of the IANA
// special-purpose registries (RFC 6890) nothing is, nor is the address at which
// Azure answers its own machines.
func public(a netip.Addr) bool {
	a = a.Unmap()
	if a.Zone() != "" {
		return false
	}
	if a.Is6() {
		return public6(a.As16())
	}
	b := a.As4()
	switch {
	case b[0] == 0, b[0] == 10, b[0] == 127, b[0] >= 224: // this network, private, loopback, multicast and reserved
		return false
	case b[0] == 100 && b[1]&0xc0 == 64: // 100.64.0.0/10, shared by carriers; some clouds' metadata
		return false
	case b[0] == 169 && b[1] == 254: // link-local; most clouds' metadata
		return false
	case b[0] == 172 && b[1]&0xf0 == 16, b[0] == 192 && b[1] == 168: // private
		return false
	case b[0] == 192 && b[1] == 0 && (b[2] == 0 || b[2] == 2): // protocol assignments, documentation
		return false
	case b[0] == 192 && b[1] == 88 && b[2] == 99: // once relays to IPv6
		return false
	case b[0] == 198 && b[1]&0xfe == 18: // benchmarks
		return false
	case b[0] == 198 && b[1] == 51 && b[2] == 100, b[0] == 203 && b[1] == 0 && b[2] == 113: // documentation
		return false
	case b == [4]byte{168, 63, 129, 16}:
		return false
	}
	return true
}

// public6: only 2000::/3 is routed, and of that not what stands for something
// else.
func public6(b [16]byte) bool {
	switch {
	case b[0]&0xe0 != 0x20:
		return false
	case b[0] == 0x20 && b[1] == 0x01 && b[2]&0xfe == 0: // 2001::/23, with Teredo
		return false
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0x0d && b[3] == 0xb8: // documentation
		return false
	case b[0] == 0x20 && b[1] == 0x02: // 6to4, which has an IPv4 address in it
		return false
	case b[0] == 0x3f && b[1] == 0xff && b[2]&0xf0 == 0: // 3fff::/20, documentation
		return false
	}
	return true
}

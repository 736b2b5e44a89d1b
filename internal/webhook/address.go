package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// errPrivate is the error of an address that is not of the public internet.
var errPrivate = errors.New("its address is not public, and private webhooks are not allowed")

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
			if !netaddr.IsPublic(at.Addr()) {
				return errPrivate
			}
			return nil
		}
	}
	return d
}

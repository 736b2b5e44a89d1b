package server

import (
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Address is the address of a server.
type Address struct {
	Network string // "unix" or "tcp"
	Host    string // a path, or HOST:PORT
}

// ParseAddress reads "unix:///run/sandpit.sock", "unix:/run/sandpit.sock", an absolute path, "HOST:PORT"
// or ":PORT", which is every address of the machine. It returns ErrInvalid for anything
// else.
func ParseAddress(text string) (Address, error) {
	path, isUnix := strings.CutPrefix(text, "unix:")
	switch {
	case isUnix || filepath.IsAbs(text):
		path = filepath.Clean(strings.TrimPrefix(path, "//"))
		if !filepath.IsAbs(path) || path == "/" || strings.ContainsRune(path, 0) {
			return Address{}, badAddress(text)
		}
		return Address{"unix", path}, nil
	case strings.Contains(text, "/"):
		return Address{}, badAddress(text)
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || port == "" {
		return Address{}, badAddress(text)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return Address{}, badAddress(text)
	}
	return Address{"tcp", net.JoinHostPort(host, port)}, nil
}

func badAddress(text string) error {
	return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "%q is not a listen address", text), "write unix:///PATH or HOST:PORT")
}

// Loopback reports whether the address can be reached only from this machine. The only name
// that counts as loopback is localhost: others may resolve differently later.
func (a Address) Loopback() bool {
	if a.Network == "unix" {
		return true
	}
	host, _, _ := net.SplitHostPort(a.Host)
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// String returns the form that ParseAddress reads.
func (a Address) String() string {
	if a.Network == "unix" {
		return "unix://" + a.Host
	}
	return a.Host
}

package engine

import (
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// rootFiles are files that every sandbox has. The name server is reached only with egress,
// which a running sandbox can be given, too; without, questions fail at once.
func rootFiles(hostname string) []driver.File {
	return []driver.File{
		{Path: "/etc/hostname", Mode: 0o644, Data: []byte(hostname + "\n")},
		{Path: "/etc/hosts", Mode: 0o644, Data: []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + hostname + "\n")},
		{Path: "/etc/resolv.conf", Mode: 0o644, Data: []byte("nameserver " + netaddr.Gateway4().String() + "\n")},
	}
}

// sudoFile is the program sudo of sandboxes with root inside: the guest, under another name. A
// driver whose guest is not a program of its own has none.
func (e *Engine) sudoFile() []driver.File {
	g, ok := e.opts.Driver.(driver.GuestProgrammer)
	if !ok || g.GuestProgram() == nil {
		return nil
	}
	return []driver.File{{Path: "/usr/local/bin/sudo", Mode: 0o755, Data: g.GuestProgram()}}
}

// maxVolumes bounds the number of an image's volumes.
const maxVolumes = 64

// volumes returns the valid directories of an image's volumes: clean absolute paths below
// the root and outside of what the sandbox itself makes.
func volumes(paths []string) []string {
	var dirs []string
	for _, p := range paths {
		if len(dirs) == maxVolumes || !path.IsAbs(p) || strings.ContainsRune(p, 0) || len(p) > 4000 {
			continue
		}
		p = path.Clean(p)
		top, _, _ := strings.Cut(p[1:], "/")
		if p == "/" || top == "proc" || top == "sys" || top == "dev" {
			continue
		}
		dirs = append(dirs, p)
	}
	return dirs
}

// hostnameFor makes a host name from a sandbox's name, which may have characters that a
// host name may not (RFC 1123, section 2.1).
func hostnameFor(name string) string {
	host := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '-':
			return r
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name)
	if host = strings.Trim(host, "-"); host == "" {
		return "sandbox"
	}
	return host
}

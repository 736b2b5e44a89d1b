package apart

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"
)

// resolvConf names this machine's name servers: see resolv.conf(5).
const resolvConf = "/etc/resolv.conf"

const (
	keepServers    = 5 * time.Second // how long they are known; Go reads the file as often
	maxServers     = 3               // that are asked, as C libraries and Go do (MAXNS)
	maxServersFile = 64 << 10        // bytes of the file that are read
)

// nameServers finds this machine's name servers where Go can't. Landlock's rules are for the directories that exist when the
// process starts. The file may lead to one that is made later, as at boot, or made anew. Then the server opens it.
type nameServers struct {
	file string
	open func(context.Context) (*os.File, error) // asks the server for the file

	using chan struct{}    // has room for the one that uses the rest
	until time.Time        // when all and err are too old
	all   []netip.AddrPort // none: the file names none
	err   error
}

func newNameServers(file string, open func(context.Context) (*os.File, error)) *nameServers {
	return &nameServers{file: file, open: open, using: make(chan struct{}, 1)}
}

// second is the name server that Go asks if the first fails, where it knows none (defaultNS of package net).
const second = "[::1]:53"

// choose returns the name server to ask where Go would ask server: see upstream.Way.AskBy.
func (s *nameServers) choose(ctx context.Context, server string) (string, error) {
	file, err := os.Open(s.file)
	if err == nil {
		file.Close()
	}
	if !errors.Is(err, fs.ErrPermission) {
		return server, nil // as the file says, or without one
	}
	select {
	case s.using <- struct{}{}:
		defer func() { <-s.using }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if time.Now().After(s.until) {
		s.all, s.err = s.read()
		s.until = time.Now().Add(keepServers)
	}
	if s.err != nil || len(s.all) == 0 {
		return server, s.err // Go's own default, where the file names none
	}
	if server == second {
		return s.all[min(1, len(s.all)-1)].String(), nil
	}
	return s.all[0].String(), nil
}

// read reads the file of the server.
func (s *nameServers) read() ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	file, err := s.open(ctx)
	if err != nil || file == nil {
		return nil, errors.New("the name servers of this machine are not known; the server's log says more")
	}
	defer file.Close()
	return parseServers(io.LimitReader(file, maxServersFile))
}

// parseServers returns the name servers of a resolv.conf.
func parseServers(file io.Reader) (all []netip.AddrPort, err error) {
	lines := bufio.NewScanner(file)
	for lines.Scan() && len(all) < maxServers {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			all = append(all, netip.AddrPortFrom(a, 53))
		}
	}
	return all, lines.Err()
}

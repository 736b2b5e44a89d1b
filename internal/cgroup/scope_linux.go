package cgroup

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"golang.org/x/sys/unix"
)

// scopeTime bounds how long systemd may take to make a scope.
const scopeTime = 30 * time.Second

// enterScope asks the user's systemd for a scope with this process in it and
// returns its directory.
func (l *Layout) enterScope(p *place, id string) (string, error) {
	unit := prefix + id + ".scope"
	if err := startScope(l.bus, unit, unix.Geteuid(), l.pid); err != nil {
		return "", sandpit.WithHint(fmt.Errorf("creating the systemd scope %s: %w", unit, err),
			"check that `systemd-run --user --scope -p Delegate=yes true` works, or run as root")
	}
	self, err := readFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for _, h := range parseSelf(self) {
		if !h.v2 {
			continue
		}
		dir, ok := p.mount.own(h.path)
		if !ok || !strings.HasSuffix(dir, "/"+unit) {
			return "", fmt.Errorf("systemd made the scope %s but left this process in %s", unit, h.path)
		}
		avail, err := readFile(dir + "/cgroup.controllers")
		if err != nil {
			return "", err
		}
		if missing := p.ctrls &^ parseCtrls(avail, ' '); missing != 0 {
			return "", fault.Errorf(sandpit.ErrUnsupported, "systemd made the scope %s without the controllers %s", unit, missing)
		}
		return dir, nil
	}
	return "", errors.New("no cgroup v2")
}

const (
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = "/org/freedesktop/systemd1"
	systemdManager = "org.freedesktop.systemd1.Manager"
)

// startScope calls Manager.StartTransientUnit (org.freedesktop.systemd1(5)) and
// waits until the job has been done: by then pid is in the scope.
func startScope(socket, unit string, uid, pid int) error {
	c, err := dialBus(socket, uid, time.Now().Add(scopeTime))
	if err != nil {
		return err
	}
	defer c.Close()

	// JobRemoved is sent to whoever has subscribed, and passed on by the bus
	// to whoever has a match.
	match := wire{}
	match.str("type='signal',sender='" + systemdName + "',interface='" + systemdManager + "',member='JobRemoved'")
	start := wire{}
	start.str(unit)
	start.str("fail")
	start.array(8, func() {
		property := func(name, sig string, value func()) {
			start.align(8)
			start.str(name)
			start.sig(sig)
			value()
		}
		property("Description", "s", func() { start.str("Sandpit sandboxes") })
		property("Delegate", "b", func() { start.u32(1) })
		property("CollectMode", "s", func() { start.str("inactive-or-failed") })
		property("PIDs", "au", func() { start.array(4, func() { start.u32(uint32(pid)) }) })
	})
	start.array(8, func() {}) // no auxiliary units

	var call uint32
	for _, m := range []*message{
		{
			typ: busCall, dest: "org.freedesktop.DBus", path: "/org/freedesktop/DBus", iface: "org.freedesktop.DBus",
			member: "AddMatch", signature: "s", body: match.buf,
		},
		{typ: busCall, dest: systemdName, path: systemdPath, iface: systemdManager, member: "Subscribe"},
		{
			typ: busCall, dest: systemdName, path: systemdPath, iface: systemdManager,
			member: "StartTransientUnit", signature: "ssa(sv)a(sa(sv))", body: start.buf,
		},
	} {
		if call, err = c.send(m); err != nil {
			return err
		}
	}
	for {
		m, err := readMessage(c.in)
		if err != nil {
			return err
		}
		switch {
		case m.typ == busError && m.replySerial == call:
			text := ""
			if s, err := m.strings("s"); err == nil {
				text = s[0]
			}
			return fmt.Errorf("%s: %s", m.errorName, text)
		case m.typ == busSignal && m.member == "JobRemoved" && m.iface == systemdManager:
			s, err := m.strings("uoss") // id, job, unit, result
			if err != nil {
				return err
			}
			if s[2] != unit {
				continue
			}
			if s[3] != "done" {
				return fmt.Errorf("the job ended with %q", s[3])
			}
			return nil
		}
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// userNet is another program that gives a network namespace a network without rights of root.
type userNet struct {
	name    string
	file    string
	err     error // why it can't be had here
	connect func(pid string) []string
}

// userNetHost is the address at which programs in the namespace reach the loopback of the machine.
const userNetHost = "10.0.2.2"

// userNets finds them. Both get the largest MTU, which makes them fastest.
func userNets() []*userNet {
	all := []*userNet{
		{name: "slirp4netns", connect: func(pid string) []string {
			return []string{"--configure", "--mtu=65520", pid, "tap0"}
		}},
		{name: "pasta", connect: func(pid string) []string {
			return []string{
				"--foreground", "--quiet", "--runas", strconv.Itoa(os.Geteuid()), "--config-net", "--ns-ifname", "tap0",
				"--address", "10.0.2.100", "--netmask", "24", "--gateway", userNetHost,
				"--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none", pid,
			}
		}},
	}
	for _, u := range all {
		if u.file, u.err = realProgram(u.name); u.err != nil {
			continue
		}
		if v := versionOf(u.file, "--version"); v != "" {
			u.name += " " + v
		}
	}
	return all
}

// userNetHolder is a network namespace that has a network.
type userNetHolder struct {
	enter   []string // before a command line that runs in it
	program *exec.Cmd
	sleep   *exec.Cmd
}

// hold makes a network namespace and waits until it has its network.
func (u *userNet) hold(ctx context.Context) (_ *userNetHolder, err error) {
	if u.err != nil {
		return nil, u.err
	}
	h := &userNetHolder{sleep: exec.CommandContext(ctx, "unshare", "--user", "--map-root-user", "--net", "sleep", "1000")}
	if err := h.sleep.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	pid := strconv.Itoa(h.sleep.Process.Pid)
	proc := "/proc/" + pid
	// Before exec, the process is still in the namespaces of this one.
	if err := eventually(ctx, func() bool {
		name, _ := os.ReadFile(proc + "/comm")
		return string(name) == "sleep\n"
	}); err != nil {
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	h.enter = []string{"nsenter", "--user", "--net", "--preserve-credentials", "--target", pid}
	h.program = exec.CommandContext(ctx, u.file, u.connect(pid)...)
	if err := h.program.Start(); err != nil {
		return nil, err
	}
	if err := eventually(ctx, func() bool {
		routes, _ := os.ReadFile(proc + "/net/route")
		return bytes.Contains(routes, []byte("tap0\t00000000\t")) // the default route
	}); err != nil {
		return nil, fmt.Errorf("waiting for %s: %w", u.name, err)
	}
	return h, nil
}

func (h *userNetHolder) close() {
	for _, cmd := range []*exec.Cmd{h.program, h.sleep} {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
}

// memory is the memory of the processes of n namespaces, for each of them in MiB.
func (u *userNet) memory(ctx context.Context, n int) *series {
	var held []*userNetHolder
	defer func() {
		for _, h := range held {
			h.close()
		}
	}()
	for range n {
		h, err := u.hold(ctx)
		if err != nil {
			return &series{err: err}
		}
		held = append(held, h)
	}
	var all pss
	for _, h := range held {
		p, err := readPSS(h.program.Process.Pid)
		if err != nil {
			return &series{err: err}
		}
		all = all.plus(p)
	}
	return &series{values: []float64{mebibytes(all.all) / float64(n)}}
}

// run runs a command in the namespace.
func (h *userNetHolder) run(ctx context.Context, argv []string) error {
	argv = append(h.enter[:len(h.enter):len(h.enter)], argv...)
	return exec.CommandContext(ctx, argv[0], argv[1:]...).Run()
}

// eventually waits until something holds, for five seconds at most.
func eventually(ctx context.Context, holds func() bool) error {
	for start := time.Now(); !holds(); time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(start) > 5*time.Second {
			return errors.New("it did not happen within 5 s")
		}
	}
	return nil
}

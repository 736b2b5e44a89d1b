package hosttest

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"strings"
)

// A Host is one environment on a machine: an account, a login, its rights.
type Host struct {
	Name string

	// Become is the function of run.sh that turns into this host.
	Become string

	// Traits are checked by the suite in package probe, so that a host that does not match
	// its name fails.
	Traits string

	// Refuses is set if no sandbox can be made: then the error and its hint are tested.
	Refuses bool

	// Only names the suites that run here; all of them run if it is empty.
	Only []string
}

// A Place carries hosts.
type Place struct {
	Name  string
	Hosts []Host

	// Missing returns why this place is not available on this machine, or "".
	Missing func() string

	// Run starts the place, runs the jobs there, and writes the output of run.sh to out.
	// It leaves nothing behind. An *Unavailable means that the place could not be made for
	// a reason outside of this module.
	Run func(ctx context.Context, b *Bundle, jobs string, opt Options, out io.Writer) error
}

// Unavailable is the error of a place that is not available here.
type Unavailable struct{ Why string }

func (e *Unavailable) Error() string { return e.Why }

// Options hold for all suites of a run.
type Options struct {
	// Quick is the quick form: the suites that are quick, and -test.short.
	Quick bool

	// Guard ends a suite that hangs, in seconds.
	Guard int
}

func (o Options) env() []string {
	env := []string{fmt.Sprintf("HOSTTEST_GUARD=%d", o.Guard)}
	if o.Quick {
		env = append(env, "HOSTTEST_SHORT=1")
	}
	return env
}

// shell is env for a shell to read.
func (o Options) shell() string {
	return "export " + strings.Join(o.env(), " ") + "\n"
}

//go:embed run.sh
var runScript string

// Places returns every place that carries hosts, the cheapest first.
func Places() []Place {
	never := func() string { return "" }
	trixie := machine{debian: debian{Release: "trixie"}}
	bookworm := debian{Release: "bookworm"}
	return []Place{
		{
			Name:    "local",
			Hosts:   []Host{{Name: "local", Become: "self"}},
			Missing: never, Run: self,
		},
		{
			Name:    "local-user",
			Hosts:   []Host{{Name: "local-user", Become: "plain", Traits: "uid=user subuid=yes bus=no"}},
			Missing: account{}.missing, Run: account{subuids: true}.run,
		},
		{
			Name:    "local-user-nosubuid",
			Hosts:   []Host{{Name: "local-user-nosubuid", Become: "plain", Traits: "uid=user subuid=no bus=no"}},
			Missing: account{}.missing, Run: account{}.run,
		},
		{
			Name: "docker",
			Hosts: []Host{
				{Name: "docker-default", Become: "docker", Traits: "container=yes userns=closed", Refuses: true},
				{Name: "docker-privileged", Become: "dockerprivileged", Traits: "container=yes uid=root userns=open"},
			},
			Missing: docker, Run: self,
		},
		{
			Name:    "docker-rootless",
			Hosts:   []Host{{Name: "docker-rootless", Become: "dockerrootless", Traits: "container=yes userns=closed", Refuses: true}},
			Missing: docker, Run: account{subuids: true}.run,
		},
		{
			Name: "debian13",
			Hosts: []Host{
				{Name: "debian13-delegated", Become: "delegated", Traits: "uid=user cgroup=v2 systemd=yes lsm=apparmor subuid=yes userns=open delegated=cpu,memory,pids"},
				{Name: "debian13-session", Become: "session", Traits: "uid=user cgroup=v2 systemd=yes lsm=apparmor subuid=yes userns=open bus=yes delegated=no"},
				{Name: "debian13-nosubuid", Become: "nosubuid", Traits: "uid=user cgroup=v2 systemd=yes lsm=apparmor subuid=no userns=open delegated=cpu,memory,pids"},
				{Name: "debian13-plain", Become: "plain", Traits: "uid=user cgroup=v2 systemd=yes userns=open bus=no delegated=no"},
				{Name: "debian13-root", Become: "self", Traits: "uid=root cgroup=v2 systemd=yes lsm=apparmor userns=open"},
				{Name: "debian13-nouserns", Become: "nouserns", Traits: "uid=user userns=closed", Refuses: true},
				{Name: "debian13-nousernsmax", Become: "nousernsmax", Traits: "uid=user userns=closed", Refuses: true},
			},
			Missing: trixie.missing, Run: trixie.run,
		},
		{
			Name: "debian13-docker",
			Hosts: []Host{
				{Name: "debian13-docker-default", Become: "docker", Traits: "container=yes userns=closed cgroup=v2", Refuses: true},
				{Name: "debian13-docker-privileged", Become: "dockerprivileged", Traits: "container=yes uid=root userns=open cgroup=v2"},
				{Name: "debian13-docker-nested", Become: "dockernested", Traits: "container=yes uid=root userns=open cgroup=v2"},
				{Name: "debian13-docker-rootless", Become: "dockerrootless", Traits: "container=yes userns=closed cgroup=v2", Refuses: true},
			},
			Missing: trixie.missing,
			Run: machine{debian: debian{
				Release: "trixie", Packages: []string{"docker.io", "docker-cli", "rootlesskit", "apparmor", "slirp4netns"},
			}}.run,
		},
		{
			Name: "debian12",
			Hosts: []Host{
				{Name: "debian12-root", Become: "self", Traits: "uid=root cgroup=v2 systemd=yes kernel=6.1"},
				{Name: "debian12-delegated", Become: "delegated", Traits: "uid=user cgroup=v2 systemd=yes kernel=6.1 delegated=cpu,memory,pids"},
			},
			Missing: trixie.missing, Run: machine{debian: bookworm}.run,
		},
		{
			Name: "debian12-v1",
			Hosts: []Host{
				{Name: "debian12-v1-root", Become: "self", Traits: "uid=root cgroup=v1 systemd=yes kernel=6.1"},
				{Name: "debian12-v1-session", Become: "session", Traits: "uid=user cgroup=v1 systemd=yes kernel=6.1 delegated=no"},
			},
			Missing: trixie.missing,
			Run: machine{
				debian: bookworm,
				// The second makes it v1 alone; without it systemd keeps its own
				// groups in a v2 hierarchy beside.
				cmdline: "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1",
			}.run,
		},
		{
			Name:    "arm64",
			Hosts:   []Host{{Name: "arm64-root", Become: "self", Traits: "uid=root arch=arm64 cgroup=v2 systemd=no userns=open"}},
			Missing: arm64{}.missing, Run: arm64{}.run,
		},
	}
}

// QuickHost is the host of the quick boot on which all suites run: pure cgroup
// v2, systemd, and an ordinary account, which is what most users have.
const QuickHost = "debian13-delegated"

// quickBoot returns the hosts of the quick boot, which are on one machine. What
// a sandbox can take from others depends on the account that makes it, so that
// is tried as every kind of account.
func quickBoot() map[string][]string {
	return map[string][]string{
		QuickHost:           nil, // all suites
		"debian13-nosubuid": {"probe", "starve"},
		"debian13-root":     {"probe", "starve"},
	}
}

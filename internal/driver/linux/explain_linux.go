package linux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// explainClone explains why the kernel makes no namespaces for this user, with a hint.
func explainClone(err error) error {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("making namespaces: %w", err)
	}
	why, fix := whyNoNamespaces(err)
	return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "making namespaces: %s", why), fix)
}

// whyNoNamespaces finds out what forbids user namespaces here.
func whyNoNamespaces(err error) (why, fix string) {
	is := func(name, value string) bool {
		data, rerr := os.ReadFile(name)
		return rerr == nil && strings.TrimSpace(string(data)) == value
	}
	switch {
	case inSandbox():
		return "this is already a Sandpit sandbox; sandboxes do not nest", "run the command without Sandpit, or create the sandbox from outside of this one"
	case is("/proc/sys/kernel/unprivileged_userns_clone", "0") && os.Geteuid() != 0:
		return "this machine forbids user namespaces to unprivileged users (kernel.unprivileged_userns_clone=0)",
			"ask the administrator for `sysctl kernel.unprivileged_userns_clone=1`, or run as root"
	case is("/proc/sys/user/max_user_namespaces", "0"):
		return "this machine allows no user namespaces (user.max_user_namespaces=0)",
			"ask the administrator for `sysctl user.max_user_namespaces=15000`"
	case is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") && os.Geteuid() != 0:
		return "AppArmor forbids user namespaces to unprivileged users (kernel.apparmor_restrict_unprivileged_userns=1)",
			"ask the administrator for an AppArmor profile with `userns,` for sandpit, or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
	case errors.Is(err, unix.ENOSPC):
		return "too many namespaces exist, or they are nested too deeply", "raise user.max_user_namespaces, or end other sandboxes"
	case errors.Is(err, unix.EINVAL):
		return "this kernel lacks a type of namespace", "use a kernel with user, mount, pid, network, ipc and uts namespaces"
	case inContainer():
		return "the container in which this runs forbids it", "start the container with `--privileged`, or with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
	}
	return "the kernel refuses it (" + err.Error() + ")", "run as root, or ask the administrator to allow user namespaces"
}

// inSandbox reports whether this program runs inside a sandbox of Sandpit: its process 1 is
// a guest.
func inSandbox() bool {
	args, err := os.ReadFile("/proc/1/cmdline")
	name, _, _ := strings.Cut(string(args), "\x00")
	return err == nil && name == GuestName
}

// inContainer reports whether this program runs inside Docker, Podman or Kubernetes,
// judging by the marks that they leave.
func inContainer() bool {
	for _, f := range []string{"/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io"} {
		if _, err := os.Stat(f); err == nil {
			return true
		}
	}
	return os.Getenv("container") != ""
}

// executingGuest is the step in which the guest's program is executed.
const executingGuest = "executing the guest"

// explainStep explains why a step of the set-up failed.
func (c *creation) explainStep(e *sysprog.StepError) error {
	err := fmt.Errorf("setting up the sandbox: %w", e)
	if err := c.explainTarget(e); err != nil {
		return err
	}
	switch {
	case e.Errno == unix.EPIPE && strings.HasPrefix(e.What, "writing "): // not all of it was written
		e.Errno = unix.ENOSPC
		return c.explainStep(e)
	case e.Errno == errnoNotSupp && e.What == loadingFilter:
		return sandpit.WithHint(fault.Errorf(sandpit.ErrExhausted, "%w: the kernel's memory for filters is exhausted", err),
			"end programs that load seccomp or socket filters, or raise the sysctl net.core.bpf_jit_limit")
	case e.Errno == unix.ENOSPC && strings.HasPrefix(e.What, "mounting") && !strings.HasPrefix(e.What, "mounting overlay"):
		return sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrExhausted}, "unmount file systems, or raise the sysctl fs.mount-max")
	case e.Errno == unix.ENOSPC:
		return sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrInvalid}, "raise the disk or files limit: they are too small for the sandbox itself")
	case e.Errno == unix.ENOMEM:
		return c.explainDeath(err)
	case strings.HasPrefix(e.What, "mounting proc") && e.Errno == unix.EPERM:
		return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "%w: parts of this container's /proc are masked", err),
			"start the container with `--security-opt systempaths=unconfined`, or `--privileged`")
	case strings.HasSuffix(e.What, withoutItsSockets):
		return sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrUnsupported},
			"mount only the directories that are needed: another file system is mounted below this one, or it does not support such mounts")
	case e.What == openingTUN:
		return sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrUnsupported}, tunFix(e.Errno))
	case strings.HasPrefix(e.What, "looking at"):
		return fault.Kind{Err: err, Kind: sandpit.ErrInvalid}
	case e.Errno == unix.ENOSYS:
		return sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrUnsupported}, "use Linux 5.12 or later")
	case e.Errno == unix.EACCES && e.What == executingGuest && noexec(existing(c.driver.opts.Dir)):
		return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "%w: programs can't be executed in %s, which holds the guest program: it is mounted noexec", err, existing(c.driver.opts.Dir)),
			"set SANDPIT_HOME to a directory that allows executing programs")
	case e.Errno == unix.EPERM || e.Errno == unix.EACCES:
		if os.Geteuid() != 0 {
			if why, fix := whyNoNamespaces(e.Errno); !strings.HasPrefix(why, "the kernel refuses") {
				return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "%w: %s", err, why), fix)
			}
		}
		return fault.Kind{Err: err, Kind: sandpit.ErrUnsupported}
	}
	return err
}

// explainTarget explains why the place of a mount, which is in another mount, can't be
// created, or returns nil. EOVERFLOW means that the file system of the other one has no ids
// for the builder, which is root of the sandbox only.
func (c *creation) explainTarget(e *sysprog.StepError) error {
	name, creating := strings.CutPrefix(e.What, "creating /")
	attached, attaching := strings.CutPrefix(e.What, "attaching /")
	tmpfs, scratch := strings.CutPrefix(e.What, "mounting tmpfs on /")
	switch {
	case creating && (e.Errno == unix.EOVERFLOW || e.Errno == unix.EROFS || e.Errno == unix.EACCES || e.Errno == unix.ENOENT):
	case attaching && e.Errno == unix.ENOENT: // creating it has failed, see mkdirAll
		name = attached
	case scratch && e.Errno == unix.ENOENT: // likewise
		name = tmpfs
	default:
		return nil
	}
	name = "/" + name
	outer, inner, kind := "", "", "directory"
	for _, m := range c.mounts {
		target := path.Clean(m.Target)
		if rest, ok := strings.CutPrefix(name, target+"/"); ok && len(target) > len(outer) {
			outer, inner = target, rest
		}
		if m.file && target == name {
			kind = "file"
		}
	}
	if outer == "" {
		return nil
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the mount at %s has no %s %q", outer, kind, inner), "create it there first")
}

const (
	// deathPatience is how long Explain waits for the end of a guest whose connections
	// have ended. It is about to end, or has closed them for no reason.
	deathPatience = time.Second

	// maxWords bounds the last words of a guest in an error, in bytes.
	maxWords = 300
)

// Explain says why the guest has ended: in which step of its set-up it failed (the
// first process may come to its last step, in which it executes the guest, when the
// builder has long said that all is in place), or how its process ended and what it
// wrote to its standard error. Both come by the socket over which it gets its
// connections.
func (i *instance) Explain(err error) error {
	if i.adopted || i.program == nil {
		return err
	}
	var why []string
	select {
	case <-i.done:
		if i.status.Signaled() {
			why = append(why, fmt.Sprintf("killed by signal %d", i.status.Signal()))
		} else {
			why = append(why, fmt.Sprintf("exit status %d", i.status.ExitStatus()))
		}
	case <-time.After(deathPatience):
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return err
	}
	var words []byte
	buf := make([]byte, maxWords)
	for range 1000 { // the kernel keeps fewer
		n := left(i.socks[0], buf)
		if n == 0 {
			break
		}
		if e, ok := i.program.DecodeReport(buf[:n]); ok {
			return i.explainStep(e)
		}
		words = append(words, buf[:n]...)
	}
	if said := tidy(words); said != "" {
		why = append(why, said)
	}
	if len(why) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(why, ": "))
}

// tidy returns the beginning of a guest's last words, on one line, without the stacks of
// the Go runtime.
func tidy(words []byte) string {
	words, _, _ = bytes.Cut(words, []byte("\n\n"))
	text := strings.Join(strings.FieldsFunc(string(words), func(c rune) bool { return c == utf8.RuneError || !unicode.IsPrint(c) }), " ")
	return text[:min(len(text), maxWords)]
}

var _ driver.Explainer = (*instance)(nil)

// noexec reports whether a directory is on a file system from which nothing is
// executed.
func noexec(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_NOEXEC != 0
}

package policy

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Bounds on the parts of a Spec that are not limits of the sandbox. They are
// far above what anyone needs, and keep a hostile request small.
const (
	maxEnv      = 4096      // entries
	maxEnvBytes = 1 << 20   // all entries together; half of ARG_MAX with the usual stack limit
	maxEnvEntry = 128 << 10 // MAX_ARG_STRLEN of linux/binfmts.h: the kernel takes no longer string
	maxMounts   = 256
	maxPaths    = 256
	maxPath     = 4095 // PATH_MAX of linux/limits.h, without its NUL
	maxLabels   = 64
	maxHostname = 63  // bytes; Linux takes 64, a DNS label 63
	maxUser     = 256 // bytes
)

// Bounds of labels, in bytes.
const (
	MaxLabelName  = 128
	MaxLabelValue = 4096
	MaxLabelSum   = 16 << 10 // all names and values
)

// Resolve checks a Spec and returns its limits, with every field set.
//
// Errors match sandpit.ErrInvalid if the Spec is invalid, and sandpit.ErrForbidden if p
// does not allow it (a *Refusal, which names the part and the rule). Pass it the result of
// Complete. Resolve does not check whether this machine can enforce the limits, or whether
// the image and user exist.
func Resolve(spec sandpit.Spec, p Policy) (limits sandpit.Limits, err error) {
	for _, check := range [...]func(sandpit.Spec) error{checkNames, checkEnv, checkPaths, checkMounts, checkLabels} {
		if err := check(spec); err != nil {
			return limits, err
		}
	}
	if err := checkLifetime(spec.Idle, spec.OnExpiry); err != nil {
		return limits, err
	}
	if err := p.allow(&spec); err != nil {
		return limits, err
	}
	// Only now is the host looked at: who may not mount something is not told
	// whether it is there.
	for _, m := range spec.Mounts {
		if err := findSource(m.Source); err != nil {
			return limits, err
		}
	}
	return p.resolveLimits(spec)
}

func checkNames(spec sandpit.Spec) error {
	if spec.Name != "" && !notation.IsName(spec.Name) {
		return invalid(notation.NameHint, "%s is not a valid sandbox name", quote(spec.Name))
	}
	if spec.Hostname != "" && !validHostname(spec.Hostname) {
		return invalid("use letters, digits, '.' and '-', at most 63", "%s is not a valid host name", quote(spec.Hostname))
	}
	if !validUser(spec.User) {
		return invalid("write the user as name, uid, name:group or uid:gid", "%s is not a valid user", quote(spec.User))
	}
	switch spec.Pull {
	case "", sandpit.PullMissing, sandpit.PullAlways, sandpit.PullNever:
	default:
		return invalid("use missing, always or never", "%s is not a valid pull policy", quote(string(spec.Pull)))
	}
	if strings.ContainsFunc(spec.Image, func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }) || len(spec.Image) > maxPath {
		return invalid("", "%s is not a valid image name", quote(spec.Image))
	}
	return nil
}

// validHostname follows RFC 1123, section 2.1: labels of letters, digits and
// inner hyphens.
func validHostname(s string) bool {
	if len(s) > maxHostname {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if !isAlnum(c) && c != '-' {
				return false
			}
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// validUser reports whether s has the form of Spec.User. Names are looked up in
// the image's own files, which may have odd ones; what would be misread there
// is refused.
func validUser(s string) bool {
	if s == "" {
		return true
	}
	if len(s) > maxUser {
		return false
	}
	user, group, hasGroup := strings.Cut(s, ":")
	return validUserPart(user) && (!hasGroup || validUserPart(group))
}

func validUserPart(s string) bool {
	if s == "" || s[0] == '-' || s[0] == '+' {
		return false
	}
	digits := true
	for _, c := range []byte(s) {
		if c <= ' ' || c == ':' || c == ',' || c == '/' || c == 0x7f {
			return false
		}
		digits = digits && c >= '0' && c <= '9'
	}
	if digits {
		// The last id, -1, means "no change" to setuid(2) and its kin.
		id, err := strconv.ParseUint(s, 10, 32)
		return err == nil && id != 1<<32-1
	}
	return true
}

func checkEnv(spec sandpit.Spec) error {
	if len(spec.Env) > maxEnv {
		return invalid("", "there are more than %d environment variables", maxEnv)
	}
	total := 0
	for _, entry := range spec.Env {
		name, _, ok := strings.Cut(entry, "=")
		switch {
		case !ok || name == "":
			return invalid("write it as KEY=VALUE", "%s is not a valid environment variable", quote(entry))
		case strings.IndexByte(entry, 0) >= 0:
			return invalid("", "the environment variable %s has a NUL in it", quote(name))
		case len(entry) >= maxEnvEntry:
			return invalid("put the value into a file, and mount the file", "the environment variable %s is longer than 128 KiB, the limit of Linux", quote(name))
		}
		if total += len(entry) + 1; total > maxEnvBytes {
			return invalid("put large values into a file, and mount the file", "the environment is larger than 1 MiB")
		}
	}
	return nil
}

func checkPaths(spec sandpit.Spec) error {
	if spec.WorkDir != "" {
		if err := checkInside("the working directory", spec.WorkDir); err != nil {
			return err
		}
	}
	if len(spec.Write) > maxPaths {
		return invalid("", "there are more than %d writable paths", maxPaths)
	}
	for _, p := range spec.Write {
		if err := checkInside("the writable path", p); err != nil {
			return err
		}
		p = path.Clean(p)
		if p == "/" {
			return invalid("omit it: without writable paths everything can be written", "the writable path can't be the root directory")
		}
		if m := mountOf(spec, p); m.ReadOnly {
			return invalid("mount it writable, or omit the writable path", "the writable path %s is in the mount at %s, which is read-only", quote(p), quote(m.Target))
		}
	}
	if spec.ReadOnly && len(spec.Write) > 0 {
		return invalid("omit one of them: with writable paths everything else is read-only", "read-only and a list of writable paths can't be combined")
	}
	return nil
}

// mountOf returns the innermost mount that shows a clean path, or an empty one if none
// does or there is a tmpfs on top.
func mountOf(spec sandpit.Spec, p string) (found sandpit.Mount) {
	in := func(target string) bool {
		target = path.Clean(target)
		return (p == target || strings.HasPrefix(p, target+"/")) && len(target) >= len(path.Clean(found.Target))
	}
	for _, m := range spec.Mounts {
		if in(m.Target) {
			found = m
		}
	}
	for _, t := range spec.Tmpfs {
		if in(t.Target) {
			found = sandpit.Mount{Target: t.Target}
		}
	}
	return found
}

// checkInside checks a path inside the sandbox.
func checkInside(what, p string) error {
	switch {
	case p == "" || p[0] != '/':
		return invalid("use a path that starts with /", "%s %s is not absolute", what, quote(p))
	case strings.IndexByte(p, 0) >= 0:
		return invalid("", "%s %s has a NUL in it", what, quote(p))
	case len(p) > maxPath:
		return invalid("", "%s is longer than %d bytes", what, maxPath)
	}
	return nil
}

// checkTarget checks a place at which something is mounted.
func checkTarget(what, p string) error {
	if err := checkInside(what, p); err != nil {
		return err
	}
	clean := path.Clean(p)
	if clean == "/" {
		return invalid("mount it below the root, or use the directory as an image: --image dir:PATH", "%s can't be the root directory", what)
	}
	for _, own := range [...]string{"/proc", "/sys", "/dev"} {
		if clean == own || strings.HasPrefix(clean, own+"/") {
			return invalid("choose another path", "%s %s is in %s, which the sandbox reserves", what, quote(p), own)
		}
	}
	return nil
}

func checkMounts(spec sandpit.Spec) error {
	if len(spec.Mounts)+len(spec.Tmpfs) > maxMounts {
		return invalid("", "there are more than %d mounts", maxMounts)
	}
	taken := make(map[string]bool, len(spec.Mounts)+len(spec.Tmpfs))
	take := func(what, target string) error {
		if err := checkTarget(what, target); err != nil {
			return err
		}
		clean := path.Clean(target)
		if taken[clean] {
			return invalid("give each mount a different path", "two mounts have the target %s", quote(clean))
		}
		taken[clean] = true
		return nil
	}
	for _, m := range spec.Mounts {
		if err := checkSource(m.Source); err != nil {
			return err
		}
		if err := take("the mount's target", m.Target); err != nil {
			return err
		}
		if m.NoSockets && !m.ReadOnly {
			return invalid("mount it read-only, or mount only directories without sockets", "the mount of %s can hide sockets only if it is read-only", quote(m.Source))
		}
	}
	for _, t := range spec.Tmpfs {
		if err := take("the tmpfs", t.Target); err != nil {
			return err
		}
		switch {
		case t.Size < 0:
			return invalid("", "the size of the tmpfs %s must be more than 0", quote(t.Target))
		case t.Size > maxSize:
			return invalid("", "the size of the tmpfs %s is more than any machine has", quote(t.Target))
		}
	}
	return nil
}

// checkSource checks what is mounted, early, so that the error is clear. It is
// opened later in a way that can't be raced; nothing here is relied on for that.
func checkSource(source string) error {
	switch {
	case !filepath.IsAbs(source):
		return invalid("use an absolute path", "the mount source %s is not absolute", quote(source))
	case strings.IndexByte(source, 0) >= 0 || len(source) > maxPath:
		return invalid("", "the mount source %s is not a valid path", quote(source))
	case filepath.Clean(source) == "/":
		return invalid("mount only the directories that are needed", "the root directory of the host can't be mounted")
	}
	return nil
}

// findSource looks at what is to be mounted.
func findSource(source string) error {
	source = filepath.Clean(source)
	info, err := os.Lstat(source)
	switch {
	case os.IsNotExist(err):
		return invalid("create it first, or correct the path", "the mount source %s does not exist", quote(source))
	case err != nil:
		return invalid("use a path that you can read", "the mount source can't be accessed: %v", err)
	case info.Mode()&os.ModeSymlink != 0:
		hint := "mount its target"
		if target, err := filepath.EvalSymlinks(source); err == nil {
			hint += ": " + quote(target)
		}
		return invalid(hint, "the mount source %s is a symbolic link", quote(source))
	case !info.IsDir() && !info.Mode().IsRegular():
		return invalid("mount a directory or a regular file", "the mount source %s is not a directory or a regular file", quote(source))
	}
	return nil
}

// CheckCommit checks what an image gets besides its files, with the bounds that Resolve has for a Spec.
// Errors match sandpit.ErrInvalid.
func CheckCommit(c sandpit.Commit) error {
	spec := sandpit.Spec{User: c.User, WorkDir: c.WorkDir, Env: c.Env, Labels: c.Labels}
	for _, check := range [...]func(sandpit.Spec) error{checkNames, checkEnv, checkPaths, checkLabels} {
		if err := check(spec); err != nil {
			return err
		}
	}
	switch { // whoever lists images sees these
	case !printable(c.User):
		return invalid("", "the user %s has control characters or is not UTF-8", quote(c.User))
	case !printable(c.WorkDir):
		return invalid("", "the working directory %s has control characters or is not UTF-8", quote(c.WorkDir))
	}
	return nil
}

func checkLabels(spec sandpit.Spec) error {
	if len(spec.Labels) > maxLabels {
		return invalid("", "there are more than %d labels", maxLabels)
	}
	sum := 0
	for key, value := range spec.Labels {
		sum += len(key) + len(value)
		switch {
		case key == "" || len(key) > MaxLabelName || !printable(key) || strings.ContainsRune(key, '='):
			return invalid("", "%s is not a valid label name", quote(key))
		case len(value) > MaxLabelValue || !printable(value):
			return invalid("", "the value of the label %s is too long or has control characters", quote(key))
		}
	}
	if sum > MaxLabelSum {
		return invalid("put large values into a file of the sandbox", "the labels are longer than %d KiB in total", MaxLabelSum>>10)
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// quote shows a value of a request in a message, shortened.
func quote(s string) string {
	const limit = 80
	if len(s) > limit {
		return strconv.Quote(s[:limit]) + "…"
	}
	return strconv.Quote(s)
}

package notation

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// ParseMount reads SRC:DST or SRC:DST:OPTIONS; the options are ro, rw and nosockets,
// separated by commas. It also reads Docker's form, type=bind,source=SRC,target=DST,readonly. A relative SRC is relative to the working directory of this program.
// Paths with a colon can't be written in this form. ParseMount does not check whether SRC
// exists.
func ParseMount(s string) (sandpit.Mount, error) {
	const hint = "write a mount as SRC:DST, SRC:DST:ro or SRC:DST:ro,nosockets, for example .:/work:ro"
	var m sandpit.Mount
	if strings.HasPrefix(s, "type=") {
		var err error
		if s, err = fromDocker(s); err != nil {
			return m, err
		}
	}
	parts := strings.Split(s, ":")
	switch len(parts) {
	case 2:
	case 3:
		options := strings.Split(parts[2], ",")
		if slices.Contains(options, "ro") && slices.Contains(options, "rw") {
			return m, sandpit.WithHint(fmt.Errorf("%q is not a mount: ro and rw contradict each other", s), hint)
		}
		for _, option := range options {
			switch option {
			case "ro":
				m.ReadOnly = true
			case "rw":
			case "nosockets":
				m.NoSockets = true
			default:
				return m, sandpit.WithHint(fmt.Errorf("%q is not a mount: the option %q is not ro, rw or nosockets", s, option), hint)
			}
		}
	default:
		return m, sandpit.WithHint(fmt.Errorf("%q is not a mount", s), hint)
	}
	if parts[0] == "" || parts[1] == "" {
		return m, sandpit.WithHint(fmt.Errorf("%q is not a mount: a path is missing", s), hint)
	}
	source, err := filepath.Abs(parts[0])
	if err != nil {
		return m, fmt.Errorf("finding the working directory: %w", err)
	}
	m.Source, m.Target = source, parts[1]
	return m, nil
}

// fromDocker turns a mount in the form of docker run --mount into SRC:DST or SRC:DST:ro. Options
// that it does not know are refused.
func fromDocker(s string) (string, error) {
	refused := func(why, hint string) (string, error) {
		return "", sandpit.WithHint(fmt.Errorf("%q is not a mount: %s", s, why), hint)
	}
	const form = "write type=bind,source=SRC,target=DST, with readonly if it is, or SRC:DST:ro"
	kind, source, target, readOnly := "", "", "", false
	for field := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "type":
			kind = value
		case "source", "src":
			source = value
		case "target", "dst", "destination":
			target = value
		case "readonly", "ro":
			switch value {
			case "", "1", "true":
				readOnly = true
			case "0", "false":
				readOnly = false
			default:
				return refused(fmt.Sprintf("%q is not true or false", value), form)
			}
		case "consistency": // has no effect on Linux
		default:
			return refused(fmt.Sprintf("the option %q is unknown", key), form)
		}
	}
	switch {
	case kind == "tmpfs":
		return refused("a tmpfs has a flag of its own", "use --tmpfs "+target)
	case kind != "bind":
		return refused("only type=bind is one of a directory of this machine", form)
	case strings.Contains(source+target, ":"):
		return refused("a path contains a colon", "mount a directory above it")
	case readOnly:
		return source + ":" + target + ":ro", nil
	}
	return source + ":" + target, nil
}

// ParseVolume reads SRC:DST or SRC:DST:OPTIONS as Docker has it: a SRC that starts with neither
// "/" nor "." is the name of a volume, which is refused. The options cached, consistent and
// delegated have no effect on Linux.
func ParseVolume(s string) (sandpit.Mount, error) {
	source, rest, found := strings.Cut(s, ":")
	switch {
	case !found:
		return sandpit.Mount{}, sandpit.WithHint(fmt.Errorf("%q is an anonymous volume, which does not exist here", s), "use --tmpfs "+s+" for an empty directory in memory")
	case source != "" && source[0] != '/' && source[0] != '.':
		target, _, _ := strings.Cut(rest, ":")
		return sandpit.Mount{}, sandpit.WithHint(fmt.Errorf("%q is the name of a volume, and named volumes do not exist here", source),
			"write ./"+source+" for the directory here, or use --tmpfs "+target+" for an empty one in memory")
	}
	if target, options, found := strings.Cut(rest, ":"); found {
		kept := slices.DeleteFunc(strings.Split(options, ","), func(o string) bool { return o == "cached" || o == "consistent" || o == "delegated" })
		s = source + ":" + target
		if len(kept) > 0 {
			s += ":" + strings.Join(kept, ",")
		}
	}
	return ParseMount(s)
}

// ParseTmpfs reads PATH, PATH:SIZE or, as Docker writes it, PATH:size=SIZE.
func ParseTmpfs(s string) (sandpit.Tmpfs, error) {
	path, size, sized := strings.Cut(s, ":")
	t := sandpit.Tmpfs{Target: path}
	if path == "" {
		return t, sandpit.WithHint(errors.New("the path is missing"), "write it as /scratch or /scratch:64m")
	}
	if sized {
		n, err := ParseSize(strings.TrimPrefix(size, "size="))
		if err != nil {
			return t, fmt.Errorf("size: %w", err)
		}
		t.Size = n
	}
	return t, nil
}

// ParsePath reads a path inside the sandbox. It does not check that the path is absolute;
// the request is checked as a whole.
func ParsePath(s string) (string, error) {
	if s == "" {
		return "", errors.New("the path is missing")
	}
	return s, nil
}

// ParseMirror reads REGISTRY=URL: the host of a registry, and the base URL of its mirror.
func ParseMirror(s string) (registry, base string, err error) {
	const hint = "write it as docker.io=https://mirror.example"
	registry, base, ok := strings.Cut(s, "=")
	scheme, rest, hasScheme := strings.Cut(base, "://")
	if !ok || registry == "" || !hasScheme || rest == "" {
		return "", "", sandpit.WithHint(fmt.Errorf("%q is not a mirror", s), hint)
	}
	if scheme != "https" && scheme != "http" {
		return "", "", sandpit.WithHint(fmt.Errorf("%q is not a mirror: its URL does not start with https:// or http://", s), hint)
	}
	return registry, base, nil
}

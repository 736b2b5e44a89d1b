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
// separated by commas. A relative SRC is relative to the working directory of this program.
// Paths with a colon can't be written in this form. ParseMount does not check whether SRC
// exists.
func ParseMount(s string) (sandpit.Mount, error) {
	const hint = "write a mount as SRC:DST, SRC:DST:ro or SRC:DST:ro,nosockets, for example .:/work:ro"
	var m sandpit.Mount
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

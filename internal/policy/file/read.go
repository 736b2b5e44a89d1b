package file

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (s *Set) read(root ast.Node) error {
	all, err := fields(root, "the file")
	if err != nil {
		return err
	}
	for _, f := range all {
		switch f.name {
		case "pool":
			n, err := count(f, 0, maxPool)
			if err != nil {
				return err
			}
			s.Pool = n
		case "policies":
			named, err := fields(f.value, "policies")
			if err != nil {
				return err
			}
			if len(named) > maxPolicies {
				return at(f.key, "there are more than %d policies", maxPolicies)
			}
			for _, n := range named {
				if !notation.IsName(n.name) {
					e := at(n.key, "%.80q is not a name for a policy", n.name)
					e.hint = notation.NameHint
					return e
				}
				p, err := readPolicy(n)
				if err != nil {
					return err
				}
				s.policies[n.name] = p
			}
		default:
			return unknown(f, "policies", "pool")
		}
	}
	return nil
}

func readPolicy(of field) (policy.Policy, error) {
	p := policy.ServerDefault()
	p.Name = of.name
	if _, empty := of.value.(*ast.NullNode); empty {
		return p, nil
	}
	all, err := fields(of.value, "a policy")
	if err != nil {
		return p, err
	}
	r := p.Rules
	for _, f := range all {
		switch f.name {
		case "images":
			r.Images, err = list(f, policy.ParseImage)
		case "mounts":
			r.Mounts, err = list(f, parseMount)
		case "write-paths":
			r.Write, err = list(f, parseInside)
		case "on-expiry":
			r.OnExpiry, err = list(f, parseExpiry)
			if err == nil && len(r.OnExpiry) == 0 {
				err = at(f.key, "on-expiry must allow at least one action")
			}
		case "defaults":
			err = readLimits(f, &p.Default, &r.Idle)
		case "maximum":
			err = readLimits(f, &p.Max, &r.MaxIdle)
		case "sandboxes":
			r.Sandboxes, err = count(f, 1, 1_000_000)
		case "creates-per-second":
			r.CreateRate, err = rate(f)
		default:
			err = unknown(f, "images", "defaults", "maximum", "on-expiry", "sandboxes", "creates-per-second", "mounts", "write-paths")
		}
		if err != nil {
			return p, err
		}
	}
	if r.MaxIdle > 0 && r.Idle > r.MaxIdle {
		return p, at(of.key, "the default idle time of %s is more than the maximum of %s", notation.FormatDuration(r.Idle), notation.FormatDuration(r.MaxIdle))
	}
	if err := p.CheckDefaults(); err != nil {
		return p, within(of.key, of.name, err)
	}
	return p, nil
}

// readLimits reads a mapping of limits; what it does not name stays.
func readLimits(of field, into *sandpit.Limits, idle *time.Duration) error {
	all, err := fields(of.value, of.name)
	if err != nil {
		return err
	}
	limits := []struct {
		name feature.Feature
		read func(text string) error
	}{
		{feature.Memory, reader(&into.Memory, notation.ParseSize)},
		{feature.CPUs, reader(&into.CPUs, notation.ParseCPUs)},
		{feature.Pids, reader(&into.Pids, notation.ParseCount)},
		{feature.Disk, reader(&into.Disk, notation.ParseSize)},
		{feature.Files, reader(&into.Files, notation.ParseCount)},
		{feature.NoFile, reader(&into.NoFile, notation.ParseCount)},
		{feature.Output, reader(&into.Output, notation.ParseSize)},
		{feature.Life, reader(&into.Life, notation.ParseDuration)},
		{"idle", reader(idle, notation.ParseDuration)},
	}
	var names []string
	for _, l := range limits {
		names = append(names, string(l.name))
	}
	for _, f := range all {
		text, err := plain(f)
		if err != nil {
			return err
		}
		i := slices.Index(names, f.name)
		if i < 0 {
			return unknown(f, names...)
		}
		if err := limits[i].read(text); err != nil {
			return within(f.key, f.name, err)
		}
	}
	return nil
}

// reader returns what parses a text into a place.
func reader[T any](into *T, parse func(string) (T, error)) func(string) error {
	return func(text string) (err error) {
		*into, err = parse(text)
		return err
	}
}

// list reads a list, each item by one.
func list[T any](f field, one func(string) (T, error)) ([]T, error) {
	texts, nodes, err := items(f)
	if err != nil {
		return nil, err
	}
	all := make([]T, 0, len(texts))
	for i, text := range texts {
		v, err := one(text)
		if err != nil {
			return nil, within(nodes[i], f.name, err)
		}
		all = append(all, v)
	}
	return all, nil
}

func count(f field, least, most int) (int, error) {
	text, err := plain(f)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, at(f.key, "%s must be a whole number from %d to %d", f.name, least, most)
	}
	return n, nil
}

func rate(f field) (float64, error) {
	text, err := plain(f)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0 && n <= 1e6) { // NaN too
		return 0, at(f.key, "%s must be a number, more than 0 and at most 1000000", f.name)
	}
	return n, nil
}

func parseMount(text string) (policy.MountRule, error) {
	source, mode, _ := strings.Cut(text, ":")
	r := policy.MountRule{Source: source, Write: mode == "rw"}
	if mode != "" && mode != "ro" && mode != "rw" {
		return r, sandpit.WithHint(fmt.Errorf("%q is not ro or rw", mode), "write /srv/data for read-only access, or /srv/data:rw")
	}
	if !strings.HasPrefix(source, "/") || path.Clean(source) != source || source == "/" {
		return r, fmt.Errorf("%q is not an absolute path below /, without .. and //", source)
	}
	return r, nil
}

func parseInside(text string) (string, error) {
	if !strings.HasPrefix(text, "/") || path.Clean(text) != text || strings.IndexByte(text, 0) >= 0 {
		return "", fmt.Errorf("%q is not an absolute path without .. and //", text)
	}
	return text, nil
}

func parseExpiry(text string) (sandpit.Expiry, error) {
	switch e := sandpit.Expiry(text); e {
	case sandpit.ExpiryRemove, sandpit.ExpiryStop, sandpit.ExpiryPause:
		return e, nil
	}
	return "", errors.New("it is not remove, stop or pause")
}

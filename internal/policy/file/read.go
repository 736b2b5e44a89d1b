package file

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/yamldoc"
)

func (s *Set) read(doc yamldoc.Value) error {
	err := yamldoc.Mapping(map[string]func(yamldoc.Value) error{
		"pool":     s.readPool,
		"policies": s.readPolicies,
		"aliases":  s.readAliases,
	})(doc)
	return cmp.Or(err, s.checkWarm())
}

// readAliases reads a mapping of names to images, in addition to the built-in one.
func (s *Set) readAliases(v yamldoc.Value) error {
	named, err := v.Fields()
	if err == nil && len(named) > maxAliases {
		err = v.Fail(fmt.Errorf("there are more than %d aliases", maxAliases))
	}
	for i := 0; i < len(named) && err == nil; i++ {
		if name := named[i].Name; name == "" || len(name) > maxAlias || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || !unicode.IsPrint(r) }) {
			return named[i].Fail(fmt.Errorf("it is not a name of at most %d bytes without spaces", maxAlias))
		}
		var to string
		if err = yamldoc.Parse(&to, imageName)(named[i]); err == nil {
			s.aliases[named[i].Name] = to
		}
	}
	return err
}

// imageName reads an image, in a form of Spec.Image.
func imageName(text string) (string, error) {
	if strings.HasPrefix(text, sandpit.SavedImages) {
		return "", sandpit.WithHint(fmt.Errorf("%.100q was saved in one namespace, and policies are for all", text), "name an image that was pulled or imported")
	}
	if _, err := policy.ParseImage(text); err != nil || strings.Contains(text, "*") {
		return "", sandpit.WithHint(fmt.Errorf("%.100q is not an image", text), "write it as host, python:3.12-slim, NAME@sha256:DIGEST or sha256:DIGEST")
	}
	return text, nil
}

func (s *Set) readPolicies(v yamldoc.Value) error {
	named, err := v.Fields()
	if err == nil && len(named) > maxPolicies {
		err = v.Fail(fmt.Errorf("there are more than %d policies", maxPolicies))
	}
	// Default is the first, since the others start from it.
	base := s.policies[Default]
	for i := range named {
		if named[i].Name == Default && err == nil {
			base, err = readPolicy(named[i], base)
			s.policies[Default] = base
		}
	}
	for i := 0; i < len(named) && err == nil; i++ {
		if !notation.IsName(named[i].Name) {
			return named[i].Fail(sandpit.WithHint(errors.New("it is not a name for a policy"), notation.NameHint))
		}
		if named[i].Name != Default {
			s.policies[named[i].Name], err = readPolicy(named[i], base)
		}
	}
	s.Named = len(named)
	return err
}

// readPolicy reads a policy, which has the fields of base that it does not name. An inherited
// default above a maximum of its own is lowered; a default of its own above its maximum is refused.
func readPolicy(v yamldoc.Value, base policy.Policy) (policy.Policy, error) {
	p, r := base, new(*base.Rules) // its lists are replaced, and never changed
	p.Name, p.Rules = v.Name, r
	var own sandpit.Limits
	if v.IsNull() { // a name alone
		return p, nil
	}
	err := yamldoc.Mapping(map[string]func(yamldoc.Value) error{
		"images":             yamldoc.List(&r.Images, policy.ParseImage),
		"mounts":             yamldoc.List(&r.Mounts, parseMount),
		"write-paths":        writePaths(&r.Write),
		"on-expiry":          yamldoc.List(&r.OnExpiry, parseExpiry),
		"defaults":           yamldoc.Mapping(limits(&own, &r.Idle)),
		"egress":             yamldoc.List(&r.Egress, parseEgress),
		"deny":               yamldoc.List(&r.Deny, parseDeny),
		"resolve":            yamldoc.List(&r.Resolve, parseResolve),
		"secrets":            yamldoc.List(&r.Secrets, parseSecret),
		"maximum":            maximum(&p.Max, r),
		"sandboxes":          yamldoc.Parse(&r.Sandboxes, yamldoc.Int(1, 1_000_000)),
		"previews":           yamldoc.Parse(&r.Previews, parsePreviews),
		"open-ports":         yamldoc.Parse(&r.OpenPorts, parseOpenPorts),
		"saved-images":       yamldoc.Parse(&r.Saved, parseSaved),
		"contexts":           yamldoc.Parse(&r.Contexts, yamldoc.Int(0, sandpit.MaxContexts)),
		"creates-per-second": yamldoc.Parse(&r.CreateRate, parseRate),
	})(v)
	if err != nil {
		return p, err
	}
	if len(r.OnExpiry) == 0 {
		return p, v.Fail(errors.New("on-expiry must allow at least one action"))
	}
	if r.MaxIdle > 0 && r.Idle == base.Rules.Idle {
		r.Idle = min(r.Idle, r.MaxIdle)
	}
	if r.MaxIdle > 0 && r.Idle > r.MaxIdle {
		return p, v.Fail(fmt.Errorf("the default idle time of %s is more than the maximum of %s", notation.FormatDuration(r.Idle), notation.FormatDuration(r.MaxIdle)))
	}
	if err := cmp.Or(p.SetDefaults(own), p.CheckDefaults()); err != nil {
		return p, v.Fail(err)
	}
	p.CapDefaults() // so that what is shown is what sandboxes get
	return p, nil
}

// limits reads limits; those that the file does not name are unchanged.
func limits(into *sandpit.Limits, idle *time.Duration) map[string]func(yamldoc.Value) error {
	return map[string]func(yamldoc.Value) error{
		string(feature.Memory): yamldoc.Parse(&into.Memory, parseSize),
		string(feature.CPUs):   yamldoc.Parse(&into.CPUs, notation.ParseCPUs),
		string(feature.Pids):   yamldoc.Parse(&into.Pids, notation.ParseCount),
		string(feature.Disk):   yamldoc.Parse(&into.Disk, parseSize),
		string(feature.Files):  yamldoc.Parse(&into.Files, notation.ParseCount),
		string(feature.NoFile): yamldoc.Parse(&into.NoFile, notation.ParseCount),
		string(feature.Output): yamldoc.Parse(&into.Output, parseSize),
		string(feature.Life):   yamldoc.Parse(&into.Life, notation.ParseDuration),
		"idle":                 yamldoc.Parse(idle, notation.ParseDurationOrNever),
	}
}

// maximum reads limits, and bounds of traffic.
func maximum(into *sandpit.Limits, r *policy.Rules) func(yamldoc.Value) error {
	fields := limits(into, &r.MaxIdle)
	for _, b := range notation.TrafficBounds(&r.Traffic) {
		fields[b.Name] = yamldoc.Parse(b.Value, func(text string) (int64, error) {
			switch {
			case text == unlimited && b.Default == 0:
				return 0, nil
			case b.Bytes:
				return parseSize(text)
			}
			return b.Parse(text)
		})
	}
	return yamldoc.Mapping(fields)
}

// parseEgress reads a rule or preset that may be asked for.
func parseEgress(text string) (string, error) {
	if sandpit.EgressPreset(text) == sandpit.EgressLearn {
		return "", sandpit.WithHint(errors.New("learn needs no permission, because it allows what the policy allows"), "omit it, or write public")
	}
	_, err := egress.Allowance([]string{text})
	return text, err
}

func parseDeny(text string) (string, error) {
	_, err := egress.ParseRule(text)
	return text, err
}

// parseResolve reads addresses that --resolve and --dns may name.
func parseResolve(text string) (string, error) {
	_, err := egress.ParseAddresses(text)
	return text, err
}

// parseSecret reads the name of a secret, in which '*' stands for any text.
func parseSecret(text string) (string, error) {
	if !notation.IsName(strings.ReplaceAll(text, "*", "x")) {
		return "", fmt.Errorf("%q is not the name of a secret, in which * stands for any text", text)
	}
	return text, nil
}

func parseRate(text string) (float64, error) {
	if text == unlimited {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0 && n <= 1e6) { // NaN too
		return 0, errors.New("it must be a number, more than 0 and at most 1000000, or " + unlimited)
	}
	return n, nil
}

// parsePreviews reads the longest time of a preview.
func parsePreviews(text string) (time.Duration, error) {
	switch text {
	case "false":
		return 0, nil
	case "true":
		return policy.DefaultPreviews, nil
	}
	d, err := notation.ParseDuration(text)
	if err != nil || d <= 0 || d > policy.MaxPreviews {
		return 0, errors.New("it must be true, false, or a time of at most " + notation.FormatDuration(policy.MaxPreviews))
	}
	return d, nil
}

// parseOpenPorts reads where ports need no key.
func parseOpenPorts(text string) (policy.OpenPorts, error) {
	switch p := policy.OpenPorts(text); p {
	case policy.OpenOnLoopback, policy.OpenEverywhere:
		return p, nil
	}
	if text == "false" {
		return policy.OpenNowhere, nil
	}
	return "", errors.New("it must be true, false or " + string(policy.OpenOnLoopback))
}

// parseSaved reads how many bytes may be saved as images.
func parseSaved(text string) (int64, error) {
	switch text {
	case "false":
		return 0, nil
	case unlimited:
		return policy.Unlimited, nil
	}
	n, err := parseSize(text)
	if err != nil {
		return 0, fmt.Errorf("it must be a size, %s, or false: %w", unlimited, err)
	}
	return n, nil
}

// minPlain is the least number of bytes that may be written without a unit. Less is most likely a
// number of megabytes or gigabytes.
const minPlain = 64 << 10

// parseSize reads a size.
func parseSize(text string) (int64, error) {
	n, err := notation.ParseSize(text)
	if number := strings.TrimSpace(text); err == nil && n < minPlain && strings.Trim(number, "0123456789") == "" {
		return 0, sandpit.WithHint(fmt.Errorf("%s has no unit, and would be %s", number, notation.FormatSize(n)), fmt.Sprintf("write %[1]sm or %[1]sg, or %[1]sb if bytes are meant", number))
	}
	return n, err
}

// writePaths reads a list of paths. The root directory alone means everywhere.
func writePaths(into *[]string) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		err := yamldoc.List(into, parseInside)(v)
		switch {
		case err == nil && slices.Equal(*into, []string{everywhere}):
			*into = nil
		case err == nil && slices.Contains(*into, everywhere):
			err = v.Fail(errors.New("/ means everywhere, and must be the only path"))
		}
		return err
	}
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

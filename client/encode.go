package client

import (
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// encode makes JSON of what is sent. ErrInvalid for what can't be said in it.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sandpit.ErrInvalid, err)
	}
	return b, nil
}

// JSON holds text. Where the API has no field for other bytes, they are
// refused: json.Marshal would silently put something else in their place.
func isText(what string, all ...string) error {
	for _, s := range all {
		if !utf8.ValidString(s) {
			return fault.Errorf(sandpit.ErrInvalid, "the %s %q is not UTF-8", what, s)
		}
	}
	return nil
}

func isTextMap(what string, all map[string]string) error {
	for k, v := range all {
		if err := isText(what, k, v); err != nil {
			return err
		}
	}
	return nil
}

func encodeSpec(s sandpit.Spec) ([]byte, error) {
	parts := []struct {
		what string
		all  []string
	}{
		{"name", []string{s.Name}},
		{"image", []string{s.Image}},
		{"pull policy", []string{string(s.Pull)}},
		{"hostname", []string{s.Hostname}},
		{"working directory", []string{s.WorkDir}},
		{"user", []string{s.User}},
		{"write path", s.Write},
		{"expiry", []string{string(s.OnExpiry)}},
		{"egress", egressTexts(s.Egress)},
	}
	for _, p := range parts {
		if err := isText(p.what, p.all...); err != nil {
			return nil, err
		}
	}
	if err := isTextMap("label", s.Labels); err != nil {
		return nil, err
	}
	for _, m := range s.Mounts {
		if err := isText("mount", m.Source, m.Target); err != nil {
			return nil, err
		}
	}
	for _, t := range s.Tmpfs {
		if err := isText("tmpfs", t.Target); err != nil {
			return nil, err
		}
	}
	return encode(v1.FromSpec(s))
}

func encodeChange(c sandpit.Change) ([]byte, error) {
	if err := isText("name", c.Name); err != nil {
		return nil, err
	}
	if err := isTextMap("label", c.Labels); err != nil {
		return nil, err
	}
	if err := isText("label", c.RemoveLabels...); err != nil {
		return nil, err
	}
	change, err := v1.FromChange(c)
	if err != nil {
		return nil, err
	}
	return encode(change)
}

func encodeCommand(c sandpit.Command) ([]byte, error) {
	if err := isText("user", c.User); err != nil {
		return nil, err
	}
	b, err := encode(v1.FromCommand(c))
	if err == nil && len(b) > v1.MaxCommand {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the command is longer than %d MiB of JSON", v1.MaxCommand>>20), "put long arguments and scripts into files of the sandbox")
	}
	return b, err
}

func encodeEgress(e sandpit.Egress) ([]byte, error) {
	if err := isText("egress", egressTexts(e)...); err != nil {
		return nil, err
	}
	if v := v1.FromEgress(e); v != nil {
		return encode(v)
	}
	return encode(v1.Egress{})
}

func egressTexts(e sandpit.Egress) []string {
	return slices.Concat([]string{string(e.Preset)}, e.Allow, e.Deny, e.Resolve, e.DNS)
}

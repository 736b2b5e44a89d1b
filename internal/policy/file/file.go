// Package file reads policies from a file, and again when it changes.
//
// The file is YAML. Each policy starts from what is built in for servers
// (policy.ServerDefault) and says what is different:
//
//	pool: 8                        # sandboxes held ready
//	policies:
//	  default:                     # of keys that name no other
//	    images: [host, "debian:*", "ghcr.io/org/*@sha256:*"]
//	    defaults: {memory: 512m, life: 1h, idle: 10m}
//	    maximum: {memory: 4g, cpus: 4, life: 24h, idle: 1h}
//	    on-expiry: [remove, stop]  # what may be asked for; the first is the default
//	    sandboxes: 50              # at once, in a namespace
//	    creates-per-second: 10
//	    mounts: [/srv/data, "/srv/scratch:rw"]
//	    write-paths: [/workspace, /tmp]
//
// A list that is given replaces that which is built in; an empty one allows
// nothing.
package file

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Bounds of a file.
const (
	maxFile     = 256 << 10 // bytes
	maxPolicies = 1000
	maxItems    = 1000 // of a list
	maxPool     = 10_000
)

// Default is the name of the policy that always exists.
const Default = "default"

// Set is what a file says.
type Set struct {
	// Pool is how many sandboxes are held ready; -1: not said.
	Pool int

	policies map[string]policy.Policy
}

// BuiltIn is the set where there is no file.
func BuiltIn() *Set {
	return &Set{Pool: -1, policies: map[string]policy.Policy{Default: policy.ServerDefault()}}
}

// Policy returns a policy by name; "" is Default. The error of a name that is
// not there matches sandpit.ErrForbidden: who holds a key of a policy that was
// removed may do nothing.
func (s *Set) Policy(name string) (policy.Policy, error) {
	if name == "" {
		name = Default
	}
	p, ok := s.policies[name]
	if !ok {
		return policy.Policy{}, sandpit.WithHint(fmt.Errorf("%w: the policy %q no longer exists", sandpit.ErrForbidden, name),
			"add it to the policy file again, or use a key with another policy")
	}
	return p, nil
}

// Names returns the names of the policies, in order.
func (s *Set) Names() []string { return sorted(s.policies) }

// Read reads a file. Errors match sandpit.ErrInvalid, and say the file, the
// line and what is wrong there.
func Read(name string) (*Set, error) {
	set, _, err := read(name)
	return set, err
}

func read(name string) (*Set, os.FileInfo, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the policy: %w: %w", sandpit.ErrInvalid, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("reading the policy: %w: %w", sandpit.ErrInvalid, err)
	case !info.Mode().IsRegular():
		return nil, info, fmt.Errorf("reading the policy: %s is not a regular file: %w", name, sandpit.ErrInvalid)
	case info.Mode().Perm()&0o002 != 0:
		return nil, info, sandpit.WithHint(fmt.Errorf("reading the policy: %s is writable by everyone: %w", name, sandpit.ErrInvalid), "chmod o-w "+name)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, info, fmt.Errorf("reading the policy: %w: %w", sandpit.ErrInvalid, err)
	}
	if len(data) > maxFile {
		return nil, info, fmt.Errorf("reading the policy: %s is longer than 256 KiB: %w", name, sandpit.ErrInvalid)
	}
	set, err := Parse(name, data)
	return set, info, err
}

// Parse reads the text of a file; name is for its errors, which match
// sandpit.ErrInvalid.
func Parse(name string, data []byte) (*Set, error) {
	set := BuiltIn()
	root, err := parseYAML(data)
	if err == nil && root != nil {
		err = set.read(root)
	}
	if err == nil {
		return set, nil
	}
	var at *lineError
	if errors.As(err, &at) {
		wrapped := fmt.Errorf("reading the policy: %s:%d: %s: %w", name, at.line, at.text, sandpit.ErrInvalid)
		if at.hint == "" {
			return nil, wrapped
		}
		return nil, sandpit.WithHint(wrapped, at.hint)
	}
	return nil, fmt.Errorf("reading the policy: %s: %w: %w", name, sandpit.ErrInvalid, err)
}

// Package file reads policies from a file, and reads them again when it changes.
//
// The file is YAML. The policy default starts from the built-in one for servers
// (policy.ServerDefault), each other policy from default, wherever that is in the file. Each states
// what is different:
//
//	pool:                          # or a number, which is that of blanks
//	  blanks: 8                    # size of the warm pool
//	  warm:                        # sandboxes that are held ready in full, with an interpreter
//	    - {image: host, language: python, modules: [json], size: 2, policy: default}
//	aliases:                       # of images, for clients of other projects
//	  base: python:3.12-slim
//	policies:
//	  default:                     # of keys that name no other
//	    images: [host, "debian:*", "ghcr.io/org/*@sha256:*"]
//	    defaults: {memory: 512m, life: 1h, idle: 10m}
//	    maximum: {memory: 4g, cpus: 4, life: 24h, idle: 1h}
//	    on-expiry: [remove, stop]  # what may be asked for; the first is the default
//	    sandboxes: 50              # at once, in a namespace
//	    creates-per-second: 10
//	    previews: 8h               # how long a preview may last; false: none
//	    open-ports: loopback       # where ports that a client of another project opens need no key; or true, false
//	    saved-images: 50g          # what a namespace saves as images; false: none
//	    contexts: 8                # of a sandbox, to run code in; 0: none
//	    mounts: [/srv/data, "/srv/scratch:rw"]
//	    write-paths: [/workspace, /tmp]
//	    egress: [registries, "*.example.com:443"]  # what may be asked for; or public, all
//	    deny: [telemetry.example.com]              # by every sandbox
//	    resolve: [public, 10.1.2.0/24]             # addresses that --resolve and --dns may name
//
// Aliases are added to the built-in ones, which all stand for host. Every field is inherited on its own, and so is each limit in defaults and maximum. A list
// replaces the inherited one; an empty list allows nothing. The maximum also bounds traffic:
// connections, new-connections (per second), sent, received, and bandwidth (per second). The
// values that take a bound away are idle: never, write-paths: [/], and unlimited for
// saved-images, creates-per-second, sent, received and bandwidth. A policy that is only a
// name is the same as what it starts from. Other names without a value are errors.
package file

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/yamldoc"
)

// Bounds of a file.
const (
	maxFile     = 256 << 10 // bytes
	maxPolicies = 1000
	maxPool     = 10_000
	maxAliases  = 1000
	maxAlias    = 255 // bytes of a name
)

// Default is the name of the policy that always exists, and from which others start.
const Default = "default"

// Values without a bound, beside "never".
const (
	unlimited  = "unlimited" // creates-per-second
	everywhere = "/"         // write-paths
)

// Set is the content of a policy file.
type Set struct {
	// Pool is the size of the warm pool; -1: not set.
	Pool int

	// Warm are sandboxes that are held ready in full.
	Warm []Warm

	// Named is the number of policies that the file names.
	Named int

	warmAt   []yamldoc.Value // where Warm are in the file
	policies map[string]policy.Policy
	aliases  map[string]string // images by the names that clients of dialects send
}

// BuiltIn is the set without a file.
func BuiltIn() *Set {
	return &Set{
		Pool: -1, policies: map[string]policy.Policy{Default: policy.ServerDefault()},
		aliases: map[string]string{"base": "host", "code-interpreter-v1": "host", "microsandbox/python": "host", "microsandbox/node": "host"},
	}
}

// Alias returns the image that a name stands for, which clients of other projects send. The error for an
// unknown name quotes it, and matches sandpit.ErrNotFound.
func (s *Set) Alias(name string) (image string, err error) {
	if image, ok := s.aliases[name]; ok {
		return image, nil
	}
	return "", sandpit.WithHint(fault.NotFoundf("no image has the alias %.300q", name),
		"use one of: "+strings.Join(slices.Sorted(maps.Keys(s.aliases)), ", ")+"; or ask the operator to add it to aliases in the policy file")
}

// Policy returns a policy by name; "" is Default. The error for an unknown name matches
// sandpit.ErrForbidden: a key whose policy was removed may do nothing.
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
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.policies)) }

// read reads a file. Errors match sandpit.ErrInvalid, and name the file, the line and the
// mistake.
func read(name string) (*Set, os.FileInfo, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, sandpit.WithHint(fault.Invalidf("reading the policy: %w", err), "create it, or correct policy in server.yaml")
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, fault.Invalidf("reading the policy: %w", err)
	case !info.Mode().IsRegular():
		return nil, info, fault.Invalidf("reading the policy: %s is not a regular file", name)
	case info.Mode().Perm()&0o002 != 0:
		return nil, info, sandpit.WithHint(fault.Invalidf("reading the policy: %s is writable by everyone", name), "chmod o-w "+name)
	}
	set, err := parse(name, f)
	return set, info, err
}

func parse(name string, r io.Reader) (*Set, error) {
	set := BuiltIn()
	if err := yamldoc.Decode(name, r, maxFile, set.read); err != nil {
		return nil, fault.Invalidf("reading the policy: %w", err)
	}
	return set, nil
}

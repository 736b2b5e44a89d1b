package rpc

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// config says what sandbox to make. Lists and maps may be null.
type config struct {
	Image     string            `json:"image"`
	Memory    uint32            `json:"memory"` // MiB; 0: the default of the policy
	CPUs      uint8             `json:"cpus"`   // 0: the default of the policy. Clients round fractions
	Volumes   []string          `json:"volumes"`
	Ports     []string          `json:"ports"`
	Envs      []string          `json:"envs"`
	DependsOn []string          `json:"depends_on"`
	Workdir   string            `json:"workdir"`
	Shell     string            `json:"shell"` // of scripts
	Scripts   map[string]string `json:"scripts"`
	Exec      string            `json:"exec"` // the command that runs from each start on

	// These fields of other APIs bound what a sandbox may do. A caller who sends one must not believe that it does.
	Scope     json.RawMessage `json:"scope,omitempty"`
	Network   json.RawMessage `json:"network,omitempty"`
	Secrets   json.RawMessage `json:"secrets,omitempty"`
	Resources json.RawMessage `json:"resources,omitempty"`
	Rlimits   json.RawMessage `json:"rlimits,omitempty"`
	Mounts    json.RawMessage `json:"mounts,omitempty"`
}

// check refuses what can't be done.
func (k *config) check() error {
	for name, raw := range map[string]json.RawMessage{"scope": k.Scope, "network": k.Network, "secrets": k.Secrets, "resources": k.Resources, "rlimits": k.Rlimits, "mounts": k.Mounts} {
		if dialect.Given(raw) {
			return dialect.Unsupported("config." + name + " is")
		}
	}
	switch {
	case len(k.Ports) > 0:
		return sandpit.WithHint(dialect.Unsupported("publishing ports of a sandbox (config.ports) is"), "use 'sandpit forward' or a preview")
	case len(k.DependsOn) > 0:
		return sandpit.WithHint(dialect.Unsupported("starting other sandboxes first (config.depends_on) is"), "start them yourself")
	}
	for name := range k.Scripts {
		if !notation.IsName(name) {
			return sandpit.WithHint(gate.Invalid(fmt.Sprintf("%.80q can't be the name of a script", name), ""), notation.NameHint)
		}
	}
	_, err := k.mounts()
	return err
}

// mounts returns the volumes: directories of the server's machine, which the policy must allow.
func (k *config) mounts() (all []sandpit.Mount, err error) {
	for _, v := range k.Volumes {
		source, target, found := strings.Cut(v, ":")
		if !found {
			target = source
		}
		if !path.IsAbs(source) || !path.IsAbs(target) {
			return nil, gate.Invalid(fmt.Sprintf("the volume %.200q is not of the form HOST:GUEST with absolute paths", v), "")
		}
		all = append(all, sandpit.Mount{Source: source, Target: target})
	}
	return all, nil
}

// spec returns the Spec that the configuration stands for, but for its image.
func (k *config) spec(name string) (sandpit.Spec, error) {
	mounts, err := k.mounts()
	return sandpit.Spec{
		Name: name, Env: k.Envs, WorkDir: k.Workdir, Mounts: mounts, RootInside: len(k.Scripts) > 0, // root owns the scripts
		Limits: sandpit.Limits{Memory: int64(k.Memory) << 20, CPUs: float64(k.CPUs)},
	}, err
}

// change returns how the limits of a sandbox must be changed that was made with another configuration.
func (k *config) change() sandpit.Change {
	return sandpit.Change{Limits: sandpit.Limits{Memory: int64(k.Memory) << 20, CPUs: float64(k.CPUs)}}
}

// state is what must be known about a sandbox later: its data of the dialect. Variables of the environment may be
// secret, so that it has only a checksum of them.
type state struct {
	Salt    string `json:"salt"`
	Sum     string `json:"sum"` // of the configuration, but for memory and cpus
	Memory  uint32 `json:"memory,omitempty"`
	CPUs    uint8  `json:"cpus,omitempty"`
	Shell   string `json:"shell,omitempty"`
	Exec    string `json:"exec,omitempty"`    // for Shell
	Stopped int64  `json:"stopped,omitempty"` // when it was last stopped, in nanoseconds since 1970
}

// dialectName is the name of the data. That of the other API has a name of its own.
const dialectName = "microsandbox-rpc"

// Names in the original's images.
const (
	scriptsDir   = "/.sandbox/scripts"
	startScript  = "start" // which runs from each start on if there is no config.exec
	defaultShell = "/bin/sh"
)

// newState returns the state of a sandbox with a configuration.
func (k *config) newState() state {
	s := state{Salt: rand.Text(), Memory: k.Memory, CPUs: k.CPUs, Shell: cmp.Or(k.Shell, defaultShell), Exec: k.Exec}
	if _, ok := k.Scripts[startScript]; ok && s.Exec == "" {
		s.Exec = scriptsDir + "/" + startScript
	}
	s.Sum = k.sum(s.Salt)
	return s
}

// sum returns the checksum of a configuration.
func (k *config) sum(salt string) string {
	fixed := *k
	fixed.Memory, fixed.CPUs = 0, 0
	fixed.Volumes, fixed.Envs = slices.Concat(k.Volumes), slices.Concat(k.Envs) // none and null are the same
	text, _ := json.Marshal(fixed)                                              // of strings, which never fails
	sum := sha256.Sum256(append([]byte(salt), text...))
	return hex.EncodeToString(sum[:])
}

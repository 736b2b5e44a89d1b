package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// OwnSecret is the present value of a sandbox's own secret.
type OwnSecret struct {
	Value string    // "": it was removed, or is lost
	SetAt time.Time // when the secret got it
}

// Made is everything that a sandbox was made with. The sandbox's record
// has it, so that the sandbox can be made again.
type Made struct {
	// Spec is the requested Spec, completed by the policy. Its Labels, Idle and OnExpiry
	// are the initial ones.
	Spec sandpit.Spec

	// Policy is the name of the policy that allowed it; "" for a policy without a name.
	Policy string

	// Guest is the configuration that the guest was given.
	Guest client.Config

	// CA is Terms.CA, or nil. It is a secret.
	CA []byte

	// Own are the sandbox's own secrets that are bound to hosts, by name: see sandpit.Secret.Value,
	// which the Spec lacks. Only they may change.
	Own map[string]OwnSecret

	// Trusted are the paths of the files of certificates that were put into its root. It is nil if an earlier version
	// has made the sandbox.
	Trusted []string

	// Parent is the ID of the sandbox that this one was made from, or "".
	Parent string
}

// madeRecord is Made in a record. The environment of a Spec is in Record.Secret, and so are the
// authority and the values of own secrets; the environment of the guest is the image's and that of the Spec.
type madeRecord struct {
	Spec    sandpit.Spec  `json:"spec"`
	Env     int           `json:"env,omitempty"` // how many variables the Spec has
	CA      bool          `json:"ca,omitempty"`
	Own     []string      `json:"own,omitempty"` // the names of own secrets
	Policy  string        `json:"policy,omitempty"`
	Guest   client.Config `json:"guest"`
	Parent  string        `json:"parent,omitempty"`
	Trusted []string      `json:"trusted,omitzero"`
}

// madeSecret is Record.Secret of a sandbox with an authority, and so of all with secrets that are bound to
// hosts. That of another is Env, or nothing.
type madeSecret struct {
	Env rawStrings           `json:"env,omitempty"`
	CA  []byte               `json:"ca"`
	Own map[string]OwnSecret `json:"own,omitempty"`
}

// openMade reads Record.Secret.
func openMade(secret json.RawMessage) (m madeSecret, err error) {
	switch {
	case bytes.HasPrefix(secret, []byte("{")):
		err = json.Unmarshal(secret, &m)
	case secret != nil:
		err = json.Unmarshal(secret, &m.Env)
	}
	return m, err
}

// encodeMade returns m as a record has it, and its environment, which may hold secrets of
// the caller. Other texts must be UTF-8; else the error matches sandpit.ErrInvalid.
func encodeMade(m Made) (text, secret json.RawMessage, err error) {
	texts := append([]string{m.Spec.Name, m.Spec.Image, m.Spec.Hostname, m.Spec.WorkDir, m.Spec.User}, m.Spec.Write...)
	for _, mount := range m.Spec.Mounts {
		texts = append(texts, mount.Source, mount.Target)
	}
	for _, t := range m.Spec.Tmpfs {
		texts = append(texts, t.Target)
	}
	if i := slices.IndexFunc(texts, func(s string) bool { return !utf8.ValidString(s) }); i >= 0 {
		return nil, nil, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "%.100q is not UTF-8", texts[i]), "use names and paths that are UTF-8 for sandboxes of a server")
	}
	switch {
	case m.CA != nil || len(m.Own) > 0:
		secret, err = json.Marshal(madeSecret{m.Spec.Env, m.CA, m.Own})
	case len(m.Spec.Env) > 0:
		secret, err = json.Marshal(rawStrings(m.Spec.Env))
	}
	if err != nil {
		return nil, nil, err
	}
	r := madeRecord{Spec: m.Spec, Env: len(m.Spec.Env), CA: m.CA != nil, Own: slices.Sorted(maps.Keys(m.Own)), Policy: m.Policy, Guest: m.Guest, Trusted: m.Trusted, Parent: m.Parent}
	r.Spec.Env, r.Guest.Env = nil, nil
	text, err = json.Marshal(r)
	return text, secret, err
}

// decodeMade decodes the result of encodeMade, for a sandbox of an image. The error matches
// sandpit.ErrIntegrity if the environment is lost.
func decodeMade(text, secret json.RawMessage, config image.Config) (Made, error) {
	var r madeRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return Made{}, fmt.Errorf("reading what the sandbox was made with: %w", err)
	}
	m := Made{Spec: r.Spec, Policy: r.Policy, Guest: r.Guest, Trusted: r.Trusted, Parent: r.Parent}
	sealed, err := openMade(secret)
	if err != nil {
		return Made{}, fmt.Errorf("reading the environment that the sandbox was made with: %w", err)
	}
	if m.Spec.Env, m.CA, m.Own = sealed.Env, sealed.CA, sealed.Own; len(m.Spec.Env) != r.Env || (m.CA != nil) != r.CA || len(m.Own) != len(r.Own) {
		return Made{}, fault.Errorf(sandpit.ErrIntegrity, "reading what the sandbox was made with: its environment is lost")
	}
	m.Guest.Env = slices.Concat(config.Env, m.Spec.Env)
	return m, nil
}

// Made returns everything that the sandbox was made with. It returns ErrUnsupported for a
// sandbox that ends with its engine and has no record. For a sandbox from before records
// held this, only the name, image and limits are known.
func (s *Sandbox) Made() (Made, error) {
	s.mu.Lock()
	origin, secret, config := s.origin, s.secret, s.image
	s.mu.Unlock()
	if origin == nil {
		return Made{}, fault.Errorf(sandpit.ErrUnsupported, "reading the record of sandbox %s: it has none", s.Name())
	}
	return decodeMade(origin, secret, config)
}

// rawStrings are strings of any bytes. In JSON, one that is not UTF-8 is an object with
// its bytes in base64.
type rawStrings []string

type rawString struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON writes the list.
func (r rawStrings) MarshalJSON() ([]byte, error) {
	list := make([]any, len(r))
	for i, s := range r {
		if list[i] = s; !utf8.ValidString(s) {
			list[i] = rawString{[]byte(s)}
		}
	}
	return json.Marshal(list)
}

// UnmarshalJSON reads a list that MarshalJSON wrote.
func (r *rawStrings) UnmarshalJSON(text []byte) error {
	var items []json.RawMessage
	if err := json.Unmarshal(text, &items); err != nil {
		return err
	}
	list := make([]string, len(items))
	for i, item := range items {
		if !bytes.HasPrefix(item, []byte("{")) {
			if err := json.Unmarshal(item, &list[i]); err != nil {
				return err
			}
			continue
		}
		var raw rawString
		if err := json.Unmarshal(item, &raw); err != nil {
			return err
		}
		list[i] = string(raw.Base64)
	}
	*r = list
	return nil
}

// Bounds of the data of dialects.
const (
	maxDialects    = 8
	maxDialectName = 32       // bytes
	maxDialectData = 64 << 10 // bytes of one dialect
)

// A Box is a sandbox of an engine, with what a dialect needs beyond sandpit.Sandbox. All
// sandboxes that Engine and Tenant return are Boxes.
type Box interface {
	sandpit.Sandbox
	sandpit.Committer

	// Made returns everything that the sandbox was made with. It returns ErrUnsupported for
	// a sandbox that ends with its engine and has no record.
	Made() (Made, error)

	// RunCounted is RunCode. begins is called before anything that comes of the run, with the number that CodeResult.Run will have,
	// unless that is not known then: the language has no contexts, or an earlier version has started the interpreter.
	RunCounted(ctx context.Context, code sandpit.Code, begins func(run int)) (sandpit.CodeResult, error)

	// RootFiles returns the files of the sandbox with the rights of root if the sandbox was made with Spec.RootInside,
	// and else with those of owner. What is created, or replaced by Write, belongs to owner, in the form of Spec.User, and relative
	// paths begin where those of owner begin. Without an owner, files belong to the user whose rights are used: root, or the sandbox's own.
	RootFiles(owner string) sandpit.Files

	// Settled waits until the sandbox is neither being made nor being removed: until it runs, has failed or is gone. It returns
	// the error of ctx if that ends before, and that of a removal that fails.
	Settled(ctx context.Context) error

	// OwnSecrets returns the uses of the sandbox's own secrets that are bound to hosts and were not
	// removed, with the time when each got its value, which they lack.
	OwnSecrets() ([]sandpit.Secret, []time.Time)

	// SetOwnSecret replaces the value of an own secret that is bound to hosts, or removes it with "".
	// When it returns, that is in force; if it can't be, the sandbox reaches nothing any more. It
	// returns ErrNotFound if the sandbox has none of that name, and ErrInvalid for a value that no
	// secret can have. Errors never have the value.
	SetOwnSecret(ctx context.Context, name, value string) error

	// SetDialect stores data, which is JSON, with the sandbox for a dialect, whose name has
	// at most 32 bytes: at most 64 KiB for each of at most 8 dialects. Later engines have
	// it, too, if the sandbox outlives this one. nil removes it. After an error of the
	// store nothing has changed. The error matches sandpit.ErrInvalid, ErrExhausted or
	// ErrClosed, or is that of the store.
	SetDialect(ctx context.Context, name string, data json.RawMessage) error

	// ChangeDialect is SetDialect with what change makes of the data that is stored; nil: there is none. Nothing else changes
	// the sandbox's record meanwhile. If change returns what is stored, or an error, nothing is written.
	ChangeDialect(ctx context.Context, name string, change func(json.RawMessage) (json.RawMessage, error)) error

	// Dialect returns the data that is stored for a dialect, or nil.
	Dialect(name string) json.RawMessage
}

var _ Box = view{}

// CreateFor is Create with initial data of a dialect, as Box.SetDialect takes it. The first
// record of the sandbox has it, so that a crash can't separate the two.
func (t *Tenant) CreateFor(ctx context.Context, spec sandpit.Spec, dialect string, data json.RawMessage) (Box, error) {
	if err := checkDialect(dialect, data); err != nil {
		return nil, err
	}
	dialects := map[string]json.RawMessage{}
	if data != nil {
		dialects[strings.Clone(dialect)] = bytes.Clone(data)
	}
	s, err := t.engine.create(ctx, t, spec, dialects)
	if err != nil {
		return nil, err
	}
	return view{s, t}, nil
}

// FindFor finds the sandbox that has data of a dialect, or returns ErrNotFound.
func (t *Tenant) FindFor(dialect string, data json.RawMessage) (Box, error) {
	for _, s := range t.engine.Sandboxes() {
		if s.namespace == t.namespace && t.sees(s.nested) && bytes.Equal(s.Dialect(dialect), data) {
			return view{s, t}, nil
		}
	}
	return nil, fault.Errorf(sandpit.ErrNotFound, "no sandbox has these data of the dialect %q", dialect)
}

func checkDialect(name string, data json.RawMessage) error {
	if name == "" || len(name) > maxDialectName || len(data) > maxDialectData || data != nil && !json.Valid(data) {
		return fault.Errorf(sandpit.ErrInvalid, "keeping what the dialect %.40q needs: not a name of up to %d bytes with JSON of up to %d bytes", name, maxDialectName, maxDialectData)
	}
	return nil
}

// SetDialect stores data for a dialect. See Box.
func (s *Sandbox) SetDialect(ctx context.Context, name string, data json.RawMessage) error {
	return s.ChangeDialect(ctx, name, func(json.RawMessage) (json.RawMessage, error) { return data, nil })
}

// ChangeDialect changes the data of a dialect. See Box.
func (s *Sandbox) ChangeDialect(ctx context.Context, name string, change func(json.RawMessage) (json.RawMessage, error)) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	now := s.Dialect(name)
	data, err := change(now)
	if err == nil {
		err = checkDialect(name, data)
	}
	if err != nil || data != nil && bytes.Equal(data, now) {
		return err
	}
	s.mu.Lock()
	was, had := s.dialects[name]
	full := !had && data != nil && len(s.dialects) >= maxDialects
	s.mu.Unlock()
	if full {
		return fault.Errorf(sandpit.ErrQuota, "storing data of the dialect %q: the limit of %d dialects for one sandbox is reached", name, maxDialects)
	}
	more := int64(len(data) - len(was))
	if more > 0 {
		if err := s.pay(more); err != nil {
			return err
		}
	}
	s.setDialect(name, data)
	err = s.put(ctx, nil)
	if err != nil {
		s.setDialect(name, was)
		s.saveLater() // the store may have taken it all the same
		more = -more
	}
	if more < 0 {
		s.refund(-more)
	}
	return err
}

func (s *Sandbox) setDialect(name string, data json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if data == nil {
		delete(s.dialects, name)
		return
	}
	if s.dialects == nil {
		s.dialects = map[string]json.RawMessage{}
	}
	s.dialects[strings.Clone(name)] = bytes.Clone(data)
}

// Dialect returns the data that is stored for a dialect, or nil.
func (s *Sandbox) Dialect(name string) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.dialects[name])
}

package interpreter

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Origin says how an interpreter comes to be.
type Origin int

// The origins. The guest protocol says what forks from what.
const (
	Cold   Origin = iota // its program is executed
	Zygote               // the same, and others can be forked from it
	Fork                 // it is forked from a zygote, if the sandbox has one that fits; otherwise it is cold
)

// Starter starts interpreters in a sandbox.
type Starter interface {
	// Start starts a process in the background.
	Start(ctx context.Context, cmd sandpit.Command, o Origin) (sandpit.Process, error)

	// Follow passes the output of a process on, from now on. The process waits for the writers,
	// and nothing is lost. done is closed when all has been passed on after the end of the
	// process, or after leave was called.
	Follow(id string, stdout, stderr io.Writer) (done <-chan struct{}, leave func(), err error)
}

// Place is a sandbox as contexts need it.
type Place interface {
	Starter

	// Processes lists the processes, oldest first.
	Processes(ctx context.Context) ([]sandpit.ProcessInfo, error)

	// Process returns a process that was started earlier. It does not keep the sandbox from being idle.
	Process(id string) (sandpit.Process, error)

	// Written returns how much output of a process is known to exist, in bytes. After a restart of the server
	// that is at least what the process had written before.
	Written(id string) int64

	// Full reports whether the output of a process has reached its limit, so that more is dropped, and all
	// up to that was passed on to those who follow it.
	Full(id string) bool

	// DialUnix connects to a unix socket.
	DialUnix(ctx context.Context, path string) (net.Conn, error)

	// ReadFile returns the content of a regular file. If it is longer than most, in bytes, ReadFile fails.
	ReadFile(ctx context.Context, path string, most int64) ([]byte, error)

	// Charge charges memory to the sandbox, in bytes; a negative number returns it.
	Charge(n int64) error

	// Pay charges memory for as long as the sandbox exists, in bytes.
	Pay(n int64) error

	// Add is Pay for memory that is in use in any case. A negative number returns it.
	Add(n int64)
}

// Manager has the contexts of a sandbox.
type Manager struct {
	place Place

	mu       sync.Mutex
	loaded   bool     // the contexts of earlier servers were found
	contexts []*state // oldest first
}

// New returns the contexts of a sandbox.
func New(place Place) *Manager { return &Manager{place: place} }

// Sockets begins the paths of the sockets of contexts.
const Sockets = "/tmp/.sandpit-"

// random returns a random text for a nonce or a name.
func random() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // which never fails
	return hex.EncodeToString(b)
}

func checkID(id string) error {
	if id == "" || len(id) > sandpit.MaxContextID || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || strings.ContainsAny(id[:1], "._-") {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "%.80q can't be the ID of a context", id), "use letters, digits, \".\", \"_\" and \"-\", beginning with a letter or digit")
	}
	return nil
}

// load finds the contexts that an earlier server has left. Precondition: m.mu is held.
func (m *Manager) load(ctx context.Context) error {
	if m.loaded {
		return nil
	}
	all, err := m.place.Processes(ctx)
	if err != nil {
		return err
	}
	for _, info := range all {
		i, ok := m.identify(&info)
		if !ok || m.waits(i, info.ID) {
			continue
		}
		p, err := m.place.Process(info.ID)
		if err != nil {
			continue // it has just ended
		}
		c := m.find(i.id)
		if c == nil {
			if len(m.contexts) == sandpit.MaxContexts {
				continue
			}
			c = m.add(i.id, i.language, "", nil, info.StartedAt)
			c.known, c.found, c.cost = false, true, contextCost
			m.place.Add(c.cost)
		}
		c.mu.Lock()
		c.is = newInstance(p, i.socket)
		c.mu.Unlock()
	}
	m.loaded = true
	return nil
}

// identify says which context a process is, if it is one that runs.
func (m *Manager) identify(info *sandpit.ProcessInfo) (i identity, ok bool) {
	if info.Result != nil || info.ArgvCut || !info.Background {
		return identity{}, false
	}
	return parseCommand(info.Argv)
}

// waits reports whether a process waits for the first run of its context: it has written nothing but the marks
// that say so.
func (m *Manager) waits(i identity, process string) bool {
	return i.tag == readyTag && m.place.Written(process) <= int64(2*len(markOf(random(), false)))
}

// ready returns the interpreter that waits to be a context, or nil.
func (m *Manager) ready(ctx context.Context, id string) *instance {
	all, _ := m.place.Processes(ctx) // if that fails, so does the run
	for _, info := range all {
		i, ok := m.identify(&info)
		if !ok || i.id != id || !m.waits(i, info.ID) {
			continue
		}
		if p, err := m.place.Process(info.ID); err == nil {
			return newInstance(p, i.socket)
		}
	}
	return nil
}

// find returns a context, or nil. Precondition: m.mu is held.
func (m *Manager) find(id string) *state {
	for _, c := range m.contexts {
		if c.id == id {
			return c
		}
	}
	return nil
}

// add adds a context. Precondition: m.mu is held.
func (m *Manager) add(id string, l language, dir string, env []string, created time.Time) *state {
	c := &state{m: m, id: id, language: l, dir: dir, env: env, known: true, created: created, turn: make(chan struct{}, 1), signals: make(chan struct{}, 1), gone: make(chan struct{})}
	m.contexts = append(m.contexts, c)
	return c
}

// create adds a context, as allow allows and if there is memory for it. Precondition: m.mu is held.
func (m *Manager) create(id string, l language, dir string, env []string, allow Allow) (*state, error) {
	limit, err := allow()
	if err == nil && len(m.contexts) >= limit {
		err = tooMany(limit)
	}
	if err != nil {
		return nil, fmt.Errorf("creating a context: %w", err)
	}
	cost := contextCost + sizeOf(dir, env)
	if err := m.place.Pay(cost); err != nil {
		return nil, fmt.Errorf("creating a context: %w", err)
	}
	c := m.add(id, l, dir, env, time.Now())
	c.cost = cost
	return c, nil
}

// Allow returns how many contexts a sandbox may have.
type Allow func() (limit int, err error)

// contextCost is the memory of a context without its directory and variables, in bytes.
const contextCost int64 = 4 << 10

// sizeOf returns the memory of a directory and variables.
func sizeOf(dir string, env []string) int64 {
	n := int64(len(dir))
	for _, v := range env {
		n += int64(len(v))
	}
	return n
}

// admit lets runs use a context that was found in the process table. Any program can look like an interpreter there, so only
// the oldest contexts are admitted, up to the limit.
// Precondition: m.mu is held.
func (m *Manager) admit(c *state, allow Allow) error {
	if !c.found {
		return nil
	}
	limit, err := allow()
	if err == nil && slices.Index(m.contexts, c) >= limit {
		err = tooMany(limit)
	}
	if err != nil {
		return fmt.Errorf("using the context %q, which an earlier server has left: %w", c.id, err)
	}
	c.found = false
	return nil
}

func tooMany(limit int) error {
	return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "the limit of %d contexts of a sandbox is reached", limit), "remove contexts that are no longer needed")
}

// get returns a context by its ID.
func (m *Manager) get(ctx context.Context, id string) (*state, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held(ctx, id)
}

// held is get. Precondition: m.mu is held.
func (m *Manager) held(ctx context.Context, id string) (*state, error) {
	if err := m.load(ctx); err != nil {
		return nil, err
	}
	if c := m.find(id); c != nil {
		return c, nil
	}
	return nil, fault.Errorf(sandpit.ErrNotFound, "the sandbox has no context %.80q", id)
}

// forRun returns the context of a run, and creates the default context of a language.
func (m *Manager) forRun(ctx context.Context, id, name string, allow Allow) (*state, error) {
	if id != "" {
		m.mu.Lock()
		defer m.mu.Unlock()
		c, err := m.held(ctx, id)
		if err == nil && name != "" && notation.LanguageName(name) != c.language.name {
			err = fault.Errorf(sandpit.ErrInvalid, "the context %q is for %s, not for %.40q", id, c.language.name, name)
		}
		if err == nil {
			err = m.admit(c, allow)
		}
		return c, err
	}
	l, err := languageOf(name)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.load(ctx); err != nil {
		return nil, err
	}
	if c := m.find(l.name); c != nil {
		return c, m.admit(c, allow)
	}
	c, err := m.create(l.name, l, "", nil, allow)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.is = m.ready(ctx, l.name)
	c.mu.Unlock()
	return c, nil
}

// Create creates a context and starts its interpreter. See sandpit.Coder.
func (m *Manager) Create(ctx context.Context, spec sandpit.NewContext, allow Allow) (sandpit.CodeContext, error) {
	l, err := languageOf(spec.Language)
	if err != nil {
		return sandpit.CodeContext{}, err
	}
	id := cmp.Or(spec.ID, random())
	if err := checkID(id); err != nil {
		return sandpit.CodeContext{}, err
	}
	if err := checkEnv(spec.Env); err != nil {
		return sandpit.CodeContext{}, err
	}
	if len(spec.Dir) > maxDir {
		return sandpit.CodeContext{}, fault.Errorf(sandpit.ErrInvalid, "the directory of a context is longer than %d bytes", maxDir)
	}
	m.mu.Lock()
	err = m.load(ctx)
	if err == nil && m.find(id) != nil {
		err = fault.Errorf(sandpit.ErrExists, "the sandbox has a context %q already", id)
	}
	var c *state
	if err == nil {
		c, err = m.create(id, l, spec.Dir, slices.Clone(spec.Env), allow)
	}
	m.mu.Unlock()
	if err != nil {
		return sandpit.CodeContext{}, err
	}
	if err := c.enter(ctx, nil); err != nil {
		return sandpit.CodeContext{}, err
	}
	defer c.leave()
	if _, err := c.running(ctx); err != nil {
		m.forget(c)
		return sandpit.CodeContext{}, err
	}
	return c.describe(), nil
}

// Contexts lists the contexts. See sandpit.Coder.
func (m *Manager) Contexts(ctx context.Context) ([]sandpit.CodeContext, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.load(ctx); err != nil {
		return nil, err
	}
	all := make([]sandpit.CodeContext, 0, len(m.contexts))
	for _, c := range m.contexts {
		all = append(all, c.describe())
	}
	return all, nil
}

// Interrupt interrupts the present run of a context. See sandpit.Coder.
func (m *Manager) Interrupt(ctx context.Context, id string) error {
	c, err := m.get(ctx, id)
	if err != nil {
		return err
	}
	return c.interrupt(ctx)
}

// Restart kills the interpreter of a context. See sandpit.Coder.
func (m *Manager) Restart(ctx context.Context, id string) error {
	c, err := m.get(ctx, id)
	if err != nil {
		return err
	}
	c.discover(ctx)
	return c.kill(ctx, restarted)
}

// Ends notes why all interpreters are about to end. Their next runs tell it.
func (m *Manager) Ends(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.contexts {
		c.mu.Lock()
		if c.is != nil {
			c.is.ends(why)
		}
		c.mu.Unlock()
	}
}

// Remove removes a context. See sandpit.Coder.
func (m *Manager) Remove(ctx context.Context, id string) error {
	c, err := m.get(ctx, id)
	if err != nil {
		return err
	}
	m.forget(c)
	return c.kill(ctx, "the context was removed")
}

// forget takes a context off the list. Runs that wait for it fail.
func (m *Manager) forget(c *state) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.contexts, c); i >= 0 {
		m.contexts = slices.Delete(m.contexts, i, i+1)
		close(c.gone)
		c.mu.Lock()
		m.place.Add(-c.cost)
		c.cost, c.known = 0, true // nothing is learnt any more
		c.mu.Unlock()
	}
}

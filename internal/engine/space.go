package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/logstore"
)

// space is a namespace with all that are nested in it: the sandboxes of one tenant, which has
// one share of everything. Engine.mu guards it.
type space struct {
	ids      map[string]*Sandbox
	names    map[nestedName]*Sandbox
	order    []*Sandbox // by created, which is different for each
	lost     []*Sandbox // those that have failed and of which nothing is left, oldest first
	rate     bucket
	sampling bool          // a round of samples is under way
	tries    chan struct{} // a place for each sandbox that is being made; see Engine.try
	pulls    chan struct{} // and for each image that is being fetched from a registry
	logs     *logstore.Share

	refreshing chan struct{} // the place of a sandbox whose secrets change
}

// nestedName is a name in a nested namespace, or in none.
type nestedName struct{ nested, name string }

// String returns the name as records have it. Neither of its parts has a '/'.
func (n nestedName) String() string {
	if n.nested == "" {
		return n.name
	}
	return n.nested + "/" + n.name
}

// splitName is the inverse of nestedName.String.
func splitName(text string) nestedName {
	if nested, name, ok := strings.Cut(text, "/"); ok {
		return nestedName{nested, name}
	}
	return nestedName{name: text}
}

// compareCreated orders sandboxes by age, oldest first.
func compareCreated(s *Sandbox, created int64) int {
	return cmp.Compare(s.created.UnixNano(), created)
}

// space returns a namespace, and makes it if necessary.
func (e *Engine) space(name string) *space {
	sp := e.spaces[name]
	if sp == nil {
		sp = &space{ids: map[string]*Sandbox{}, names: map[nestedName]*Sandbox{}, logs: e.logs.Share(), tries: make(chan struct{}, maxStuckSpace), pulls: make(chan struct{}, maxStuckSpace), refreshing: make(chan struct{}, 1)}
		e.spaces[name] = sp
	}
	return sp
}

// insert adds a sandbox. Preconditions: its name and id are free.
func (sp *space) insert(s *Sandbox) {
	i, _ := slices.BinarySearchFunc(sp.order, s.created.UnixNano(), compareCreated)
	sp.order = slices.Insert(sp.order, i, s)
	sp.ids[s.id], sp.names[s.called(s.Name())] = s, s
}

func (sp *space) remove(s *Sandbox) {
	if sp.ids[s.id] != s {
		return
	}
	if i, ok := slices.BinarySearchFunc(sp.order, s.created.UnixNano(), compareCreated); ok {
		sp.order = slices.Delete(sp.order, i, i+1)
	}
	delete(sp.ids, s.id)
	if called := s.called(s.Name()); sp.names[called] == s {
		delete(sp.names, called)
	}
	sp.lost = slices.DeleteFunc(sp.lost, func(l *Sandbox) bool { return l == s })
}

// live is the number of sandboxes that have not failed or of which something is left.
func (sp *space) live() int { return len(sp.order) - len(sp.lost) }

// register takes the name of a sandbox and sets its creation time, which is later than that
// of any other in its namespace.
func (e *Engine) register(s *Sandbox, t *Tenant) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEngineClosed
	}
	sp := e.space(s.namespace)
	if err := t.mayHave(sp.live() + 1); err != nil {
		return err
	}
	if err := sp.free(s.Name(), s); err != nil {
		return fmt.Errorf("creating sandbox %q: %w", s.Name(), err)
	}
	s.created = time.Now()
	if n := len(sp.order); n > 0 && !s.created.After(sp.order[n-1].created) {
		s.created = sp.order[n-1].created.Add(1)
	}
	sp.insert(s)
	return nil
}

var errEngineClosed = fault.Errorf(sandpit.ErrState, "creating a sandbox: the client is closed")

// free returns an error if a sandbox can't have a name.
func (sp *space) free(name string, s *Sandbox) error {
	other := cmp.Or(sp.names[s.called(name)], sp.ids[name])
	switch {
	case other == nil || other == s:
		return nil
	case slices.Contains(sp.lost, other):
		return sandpit.WithHint(fault.Errorf(sandpit.ErrExists, "a failed sandbox has that name"), "remove that sandbox first, or choose another name")
	}
	return nameTaken()
}

func nameTaken() error {
	return sandpit.WithHint(fault.Errorf(sandpit.ErrExists, "the name is in use"), "choose another name, or omit it")
}

// rename gives a sandbox another name beside the one it has, until settle or another
// rename takes one of them away.
func (e *Engine) rename(s *Sandbox, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	sp := e.spaces[s.namespace]
	if sp == nil || sp.ids[s.id] != s {
		return s.closedError()
	}
	if err := sp.free(name, s); err != nil {
		return err
	}
	sp.names[s.called(name)] = s
	return nil
}

// unname takes a name away from a sandbox, unless it is the one it has and is listed by.
func (e *Engine) unname(s *Sandbox, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sp := e.spaces[s.namespace]
	if called := s.called(name); sp != nil && sp.names[called] == s && (name != s.Name() || sp.ids[s.id] != s) {
		delete(sp.names, called)
	}
}

// forget removes a sandbox from the table. It reports whether its capacity must still be
// returned.
func (e *Engine) forget(s *Sandbox) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	owes := true
	if sp := e.spaces[s.namespace]; sp != nil {
		owes = !slices.Contains(sp.lost, s)
		sp.remove(s)
	}
	return owes
}

// find looks a sandbox up for a tenant, by id or name. It costs the same whether or not another
// namespace has one. A tenant outside of nested namespaces finds what is in them by its id alone.
func (e *Engine) find(t *Tenant, idOrName string) (*Sandbox, error) {
	nested := t.nested
	if nested == sandpit.AllNamespaces {
		nested = ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if sp := e.spaces[t.namespace]; sp != nil {
		if s := sp.names[nestedName{nested, idOrName}]; s != nil {
			return s, nil
		}
		if s := sp.ids[idOrName]; s != nil && (nested == "" || s.nested == nested) {
			return s, nil
		}
	}
	return nil, notFound(idOrName)
}

func notFound(idOrName string) error {
	return fault.Errorf(sandpit.ErrNotFound, "no sandbox is named %q", idOrName)
}

// ByID returns the sandbox of an ID, of whatever namespace, or nil.
func (e *Engine) ByID(id string) *Sandbox {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, sp := range e.spaces {
		if s := sp.ids[id]; s != nil {
			return s
		}
	}
	return nil
}

// Sandboxes returns every sandbox of every namespace, in no order.
func (e *Engine) Sandboxes() []*Sandbox {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []*Sandbox
	for _, sp := range e.spaces {
		all = append(all, sp.order...)
	}
	return all
}

// Live returns the number of sandboxes that have not failed.
func (e *Engine) Live() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, sp := range e.spaces {
		n += sp.live()
	}
	return n
}

// Namespaces returns the namespaces that have sandboxes, with their number.
func (e *Engine) Namespaces() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := map[string]int{}
	for name, sp := range e.spaces {
		if n := len(sp.order); n > 0 {
			all[name] = n
		}
	}
	return all
}

// pageBytes bounds the labels and reasons in a page. One sandbox is always in it.
const pageBytes = 1 << 20

// position returns the text of a position in a list: a time, with as many digits as the latest
// has, so that little else is one. That in a list with the newest first begins with "-".
func position(nanoseconds int64, newestFirst bool) string {
	text := fmt.Sprintf("%013s", strconv.FormatInt(nanoseconds, 36))
	if newestFirst {
		return "-" + text
	}
	return text
}

// list returns a page of what a tenant sees.
func (e *Engine) list(t *Tenant, q sandpit.ListQuery) (sandpit.Page, error) {
	after := int64(-1)
	if q.NewestFirst {
		after = math.MaxInt64
	}
	if q.After != "" {
		var err error
		if after, err = strconv.ParseInt(strings.TrimPrefix(q.After, "-"), 36, 64); err != nil || position(after, q.NewestFirst) != q.After {
			return sandpit.Page{}, fault.Errorf(sandpit.ErrInvalid, "listing sandboxes: %.40q is not a valid page position", q.After)
		}
	}
	if q.Limit < 0 {
		return sandpit.Page{}, fault.Errorf(sandpit.ErrInvalid, "listing sandboxes: the limit is negative")
	}
	limit := min(cmp.Or(q.Limit, sandpit.DefaultPage), sandpit.MaxPage)

	page := sandpit.Page{Seq: e.events.newest(t.namespace)} // before the states are read
	e.mu.Lock()
	defer e.mu.Unlock()
	sp := e.spaces[t.namespace]
	if sp == nil {
		return page, nil
	}
	i, found := slices.BinarySearchFunc(sp.order, after, compareCreated)
	listed := slices.Backward(sp.order[:i])
	if !q.NewestFirst {
		if found {
			i++
		}
		listed = slices.All(sp.order[i:])
	}
	var last *Sandbox
	size := int64(0)
	for _, s := range listed {
		if !t.sees(s.nested) {
			continue
		}
		info, ok := s.describe()
		if !ok || !q.Selects(info) {
			continue
		}
		size += ledger.Labels(info.Labels) + int64(len(info.Reason))
		if len(page.Sandboxes) == limit || size > pageBytes && last != nil {
			page.Next = position(last.created.UnixNano(), q.NewestFirst)
			break
		}
		page.Sandboxes, last = append(page.Sandboxes, info), s
	}
	return page, nil
}

// RemoveSelected removes the sandbox with an ID if a query selects it at that moment, and reports
// whether it does: since it was listed, its labels or state may have changed.
func (t *Tenant) RemoveSelected(ctx context.Context, id string, q sandpit.ListQuery) (selected bool, err error) {
	s, err := t.engine.find(t, id)
	if err != nil || s.id != id {
		return false, err
	}
	s.mu.Lock()
	info, ok := s.described()
	if ok && !q.Selects(info) {
		s.mu.Unlock()
		return false, nil
	}
	s.refuse()
	s.mu.Unlock()
	return true, s.Remove(ctx)
}

// describe returns the description of the sandbox, or false once it is being removed,
// unless the removal is stuck or has failed.
func (s *Sandbox) describe() (sandpit.Info, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.described()
}

// described is describe with s.mu held.
func (s *Sandbox) described() (sandpit.Info, bool) {
	info := s.info
	info.CreatedAt, info.State, info.Reason = s.created, s.state, s.reason
	info.Idle, info.OnExpiry = s.idle, s.onExpiry
	if s.state != sandpit.StateStopped {
		info.ExpiresAt = s.deadline
	}
	info.Labels, info.Rlimits = maps.Clone(s.labels), slices.Clone(s.rlimits)
	info.NotEnforced = slices.Clone(info.NotEnforced)
	unremoved := s.undone != nil
	switch {
	case s.stuck != nil:
		info.State, info.Reason = sandpit.StateFailed, s.stuck.describe().String()
	case unremoved:
		info.State, info.Reason = sandpit.StateFailed, "removing it failed: "+s.undone.Error()
	}
	return info, !s.removing || s.stuck != nil || unremoved
}

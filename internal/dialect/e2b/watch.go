package e2b

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// watchEvent is a change in a watched directory.
type watchEvent struct {
	Name  string `json:"name"` // relative to the directory
	Type  string `json:"type"`
	Entry *entry `json:"entry,omitempty"`

	ready bool // no change: all later changes will be told
}

// errWatchEnded is the error of a watch whose directory has gone.
var errWatchEnded = &gate.Refusal{Code: errcode.NotFound, Message: "the watched directory was removed or moved", Hint: "watch another one"}

// errOverflow is the error of a watch that has missed changes, which the protocol can't say.
var errOverflow = &gate.Refusal{Code: errcode.QuotaExceeded, Message: "changes of files were lost: there were too many at once", Hint: "watch fewer files, and list them again"}

// watch returns the changes in a directory. It begins with an event that is ready, and ends with errWatchEnded if the
// directory is removed.
func (f userFiles) watch(ctx context.Context, in *onPath) iter.Seq2[watchEvent, error] {
	root := f.inside(in.Path)
	return func(yield func(watchEvent, error) bool) {
		i, err := f.Stat(ctx, root)
		if err == nil && !i.IsDir() {
			err = &fs.PathError{Op: "watch", Path: in.Path, Err: sandpit.ErrNotDirectory}
		}
		if err != nil {
			yield(watchEvent{}, err)
			return
		}
		gone := false
		for e, err := range f.Watch(ctx, root, in.Recursive) {
			if err == nil && e.Kind == sandpit.WatchOverflow {
				err = errOverflow
			}
			if err != nil {
				yield(watchEvent{}, err)
				return
			}
			gone = gone || e.Kind == sandpit.WatchRemove && e.Path == ""
			for _, out := range eventsOf(e) {
				if in.Entry && !out.ready {
					if look, err := f.look(ctx, path.Join(root, out.Name)); err == nil { // it may be gone
						out.Entry = &look
					}
				}
				if !yield(out, nil) {
					return
				}
			}
		}
		if gone {
			yield(watchEvent{}, errWatchEnded)
		}
	}
}

// temporary begins the names of files in which the guest prepares those that it replaces.
const temporary = ".sandpit-"

// eventsOf returns what E2B tells about a change. A rename is told by its old name, and the new name is
// one that was created. A file that was replaced is told as one that was created and written. The name of the watched
// directory is ".".
func eventsOf(e sandpit.FileEvent) []watchEvent {
	if e.Path == "" {
		e.Path = "."
	}
	switch from, to := strings.HasPrefix(path.Base(e.From), temporary), strings.HasPrefix(path.Base(e.Path), temporary); {
	case to:
		return nil
	case from:
		return []watchEvent{{Name: e.Path, Type: "EVENT_TYPE_CREATE"}, {Name: e.Path, Type: "EVENT_TYPE_WRITE"}}
	}
	switch e.Kind {
	case sandpit.WatchReady:
		return []watchEvent{{ready: true}}
	case sandpit.WatchCreate:
		return []watchEvent{{Name: e.Path, Type: "EVENT_TYPE_CREATE"}}
	case sandpit.WatchWrite:
		return []watchEvent{{Name: e.Path, Type: "EVENT_TYPE_WRITE"}}
	case sandpit.WatchRemove:
		return []watchEvent{{Name: e.Path, Type: "EVENT_TYPE_REMOVE"}}
	case sandpit.WatchChmod:
		return []watchEvent{{Name: e.Path, Type: "EVENT_TYPE_CHMOD"}}
	case sandpit.WatchRename:
		created := watchEvent{Name: e.Path, Type: "EVENT_TYPE_CREATE"}
		if e.From == "" {
			return []watchEvent{created}
		}
		return []watchEvent{{Name: e.From, Type: "EVENT_TYPE_RENAME"}, created}
	}
	return nil
}

// watchDir streams the changes in a directory.
func watchDir(c *call, in *onPath) error {
	f, err := c.files(user(c.R))
	if err != nil {
		return err
	}
	ctx, cancel := c.UntilDrained()
	defer cancel(nil)
	if t := c.timeout(); t > 0 {
		timer := time.AfterFunc(t, func() { cancel(context.DeadlineExceeded) })
		defer timer.Stop()
	}
	s := c.newStream(`{"keepalive":{}}`)
	defer s.close()
	for e, err := range f.watch(ctx, in) {
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return s.end(err)
		}
		if e.ready {
			err = s.begin(`{"start":{}}`)
		} else {
			var message []byte
			if message, err = json.Marshal(map[string]watchEvent{"filesystem": e}); err == nil {
				err = s.send(message)
			}
		}
		if err != nil {
			return nil // the client has gone
		}
	}
	if ctx.Err() != nil {
		return s.end(context.Cause(ctx))
	}
	return s.end(&gate.Refusal{Code: errcode.Closed, Message: "the sandbox has ended"})
}

// Bounds of watchers, whose events wait until a client asks for them. What waits is charged to the namespace. If there are
// too many watchers, one of the namespace with the most watchers is removed, so that one namespace can't keep the others out.
const (
	maxWatchers = 512
	maxOfOne    = 64               // namespace
	maxWaiting  = 4 << 20          // bytes of events of a watcher
	eventCost   = 128              // bytes of an event besides its name and entry
	watcherIdle = 10 * time.Minute // after which a watcher that nobody asks is removed
)

// watcher collects changes until a client asks for them.
type watcher struct {
	namespace, sandbox string
	cancel             context.CancelFunc
	idle               *time.Timer
	asked              time.Time       // when a client asked last; guarded by watchers.mu
	memory             *ledger.Account // charged with size

	mu      sync.Mutex
	waiting []watchEvent // guarded by mu
	size    int          // of waiting, in bytes; guarded by mu
	err     error        // why there are no more; guarded by mu
	gone    bool         // nobody takes events any more; guarded by mu
}

// watchers are those of a server. Its methods are safe for concurrent use.
type watchers struct {
	mu  sync.Mutex
	all map[string]*watcher // by ID; guarded by mu
}

// add adds a watcher if there is room, and returns its ID.
func (w *watchers) add(one *watcher) (id string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	count, most := map[string]int{}, ""
	for _, other := range w.all {
		if count[other.namespace]++; count[other.namespace] > count[most] {
			most = other.namespace
		}
	}
	own := count[one.namespace]
	switch {
	case own >= maxOfOne:
		return "", &gate.Refusal{Code: errcode.QuotaExceeded, Message: "this namespace has too many watchers", Hint: "remove some"}
	case len(w.all) < maxWatchers:
	case count[most] > own+1:
		w.drop(w.longestIdle(most))
	default:
		return "", &gate.Refusal{Code: errcode.Overloaded, Message: "the server has too many watchers", Hint: "try again later", After: time.Second}
	}
	if w.all == nil {
		w.all = map[string]*watcher{}
	}
	id = strings.ToLower(rand.Text())
	w.all[id], one.asked = one, time.Now()
	one.idle = time.AfterFunc(watcherIdle, func() { w.remove(id) })
	return id, nil
}

// longestIdle returns the watcher of a namespace that nobody has asked for longest. Precondition: w.mu is held.
func (w *watchers) longestIdle(namespace string) (id string) {
	for other, one := range w.all {
		if one.namespace == namespace && (id == "" || one.asked.Before(w.all[id].asked)) {
			id = other
		}
	}
	return id
}

// get returns a watcher of a sandbox.
func (w *watchers) get(c *call, id string) (*watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.all[id]
	if one == nil || one.namespace != c.Caller.Namespace || one.sandbox != c.Target {
		return nil, &gate.Refusal{Code: errcode.NotFound, Message: "the sandbox has no such watcher"}
	}
	one.asked = time.Now()
	return one, nil
}

// remove removes a watcher, if it is there.
func (w *watchers) remove(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(id)
}

// drop is remove. Precondition: w.mu is held.
func (w *watchers) drop(id string) {
	if one := w.all[id]; one != nil {
		one.idle.Stop()
		one.cancel()
		one.forget()
		delete(w.all, id)
	}
}

// collect collects changes until the watcher is removed. It calls ready when all later changes will be
// told, or with an error.
func (one *watcher) collect(events iter.Seq2[watchEvent, error], ready func(error)) {
	end := error(&gate.Refusal{Code: errcode.Closed, Message: "the sandbox has ended"})
	for e, err := range events {
		if err != nil {
			end = err
			break
		}
		if e.ready {
			ready(nil)
			continue
		}
		if one.put(e) != nil {
			end = errOverflow
			break
		}
	}
	one.end(end)
	ready(end)
}

// end notes why there are no more events.
func (one *watcher) end(why error) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.err = why
}

// forget gives the memory of the events back.
func (one *watcher) forget() {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.memory.Return(int64(one.size))
	one.waiting, one.size, one.gone = nil, 0, true
}

// held returns the memory that the events take.
func (one *watcher) held() int64 {
	one.mu.Lock()
	defer one.mu.Unlock()
	return int64(one.size)
}

// put adds an event if there is room.
func (one *watcher) put(e watchEvent) error {
	one.mu.Lock()
	defer one.mu.Unlock()
	size := eventCost + len(e.Name)
	if e.Entry != nil {
		size += entryCost + 2*len(e.Entry.Path) + len(e.Entry.Target)
	}
	if one.gone || one.size+size > maxWaiting || one.memory.Grow(int64(size)) != nil {
		return errOverflow
	}
	one.waiting, one.size = append(one.waiting, e), one.size+size
	return nil
}

// take returns the events so far. After the last ones it returns why there are no more.
func (one *watcher) take() ([]watchEvent, error) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.idle.Reset(watcherIdle)
	if len(one.waiting) == 0 && one.err != nil {
		return nil, one.err
	}
	all := one.waiting
	if all == nil {
		all = []watchEvent{}
	}
	one.memory.Return(int64(one.size))
	one.waiting, one.size = nil, 0
	return all, nil
}

// createWatcher starts to collect the changes in a directory.
func createWatcher(c *call, in *onPath) (any, error) {
	f, err := c.files(user(c.R))
	if err != nil {
		return nil, err
	}
	work, end := c.api.Gate.Outlive(c.Ctx, c.Caller)
	ctx, cancel := context.WithCancel(work)
	one := &watcher{namespace: c.Caller.Namespace, sandbox: c.Target, cancel: cancel, memory: c.api.Memory(c.Caller.Namespace, maxWaiting)}
	id, err := c.api.watchers.add(one)
	if err != nil {
		cancel()
		end()
		return nil, err
	}
	stop := context.AfterFunc(work, func() { c.api.watchers.remove(id) }) // when its key ends
	ready := make(chan error, 1)
	tell := func(err error) {
		select {
		case ready <- err:
		default:
		}
	}
	go func() {
		defer end()
		defer stop()
		defer c.api.Protect("a watcher", func(err error) {
			one.end(err)
			tell(err)
		})
		one.collect(f.watch(ctx, in), tell)
	}()
	select {
	case err = <-ready:
	case <-c.Ctx.Done():
		err = context.Cause(c.Ctx)
	}
	if err != nil {
		c.api.watchers.remove(id)
		return nil, err
	}
	return map[string]string{"watcherId": id}, nil
}

// onWatcher is a message about a watcher.
type onWatcher struct {
	ID string `json:"watcherId"`
}

func (r *onWatcher) about() string { return "watcher " + r.ID }

// getWatcherEvents returns the changes since it was last asked.
func getWatcherEvents(c *call, in *onWatcher) (any, error) {
	one, err := c.api.watchers.get(c, in.ID)
	if err != nil {
		return nil, err
	}
	if err := c.Hold(gate.InMemory, one.held()); err != nil {
		return nil, err
	}
	events, err := one.take()
	var gone *gate.Refusal
	if errors.As(err, &gone) {
		c.api.watchers.remove(in.ID)
	}
	return map[string][]watchEvent{"events": events}, err
}

// removeWatcher removes a watcher. Removing it again is a no-op.
func removeWatcher(c *call, in *onWatcher) (any, error) {
	if _, err := c.api.watchers.get(c, in.ID); err == nil {
		c.api.watchers.remove(in.ID)
	}
	return struct{}{}, nil
}

package cloud

import (
	"slices"
	"sync"
	"time"
)

// ended remembers ephemeral sandboxes that were stopped and therefore removed. Clients poll until a sandbox is stopped, and treat
// "not found" as an error. Each is remembered for a while, and only the latest ones of a namespace are. When there are too many in
// all, the namespace with most of them makes room, so that no other one loses those that it waits for.
type ended struct {
	mu  sync.Mutex
	all []endedSandbox // by the time of their end; guarded by mu
}

type endedSandbox struct {
	namespace string
	at        time.Time
	sandbox
}

// Bounds of what is remembered.
const (
	maxEnded    = 256           // sandboxes of a namespace, each of less than a KiB
	maxAllEnded = 16 * maxEnded // of all
	endedGrace  = time.Minute
)

// add remembers a sandbox.
func (e *ended) add(namespace string, s sandbox) {
	s.Spec = nil // which may be large
	e.mu.Lock()
	defer e.mu.Unlock()
	count, most := map[string]int{}, namespace
	e.all = slices.DeleteFunc(e.all, func(s endedSandbox) bool { return time.Since(s.at) > endedGrace })
	for _, s := range e.all {
		if count[s.namespace]++; count[s.namespace] > count[most] {
			most = s.namespace
		}
	}
	switch {
	case count[namespace] == maxEnded:
		most = namespace
		fallthrough
	case len(e.all) == maxAllEnded:
		oldest := slices.IndexFunc(e.all, func(s endedSandbox) bool { return s.namespace == most })
		e.all = slices.Delete(e.all, oldest, oldest+1)
	}
	e.all = append(e.all, endedSandbox{namespace, time.Now(), s})
}

// find returns the last sandbox of a namespace with an ID, or with a name.
func (e *ended) find(namespace, is string, byName bool) (sandbox, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range slices.Backward(e.all) {
		if time.Since(s.at) > endedGrace {
			break
		}
		if s.namespace == namespace && (byName && s.Name == is || !byName && s.ID == is) {
			return s.sandbox, true
		}
	}
	return sandbox{}, false
}

package cloud

import (
	"slices"
	"sync"
	"time"
)

// ended remembers ephemeral sandboxes that were stopped and therefore removed. Clients poll until a sandbox is stopped, and treat
// "not found" as an error. Each is remembered for a while, and only the latest ones of all callers are.
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
	maxEnded   = 256 // sandboxes, each of less than a KiB
	endedGrace = time.Minute
)

// add remembers a sandbox.
func (e *ended) add(namespace string, s sandbox) {
	s.Spec = nil // which may be large
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, endedSandbox{namespace, time.Now(), s})
	e.all = slices.Delete(e.all, 0, max(len(e.all)-maxEnded, 0))
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

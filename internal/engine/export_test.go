package engine

import "github.com/sandpit-dev/sandpit"

// RecordedEgress returns the egress of a record.
func RecordedEgress(r Record) (sandpit.Egress, error) {
	d, err := readData(r)
	if err != nil || d.Egress == nil {
		return sandpit.Egress{}, err
	}
	return d.Egress.Egress, nil
}

// Sample takes a sample of every sandbox now, but of those whose namespace is at it.
func (e *Engine) Sample() { e.sample().Wait() }

// BeginSamples begins to take a sample of every sandbox.
func (e *Engine) BeginSamples() { e.sample() }

// ForgetEvents drops all events.
func (e *Engine) ForgetEvents() {
	e.events.mu.Lock()
	defer e.events.mu.Unlock()
	for _, r := range e.events.spaces {
		for len(r.events) > 0 {
			r.drop()
		}
	}
}

// FlushRecords writes now what the store could not take before.
func (e *Engine) FlushRecords() { e.unwritten.flush() }

// WaitingForPlaces returns how many tasks wait until fewer others of their namespace are
// under way.
func (e *Engine) WaitingForPlaces() int {
	n := 0
	for _, t := range e.tasks.list() {
		if t.progress.Now().Step == waitingForOthers {
			n++
		}
	}
	return n
}

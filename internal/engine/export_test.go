package engine

// Sample takes a sample of every sandbox now.
func (e *Engine) Sample() { e.sample() }

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

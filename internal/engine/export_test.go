package engine

// Sample takes a sample of every sandbox now.
func (e *Engine) Sample() { e.sample() }

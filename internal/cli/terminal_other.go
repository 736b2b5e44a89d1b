//go:build !linux

package cli

// passKeys does nothing: keys are handed over at the end of the line.
func passKeys(int, string) error { return nil }

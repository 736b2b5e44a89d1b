//go:build !linux

package engine

// lockName does nothing where no sandbox can be made by this program itself.
func lockName(string, string) (release func(), err error) { return func() {}, nil }

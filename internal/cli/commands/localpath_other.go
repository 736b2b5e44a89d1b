//go:build !linux

package commands

import "os"

// openSource opens a file or directory to be read, and returns its name for
// that. No sandbox of this machine can have made links there: there are none.
func openSource(name string) (f *os.File, again string, err error) {
	f, err = os.Open(name)
	return f, name, err
}

// openDirectory opens a directory, in which everything is then done without
// leaving it. With mkdir it makes the directories that are missing.
func openDirectory(name string, mkdir bool) (*os.Root, error) {
	if mkdir {
		if err := os.MkdirAll(name, 0o777); err != nil {
			return nil, err
		}
	}
	return os.OpenRoot(name)
}

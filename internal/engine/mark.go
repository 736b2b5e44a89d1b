package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/sandpit-dev/sandpit/internal/driver"
)

// A mark is an empty file beside the log of a sandbox. It tells the next engine what the
// record does not say. On a full disk an empty file can often still be made.
const (
	removalMark = ".removed" // its removal has begun. A sandbox that is gone without this is a loss
	stopMark    = ".stopped" // it is stopped, though its record may not say so
	pauseMark   = ".paused"  // it is paused, and runs only until its guest has answered
	savingMark  = ".saving"  // it is paused only while its files are read
)

// marks returns every kind of mark.
func marks() []string { return []string{removalMark, stopMark, pauseMark, savingMark} }

// markPatience is the time to wait for a mark on a disk that may hang.
const markPatience = time.Second

// mark makes marks, or removes those with false. If the disk hangs, it returns an error
// after markPatience, and the task goes on alone. The latest call for a mark counts. A
// sandbox has at most one such task in progress.
func (s *Sandbox) mark(ctx context.Context, there bool, names ...string) error {
	if s.logDir() == "" || !s.persistent {
		return nil
	}
	s.mu.Lock()
	if s.unmarked == nil {
		s.unmarked = map[string]bool{}
	}
	for _, name := range names {
		s.unmarked[name] = there
	}
	if s.marking == nil {
		// The task is not one of the sandbox: one that hangs does not make it a failed one.
		t := &task{what: "marking", about: "sandbox " + s.Name(), namespace: s.namespace}
		s.marking = s.engine.start(context.Background(), t, markPatience, s.writeMarks)
	}
	t := s.marking
	s.mu.Unlock()
	return t.wait(ctx)
}

// writeMarks makes and removes marks until all are done.
func (s *Sandbox) writeMarks(ctx context.Context) error {
	enter(driver.ProgressOf(ctx), "mark")
	var failed error
	for {
		s.mu.Lock()
		due := s.unmarked
		if s.unmarked = nil; due == nil {
			s.marking = nil
			s.mu.Unlock()
			return failed
		}
		s.mu.Unlock()
		for name, there := range due {
			if there {
				failed = errors.Join(failed, makeMark(s.logDir()+name))
			} else {
				_ = os.Remove(s.logDir() + name)
			}
		}
	}
}

func makeMark(path string) error {
	const flags = os.O_CREATE | os.O_WRONLY
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, os.ErrNotExist) && os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		f, err = os.OpenFile(path, flags, 0o600)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// marked reports whether there is a mark, perhaps of an earlier engine.
func (s *Sandbox) marked(name string) bool {
	dir := s.logDir()
	if dir == "" {
		return false
	}
	_, err := os.Lstat(dir + name)
	return err == nil
}

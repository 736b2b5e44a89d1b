package image

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// A temporaryError may pass when the same is tried again.
type temporaryError struct {
	err   error
	after time.Duration // when the other side wishes to be asked again; 0 if it did not say
}

func (e *temporaryError) Error() string { return e.err.Error() }
func (e *temporaryError) Unwrap() error { return e.err }

// longestWait bounds what a registry may make us wait.
const longestWait = 20 * time.Second

// backoff waits before the next try: 0.2 s, 0.4 s, …; or what the other side
// asked for, if that is not longer than longestWait: otherwise it returns why
// there is no use in waiting.
func backoff(ctx context.Context, try int, why error) error {
	wait := 100 * time.Millisecond << min(max(try, 0), 6)
	var t *temporaryError
	if errors.As(why, &t) && t.after > 0 {
		if t.after > longestWait {
			return why
		}
		wait = t.after
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
		return nil
	}
}

func dupCloexec(fd int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	n, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(n)
	}
	return n, err
}

func closeFD(fd int) { _ = syscall.Close(fd) }

package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// relay passes this program's signals on to the command, so that a signal to
// one is a signal to the other.
//
// Before there is a command, a signal that ends programs ends the making of
// the sandbox. SIGTSTP stops the command with SIGSTOP, since a program without
// a terminal of its own would not see SIGTSTP, and then stops this program.
type relay struct {
	cancel  context.CancelCauseFunc
	term    *terminal
	signals chan os.Signal
	broken  chan struct{}
	process chan sandpit.Process
	quit    chan struct{}
	wait    sync.WaitGroup
	once    sync.Once
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return e.signal.String() }

// impatience is how long a third interrupt may come after the first to count
// as a demand to kill.
const impatience = 2 * time.Second

// pipeGrace is how long a command may go on whose output nobody reads.
const pipeGrace = time.Second

func startRelay(cancel context.CancelCauseFunc, term *terminal) *relay {
	r := &relay{
		cancel: cancel, term: term,
		signals: make(chan os.Signal, 32),
		broken:  make(chan struct{}, 1),
		process: make(chan sandpit.Process),
		quit:    make(chan struct{}),
	}
	var caught []os.Signal
	for _, sig := range [...]syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP,
	} {
		// What nohup, or a shell for a background job, has set to be ignored
		// stays ignored.
		if !signal.Ignored(sig) {
			caught = append(caught, sig)
		}
	}
	// Catching SIGPIPE makes a write to a closed pipe an error instead of the
	// end of this program. SIGCONT and SIGWINCH do nothing unless caught.
	caught = append(caught, syscall.SIGPIPE, syscall.SIGCONT)
	if term != nil {
		caught = append(caught, syscall.SIGWINCH)
	}
	signal.Notify(r.signals, caught...)
	r.wait.Add(1)
	go r.run()
	return r
}

// attach gives the relay the command, detach takes it away.
func (r *relay) attach(p sandpit.Process) { r.give(p) }
func (r *relay) detach()                  { r.give(nil) }

func (r *relay) give(p sandpit.Process) {
	select {
	case r.process <- p:
	case <-r.quit:
	}
}

// brokenPipe tells the command that nobody reads its output.
func (r *relay) brokenPipe() {
	select {
	case r.broken <- struct{}{}:
	default:
	}
}

// stop ends the relay. Signals stay caught, and do nothing, until the program
// ends, which is near: one that comes while a sandbox is removed must not leave
// parts of it.
func (r *relay) stop() {
	r.once.Do(func() { close(r.quit) })
	r.wait.Wait()
}

func (r *relay) run() {
	defer r.wait.Done()
	var (
		process    sandpit.Process
		early      []syscall.Signal // came before there was a command
		interrupts []time.Time
		terminated bool
		broken     <-chan struct{}
		pipe       <-chan time.Time
	)
	for {
		select {
		case <-r.quit:
			return
		case process = <-r.process:
			broken, pipe = nil, nil
			if process != nil {
				broken = r.broken
				for _, sig := range early {
					send(process, sig)
				}
				early = nil
				r.term.resize(process)
			}
		case <-broken:
			send(process, syscall.SIGPIPE)
			broken, pipe = nil, time.After(pipeGrace)
		case <-pipe:
			_ = process.Kill(context.Background())
		case s := <-r.signals:
			sig := s.(syscall.Signal)
			switch sig {
			case syscall.SIGPIPE:
				continue // the failed write says so itself
			case syscall.SIGWINCH:
				if process != nil {
					r.term.resize(process)
				}
				continue
			case syscall.SIGTSTP:
				r.pause(process)
				continue
			case syscall.SIGCONT:
				// After SIGSTOP, which could not be passed on.
				r.term.again(process)
				if process != nil {
					send(process, syscall.SIGCONT)
				}
				continue
			}
			if process == nil {
				if ends(sig) {
					r.cancel(&signalError{sig})
				}
				early = append(early, sig)
				continue
			}
			kill := false
			switch sig {
			case syscall.SIGINT:
				now := time.Now()
				interrupts = append(interrupts, now)
				if n := len(interrupts); n >= 3 {
					kill = now.Sub(interrupts[n-3]) <= impatience
				}
			case syscall.SIGTERM:
				kill = terminated
				terminated = true
			}
			if kill {
				_ = process.Kill(context.Background())
				continue
			}
			send(process, sig)
		}
	}
}

// ends reports whether a signal ends programs that do not catch it.
func ends(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// send sends a signal to the command's whole job, as a terminal would, or to
// the command alone where the client can't do that.
func send(process sandpit.Process, sig syscall.Signal) {
	// A command that has exited, or a guest that is gone, is seen by Wait.
	ctx, cancel := contextWithin(5 * time.Second)
	defer cancel()
	if group, ok := process.(sandpit.GroupSignaler); ok {
		_ = group.SignalGroup(ctx, sig)
		return
	}
	_ = process.Signal(ctx, sig)
}

// pause stops the command and this program until SIGCONT, like any job of a shell.
func (r *relay) pause(process sandpit.Process) {
	if process != nil {
		send(process, syscall.SIGSTOP)
	}
	r.term.restore()
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	// Here again after SIGCONT, which is also in r.signals and does the rest.
}

func contextWithin(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

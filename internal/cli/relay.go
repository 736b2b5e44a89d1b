package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// rareSignals is the time after which a command gets the signals that are rarely sent, too:
// to catch them would make each short command slower.
const rareSignals = 20 * time.Millisecond

// maxSignal is the number of the last signal, as signal(7) has it.
const maxSignal = 64

// isPassed reports whether a signal that relay does not treat in a way of its own is passed on.
// The others can't be caught, or are about this program: its children, its writes to closed
// pipes, its Go runtime (SIGURG, SIGPROF) and C library (32 to 34), and its terminal (SIGTTIN, SIGTTOU).
func isPassed(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGPIPE, syscall.SIGURG, syscall.SIGPROF, syscall.SIGTTIN, syscall.SIGTTOU, 32, 33, 34:
		return false
	}
	return true
}

// relay passes this program's signals on to the command, so that a signal to
// one is a signal to the other. Only a third Ctrl-C in a short time is a demand to
// kill, because whoever types has no other way out; see typist.
//
// Of a process that this program only watches, signals end the watching.
//
// Before there is a command, a signal that ends programs ends the making of
// the sandbox. SIGTSTP stops the command with SIGSTOP, since a program without
// a terminal of its own would not see SIGTSTP, and then stops this program.
//
// To catch one signal takes the Go runtime some 50 µs, in which threads wait
// for each other. So the few that matter early are caught beside other work,
// and the others while the command runs.
type relay struct {
	cancel       context.CancelCauseFunc
	signals      chan os.Signal
	early        chan struct{} // closed when the early signals are caught
	othersClosed chan struct{} // closed when the others are
	broken       chan struct{}
	jobs         chan job
	quit         chan struct{}
	wait         sync.WaitGroup
}

// job is the command that signals are for.
type job struct {
	process sandpit.Process // nil: none yet, or no longer
	term    *Terminal       // the person's, when the command has one of its own
	giveUp  func()          // stops waiting for a command that can't be killed

	// leave, if set, ends the attachment to a process that this program did not start.
	// Signals are then not for the process, except, with keyboard, those of keys.
	leave    func(syscall.Signal)
	keyboard *atomic.Bool // nil: there is none
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return e.signal.String() }

// pipeGrace is the time that a command may go on after the reader of its output has gone.
const pipeGrace = time.Second

// startRelay starts a relay that calls cancel when a signal comes before a
// command does.
func startRelay(cancel context.CancelCauseFunc) *relay {
	r := &relay{
		cancel:       cancel,
		signals:      make(chan os.Signal, 32),
		early:        make(chan struct{}),
		othersClosed: make(chan struct{}),
		broken:       make(chan struct{}, 1),
		jobs:         make(chan job),
		quit:         make(chan struct{}),
	}
	r.wait.Go(func() {
		r.catch(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		close(r.early)
		r.run()
	})
	return r
}

// catch asks for signals. What nohup, or a shell for a background job, has set
// to be ignored stays ignored.
func (r *relay) catch(signals ...os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(r.signals, sig)
		}
	}
}

// ready returns when a signal that ends programs would be caught.
func (r *relay) ready() { <-r.early }

// assign gives the relay the command.
func (r *relay) assign(j job) {
	watching := j.leave != nil
	r.jobs <- j
	go func() {
		// SIGPIPE needs no catching: output is not written through os.Stdout.
		r.catch(syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH)
		if !watching {
			r.catch(syscall.SIGUSR1, syscall.SIGUSR2)
		}
		r.catch(syscall.SIGCONT)
		close(r.othersClosed)
		if watching {
			return
		}
		select {
		case <-r.quit:
		case <-time.After(rareSignals):
			for sig := syscall.Signal(1); sig <= maxSignal; sig++ {
				if isPassed(sig) {
					r.catch(sig)
				}
			}
		}
	}()
}

// release takes the command away from the relay.
func (r *relay) release() { r.jobs <- job{} }

// brokenPipe tells the command that the reader of its output has gone.
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
	close(r.quit)
	r.wait.Wait()
}

func (r *relay) run() {
	var (
		now    job
		missed []syscall.Signal // came before there was a command
		broken <-chan struct{}
		pipe   <-chan time.Time
		keys   typist
	)
	defer keys.stop()
	othersClosed := r.othersClosed
	for {
		select {
		case <-r.quit:
			return
		case next := <-r.jobs:
			now, broken, pipe = next, nil, nil
			if now.process != nil {
				broken = r.broken
				for _, sig := range missed {
					now.signal(sig)
				}
			}
		case <-othersClosed:
			othersClosed = nil
			now.term.resize(now.process) // what has changed before SIGWINCH was caught
		case <-broken:
			broken = nil
			now.signal(syscall.SIGPIPE)
			if now.leave == nil {
				pipe = time.After(pipeGrace)
			}
		case <-pipe:
			now.kill()
		case at := <-keys.interrupts:
			if keys.interrupted(at) {
				now.kill()
			}
		case s := <-r.signals:
			sig := s.(syscall.Signal)
			switch {
			case sig == syscall.SIGWINCH && now.term != nil:
				now.term.resize(now.process)
			case sig == syscall.SIGTSTP:
				now.pause()
			case sig == syscall.SIGCONT:
				// After SIGSTOP, which could not be passed on.
				now.term.again(now.process)
				now.signal(syscall.SIGCONT)
			case now.process == nil:
				r.cancel(&signalError{sig})
				missed = append(missed, sig)
			case sig == syscall.SIGINT && now.leave == nil && keys.signaled():
				now.kill()
			default:
				now.signal(sig)
			}
		}
	}
}

// patience is the time in which a guest must answer.
const patience = 5 * time.Second

// signal does what a signal to this program means.
func (j job) signal(sig syscall.Signal) {
	switch {
	case j.leave == nil, j.keyboard != nil && j.keyboard.Load() && (sig == syscall.SIGINT || sig == syscall.SIGQUIT):
		j.send(sig)
	case sig != syscall.SIGCONT && sig != syscall.SIGWINCH:
		j.leave(sig)
	}
}

// send sends a signal to the command's whole job, as a terminal would, or to
// the command alone where the client can't do that.
func (j job) send(sig syscall.Signal) {
	if j.process == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// A command that has exited, or a guest that is gone, is seen by Wait.
	if group, ok := j.process.(sandpit.GroupSignaler); ok {
		_ = group.SignalGroup(ctx, sig)
		return
	}
	_ = j.process.Signal(ctx, sig)
}

// kill kills the command; when the guest does not do so in time, the sandbox
// will be removed with the command in it.
func (j job) kill() {
	if j.process == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := j.process.Kill(ctx); err != nil {
		j.giveUp()
	}
}

// pause stops the command and this program until SIGCONT, like any job of a shell. A
// process that is only watched goes on.
func (j job) pause() {
	if j.leave == nil {
		j.send(syscall.SIGSTOP)
	}
	j.term.Restore()
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	// Here again after SIGCONT, which is also delivered and does the rest.
}

// Interruptible runs a long operation that a signal may end. The error then is the signal's
// exit code. A second signal ends the program.
func Interruptible(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	stop := context.AfterFunc(ctx, func() { signal.Stop(signals) })
	defer stop()
	defer signal.Stop(signals)
	go func() {
		select {
		case sig := <-signals:
			cancel(&signalError{sig.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	if err := do(ctx); err != nil {
		return interrupted(ctx, err)
	}
	return nil
}

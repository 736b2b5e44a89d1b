package server

import (
	"runtime"
	"sync"
)

// The guest counts against the process limit of its sandbox, and the Go runtime
// ends a program that gets no new thread for about 0.2 s. So the guest makes all
// threads that it will ever need before any program of the sandbox can use up
// the limit, and never has more goroutines in blocking system calls than threads:
//
//   - File work is done by maxWorkers threads.
//   - Work elsewhere that may have to wait for a disk or for memory passes a
//     gate, which lets through as many goroutines as there are threads for it.
//   - System calls that do not block (package nonblock) need no other thread.
//
// The runtime itself has sysmon, its template thread, two threads for signals,
// one that polls and one that runs Go code. All together leave MinPids of package
// sandpit enough for a shell and a program.
const spareThreads = maxWorkers + maxContent + maxStarts + 1

const (
	maxContent = 2 // goroutines that read or write the content of files
	maxStarts  = 1 // goroutines that start a program
)

// reserveThreads makes the runtime keep n threads more than run now. The
// runtime never ends a thread that has nothing to do.
func reserveThreads(n int) {
	var held, done sync.WaitGroup
	held.Add(n)
	done.Add(n)
	for range n {
		go func() {
			runtime.LockOSThread()
			held.Done()
			held.Wait() // all others have their threads, too
			runtime.UnlockOSThread()
			done.Done()
		}()
	}
	done.Wait()
}

// A gate bounds how many goroutines do something at once.
type gate chan struct{}

func (g gate) do(f func() error) error {
	g <- struct{}{}
	defer func() { <-g }()
	return f()
}

// Package interpreter runs code with state in a sandbox. A context is a background process of the
// sandbox: a stock interpreter that is given a program of ours (kernel.py with charts.py, ipython.py and magics.py, kernel.js, kernel.R) on its standard input,
// which then ends. So nothing is installed in the sandbox, and code that reads its input gets EOF.
//
// Two ways lead out of it. Output is that of the process: whatever the code, its threads and its
// children print arrives in order, and in the log. At the start and the end of a run the program writes
// marks to both outputs, whose nonces are new for each run (lane.go). Everything else, requests and
// results, are lines of JSON on a unix socket that the guest dials for each run (channel.go).
// So nothing but the process itself must be found again after a restart of the server: its command
// line says which context it is, and the program repeats what it was started with.
//
// In a sandbox that is held warm (warm.go), the default context runs before anybody uses it. Its command line does not name a context.
// It becomes one when it has written more than the marks of its start. The guest counts what it writes, so a later server knows, too.
//
// For Python there is a zygote beside it, which waits for requests of the guest and forks a context for each, also that
// one. A fork reads its setup from its standard input, as a cold interpreter does its program, so that nothing else tells them apart. The guest decides whether a context can be forked: see "Forks" in docs/guest-protocol.md.
//
// Bash and R can't listen on a socket. They read what to run from their standard input or a pipe, and report the rest in the text of
// their marks (lines.go, bash.go, r.go). Other languages have no contexts: each run is a process of its own (once.go).
//
// The code can do to its program what it wants: forge results and marks, close the socket, or
// answer never. It harms only the result of its own runs. What it sends is bounded, and a run that
// does not end is interrupted and then killed.
package interpreter

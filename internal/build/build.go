// Package build makes templates: images of sandboxes in which the steps of a client were carried out.
//
// A build begins with its name. It then waits for archives of files, which lie in a sandbox that is made for nothing else: so
// the limits of the namespace bound them. When it is started, another sandbox carries out the steps, under the present policy
// of the caller, and is saved as an image. If an earlier build of the namespace did the same, its image is taken.
//
// Builds are in memory and end with the server, and with the key of their caller. Wire APIs translate requests to this package.
package build

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Bounds of builds. Their sandboxes are those of the namespace, with its limits; the rest is in memory.
const (
	maxBuildTime   = time.Hour        // with the time in which it waits
	maxIdleTime    = 10 * time.Minute // in which one that waits gets nothing
	maxBuilds      = 64               // in memory, of all namespaces
	maxBuildsOfOne = 8                // of a namespace, those that have ended included
	maxSteps       = 1000
	maxStepArgs    = 10_000    // of all steps
	maxStepBytes   = 1 << 20   // of them, and of the commands that are started
	maxLogBytes    = 256 << 10 // of a build
	maxLogLine     = 4 << 10
	logCost        = 128             // bytes of a line, besides its text
	lastLines      = 10              // of the log, in the reason of an error
	maxReadyTime   = 5 * time.Minute // of a template whose ready command only waits, in its build
	maxWakeTime    = time.Minute     // of others, and of a sandbox that is made of one
	readyPause     = 200 * time.Millisecond
)

// The status of a build.
const (
	Waiting  = "waiting" // for archives, and its start
	Building = "building"
	Ready    = "ready"
	Failed   = "error"
)

// Host is what builds need of a server and of the wire API that their clients use.
type Host struct {
	dialect.Server

	// Stage makes the sandbox for the archives of a build, which lives for so long, and Make one in which its steps are
	// carried out. What they make must say for itself to which build it belongs: see Builds.DiscardLeft.
	Stage func(ctx context.Context, caller gate.Caller, life time.Duration, build string) (engine.Box, error)
	Make  func(ctx context.Context, caller gate.Caller, spec sandpit.Spec, build string) (engine.Box, error)

	// Home returns where relative paths of a user begin; "" is the sandbox's own user.
	Home func(sb engine.Box, user string) string

	// Own is a name that the sandbox's own user has in steps.
	Own string
}

// Request is what a build is to make.
type Request struct {
	Template string         // its name: two builds of one template don't run at the same time
	Saved    []string       // names that the saved image gets; at least one
	Limits   sandpit.Limits // of the sandbox in which the steps are carried out
}

// Build is one build of a template. Its methods are safe for concurrent use.
type Build struct {
	host      *Host
	caller    gate.Caller
	id        string
	request   Request
	namespace string
	stage     engine.Box // has the archives

	asked time.Time
	idle  *time.Timer     // ends it, if it waits
	life  context.Context // ends with the key and the server
	over  func()          // tells the gate that it has ended; may be called again

	mu       sync.Mutex
	status   string  // guarded by mu
	log      []Line  // guarded by mu
	logBytes int     // guarded by mu
	reason   *Reason // of an error; guarded by mu
}

// Line is a line of a log. Level is "info" or "error". Step is the number of a step from 1, StepBase or StepLast, or empty.
type Line struct {
	Timestamp time.Time
	Message   string
	Level     string
	Step      string
}

// Reason is why a build has failed.
type Reason struct {
	Message string
	Step    string // as of Line
	Log     []Line // the last lines
}

// ID returns the ID of the build.
func (b *Build) ID() string { return b.id }

// Template returns the name of the template.
func (b *Build) Template() string { return b.request.Template }

// StageID returns the ID of the sandbox that has the archives.
func (b *Build) StageID() string { return b.stage.ID() }

// present returns the status of a build. One that was not started in time ends.
func (b *Build) present() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status == Waiting && time.Since(b.asked) > maxBuildTime {
		b.status, b.reason = Failed, &Reason{Message: "the build was not started within " + maxBuildTime.String(), Log: []Line{}}
		b.over()
	}
	return b.status
}

// ended reports whether a build has ended.
func (b *Build) ended() bool {
	status := b.present()
	return status == Ready || status == Failed
}

// end ends a build, which succeeded if there is no reason.
func (b *Build) end(why *Reason) {
	b.over()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status, b.reason = Ready, why; why != nil {
		b.status = Failed
		why.Log = append([]Line{}, b.log[max(len(b.log)-lastLines, 0):]...)
	}
}

// say adds a line to the log.
func (b *Build) say(level, step, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	cost := len(message) + logCost
	switch {
	case b.logBytes > maxLogBytes:
		return
	case b.logBytes+cost > maxLogBytes:
		message = "the rest of the log is left out"
	}
	b.logBytes += cost
	b.log = append(b.log, Line{time.Now().UTC(), message, level, step})
}

// Report says how far a build is.
type Report struct {
	Status string
	Log    []Line
	Reason *Reason // of a failed build; else nil
}

// Report describes the build, with at most so many lines of its log from one on.
func (b *Build) Report(from, most int) Report {
	b.present()
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.log[min(from, len(b.log)):]
	return Report{Status: b.status, Log: slices.Clone(lines[:min(len(lines), most)]), Reason: b.reason}
}

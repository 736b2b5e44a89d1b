package e2b

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Bounds of builds. Their sandboxes are those of the namespace, with its limits; the rest is in memory.
const (
	maxBuildTime     = time.Hour        // with the time in which it waits
	maxIdleTime      = 10 * time.Minute // in which one that waits gets nothing
	maxBuilds        = 64               // in memory, of all namespaces
	maxBuildsOfOne   = 8                // of a namespace, those that have ended included
	maxSteps         = 1000
	maxStepArgs      = 10_000    // of all steps
	maxStepBytes     = 1 << 20   // of them, and of the commands that are started
	maxLogBytes      = 256 << 10 // of a build
	maxLogLine       = 4 << 10
	logCost          = 128             // bytes of an entry, besides its text
	entriesPerStatus = 100             // as E2B has it; SDKs ask again
	maxReadyTime     = 5 * time.Minute // of a template whose ready command only waits, in its build
	maxWakeTime      = time.Minute     // of others, and of a sandbox that is made of one
	readyPause       = 200 * time.Millisecond
)

// States of builds.
const (
	statusWaiting  = "waiting"
	statusBuilding = "building"
	statusReady    = "ready"
	statusError    = "error"
)

// build is one build of a template.
type build struct {
	api       *api
	caller    gate.Caller
	id, name  string
	saved     []string // the names of the image, for its tags
	namespace string
	stage     engine.Box     // has the archives
	limits    sandpit.Limits // of its sandbox

	asked time.Time
	idle  *time.Timer     // ends it, if it waits
	life  context.Context // ends with the key and the server
	over  func()          // tells the gate that it has ended; may be called again

	mu       sync.Mutex
	status   string     // guarded by mu
	log      []logEntry // guarded by mu
	logBytes int        // guarded by mu
	reason   *reason    // of an error; guarded by mu
}

// logEntry is a line of a log.
type logEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Message   string    `json:"message"`
	Level     string    `json:"level"`
	Step      string    `json:"step,omitempty"`
}

// reason is why a build has failed.
type reason struct {
	Message string     `json:"message"`
	Step    string     `json:"step,omitempty"`
	Log     []logEntry `json:"logEntries"`
}

// mark returns the data of the dialect of a sandbox that belongs to the build.
func (b *build) mark() json.RawMessage {
	data, _ := json.Marshal(state{Build: b.id}) // of strings, which never fails
	return data
}

// builds are those that a server knows. Its methods are safe for concurrent use.
type builds struct {
	mu  sync.Mutex
	all []*build // oldest first; guarded by mu
}

// present returns the status of a build. One that was not started in time ends.
func (b *build) present() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status == statusWaiting && time.Since(b.asked) > maxBuildTime {
		b.status, b.reason = statusError, &reason{Message: "the build was not started within " + maxBuildTime.String(), Log: []logEntry{}}
		b.over()
	}
	return b.status
}

// ended reports whether a build has ended.
func (b *build) ended() bool {
	status := b.present()
	return status == statusReady || status == statusError
}

// add adds a build. It ends those of the same template that wait. If there are too many, the oldest ones that have ended make
// room, or else those that wait, of the namespace or of one that has more. The caller removes the sandboxes that are left of them.
func (bs *builds) add(b *build) (left []engine.Box, err error) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	namespace := b.namespace
	for _, o := range bs.all {
		if o.namespace == namespace && o.name == b.name && o.present() == statusWaiting {
			o.end(&reason{Message: replaced})
			left = append(left, o.stage)
		}
	}
	for {
		own := slices.IndexFunc(bs.all, func(b *build) bool { return b.namespace == namespace && b.ended() })
		if own < 0 { // its client may have given up
			own = slices.IndexFunc(bs.all, func(b *build) bool { return b.namespace == namespace && b.present() == statusWaiting })
		}
		count := map[string]int{}
		for _, b := range bs.all {
			count[b.namespace]++
		}
		any := slices.IndexFunc(bs.all, (*build).ended)
		if any < 0 {
			any = slices.IndexFunc(bs.all, func(b *build) bool { return count[b.namespace] > count[namespace]+1 && b.present() == statusWaiting })
		}
		at := -1
		switch {
		case count[namespace] >= maxBuildsOfOne && own < 0:
			return nil, &gate.Refusal{Code: errcode.QuotaExceeded, Message: fmt.Sprintf("%d builds of this namespace are running", count[namespace]), Hint: "wait until one has ended"}
		case count[namespace] >= maxBuildsOfOne:
			at = own
		case len(bs.all) >= maxBuilds && any < 0:
			return nil, &gate.Refusal{Code: errcode.Overloaded, Message: "too many templates are being built", Hint: "try again later", After: 10 * time.Second}
		case len(bs.all) >= maxBuilds:
			at = any
		}
		if at < 0 {
			break
		}
		if bs.all[at].present() == statusWaiting {
			bs.all[at].end(&reason{Message: "newer builds were requested"})
			left = append(left, bs.all[at].stage)
		}
		bs.all = slices.Delete(bs.all, at, at+1)
	}
	b.id, b.asked, b.status = strings.ToLower(rand.Text()), time.Now(), statusWaiting
	b.idle = time.AfterFunc(maxIdleTime, func() {
		defer b.api.Protect("ending a build that waits", func(error) {})
		bs.abandon(b, "the build got neither files nor its start within "+maxIdleTime.String())
	})
	context.AfterFunc(b.life, func() {
		defer b.api.Protect("ending a build that waits", func(error) {})
		if why := context.Cause(b.life); errors.Is(why, gate.ErrKeyEnded) {
			bs.abandon(b, why.Error())
		}
	})
	bs.all = append(bs.all, b)
	return slices.DeleteFunc(left, func(sb engine.Box) bool { return sb == nil }), nil
}

// replaced says why a build has ended that waited.
const replaced = "a newer build of the template was requested"

// place gives a build the sandbox for its archives, before which nobody finds it by its template. It reports whether the build
// still waits.
func (bs *builds) place(b *build, stage engine.Box) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if !slices.Contains(bs.all, b) || b.present() != statusWaiting {
		return false
	}
	b.stage = stage
	return true
}

// abandon ends a build if it waits, and removes its sandbox.
func (bs *builds) abandon(b *build, why string) {
	bs.mu.Lock()
	waits, stage := b.present() == statusWaiting, b.stage
	if waits {
		b.end(&reason{Message: why})
	}
	bs.mu.Unlock()
	if waits && stage != nil { // otherwise place refuses it
		b.api.discard(stage)
	}
}

// refuse ends a build whose start is refused, since SDKs give up then, unless the refusal says when to try again.
func (bs *builds) refuse(b *build, f gate.Failure) {
	if f.After == 0 {
		bs.abandon(b, f.Text())
	}
}

// remove removes a build.
func (bs *builds) remove(b *build) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b.idle.Stop()
	b.over()
	bs.all = slices.DeleteFunc(bs.all, func(o *build) bool { return o == b })
}

// find returns a build of a namespace, or nil.
func (bs *builds) find(namespace, id string) *build {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if i := slices.IndexFunc(bs.all, func(b *build) bool { return b.namespace == namespace && b.id == id }); i >= 0 {
		return bs.all[i]
	}
	return nil
}

// waiting returns the newest build of a template that waits, or nil.
func (bs *builds) waiting(namespace, name string) (found *build) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for _, b := range bs.all {
		if b.namespace == namespace && b.name == name && b.stage != nil && b.present() == statusWaiting {
			found = b
		}
	}
	return found
}

// start starts a build that waits. Two builds of one template don't run at the same time: the other one goes on waiting.
func (bs *builds) start(b *build, in *buildStart) error {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for _, o := range bs.all {
		switch status := o.present(); {
		case o == b && status != statusWaiting:
			return &gate.Refusal{Code: errcode.State, Message: "the build was started before, or has ended"}
		case o != b && o.namespace == b.namespace && o.name == b.name && status == statusBuilding:
			return &gate.Refusal{Code: errcode.State, Message: fmt.Sprintf("another build of the template %q is running", b.name), Hint: "wait until it has ended"}
		}
	}
	b.mu.Lock()
	b.status = statusBuilding
	b.mu.Unlock()
	b.idle.Stop()
	go b.run(b.life, in)
	return nil
}

// end ends a build, which succeeded if there is no reason.
func (b *build) end(why *reason) {
	b.over()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status, b.reason = statusReady, why; why != nil {
		b.status = statusError
		why.Log = append([]logEntry{}, b.log[max(len(b.log)-10, 0):]...)
	}
}

// say adds a line to the log.
func (b *build) say(level, step, message string) {
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
	b.log = append(b.log, logEntry{time.Now().UTC(), message, level, step})
}

// statusReport is what SDKs are told of a build.
type statusReport struct {
	TemplateID string     `json:"templateID"`
	BuildID    string     `json:"buildID"`
	Status     string     `json:"status"`
	Logs       []string   `json:"logs"`
	Entries    []logEntry `json:"logEntries"`
	Reason     *reason    `json:"reason,omitempty"`
}

// report describes the build, with its log from an entry on.
func (b *build) report(from int) statusReport {
	b.present()
	b.mu.Lock()
	defer b.mu.Unlock()
	entries := b.log[min(from, len(b.log)):]
	entries = slices.Clone(entries[:min(len(entries), entriesPerStatus)])
	out := statusReport{TemplateID: b.name, BuildID: b.id, Status: b.status, Logs: []string{}, Entries: entries, Reason: b.reason}
	if entries == nil {
		out.Entries = []logEntry{}
	}
	for _, e := range entries {
		out.Logs = append(out.Logs, e.Message)
	}
	return out
}

// lineLog writes lines to the log of a build. Output may still come when the one who waited for a process has gone.
type lineLog struct {
	b    *build
	step string

	mu   sync.Mutex
	rest []byte // guarded by mu
}

func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 && len(l.rest) <= maxLogLine {
			return len(p), nil
		}
		if i < 0 || i > maxLogLine {
			i = maxLogLine
		}
		l.b.say("info", l.step, strings.ToValidUTF8(string(l.rest[:i]), "�"))
		l.rest = bytes.TrimPrefix(l.rest[i:], []byte("\n"))
	}
}

func (l *lineLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) > 0 {
		l.b.say("info", l.step, strings.ToValidUTF8(string(l.rest), "�"))
	}
}

// discard removes a sandbox of a build.
func (a *api) discard(sb engine.Box) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := sb.Remove(ctx); err != nil && !errors.Is(err, sandpit.ErrNotFound) && !errors.Is(err, sandpit.ErrClosed) {
		a.Log.Warn("removing a sandbox of a build", "sandbox", sb.ID(), "error", err) // it ends by itself, too
	}
}

// discardLeft removes what builds have left that a server did not end. It is called before there are others.
func (a *api) discardLeft() {
	all := slices.DeleteFunc(a.Sandboxes(), func(sb engine.Box) bool { return stateOf(sb).Build == "" })
	go func() {
		defer a.Protect("removing the sandboxes of builds", func(error) {})
		for _, sb := range all {
			if a.Gate.Live().Err() == nil { // otherwise the next server does it
				a.discard(sb)
			}
		}
	}()
}

// run carries a build out, and removes its sandboxes.
func (b *build) run(ctx context.Context, in *buildStart) {
	defer b.api.Protect("a build of a template", func(err error) { b.end(&reason{Message: err.Error()}) })
	ctx, cancel := context.WithTimeoutCause(ctx, maxBuildTime, errors.New("the build took longer than "+maxBuildTime.String()))
	defer cancel()
	defer b.api.discard(b.stage)
	step, err := b.do(ctx, in)
	if err == nil {
		b.say("info", "", "The template is ready")
		b.end(nil)
		return
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	text := gate.Failure{Message: err.Error(), Hint: sandpit.Hint(err)}.Text()
	b.say("error", step, text)
	b.end(&reason{Message: text, Step: step})
}

// do does the work of run. It returns the step that failed.
func (b *build) do(ctx context.Context, in *buildStart) (step string, err error) {
	b.say("info", stepBase, "FROM "+cmp.Or(in.FromTemplate, in.FromImage))
	limits := b.limits
	limits.Life = maxBuildTime
	spec := sandpit.Spec{Image: in.image, Limits: limits, Egress: sandpit.Egress{Preset: sandpit.EgressPublic}}
	sb, err := b.api.create(ctx, b.api.Tenant(b.caller), spec, false, b.mark())
	if err != nil {
		return stepBase, err
	}
	defer b.api.discard(sb)
	key, err := b.key(ctx, in, sb)
	if err != nil {
		return stepBase, err
	}
	if done, err := b.reuse(ctx, in, key); done || err != nil {
		return stepLast, err
	}
	w := &worker{b: b, sb: sb}
	for i, s := range in.Steps {
		step := strconv.Itoa(i + 1)
		b.say("info", step, in.title(i))
		if err := w.step(ctx, step, s); err != nil {
			return step, err
		}
	}
	within := maxWakeTime // as sandboxes of it wait
	if isPause(in.ReadyCmd) {
		within = maxReadyTime
	}
	if err := startProgram(ctx, sb, in.StartCmd, in.ReadyCmd, within, sandpit.Command{Env: w.env, Dir: w.dir, User: w.user}); err != nil {
		return stepLast, err
	}
	for name, command := range map[string]string{startVariable: in.StartCmd, readyVariable: in.ReadyCmd} {
		if command != "" {
			w.env = append(w.env, name+"="+command)
		}
	}
	found, err := b.api.Tenant(b.caller).Box(sb.ID()) // by the present policy
	if err != nil {
		return stepLast, err
	}
	_, err = found.(sandpit.Committer).Commit(ctx, sandpit.Commit{Name: b.saved[0], Env: w.env, WorkDir: w.dir, User: w.user, Labels: map[string]string{engine.BuildLabel: key}})
	if err == nil && len(b.saved) > 1 {
		_, err = b.api.TagSaved(ctx, b.caller, b.saved[0], b.saved[1:])
	}
	return stepLast, err
}

// The steps before the first one and after the last one.
const (
	stepBase = "base"
	stepLast = "finalize"
)

// worker carries out the steps of a build.
type worker struct {
	b         *build
	sb        engine.Box
	env       []string
	dir, user string // "": the sandbox's own
}

// check checks the arguments of a step.
func (s buildStep) check() error {
	n := len(s.Args)
	switch {
	case s.Type == "ENV" && n%2 == 0, s.Type == "RUN" && (n == 1 || n == 2), s.Type == "COPY" && n >= 2 && n <= 4 && validHash(s.Hash),
		(s.Type == "WORKDIR" || s.Type == "USER") && n == 1 && s.Args[0] != "":
		return nil
	}
	return fmt.Errorf("the arguments of %.40q are not valid, or it is not a kind of step", s.Type)
}

// step carries out a step.
func (w *worker) step(ctx context.Context, name string, s buildStep) error {
	switch s.Type {
	case "ENV":
		for i := 0; i < len(s.Args); i += 2 {
			w.env = append(w.env, s.Args[i]+"="+s.Args[i+1])
		}
		return nil
	case "USER":
		w.user = ownUser(s.Args[0])
		return nil
	case "WORKDIR":
		if w.dir = path.Join("/", w.dir, s.Args[0]); path.IsAbs(s.Args[0]) {
			w.dir = path.Clean(s.Args[0])
		}
		return filesOf(w.sb, w.user).Mkdir(ctx, w.dir, 0o755, true)
	case "RUN":
		user := w.user
		if len(s.Args) == 2 && s.Args[1] != "" {
			user = ownUser(s.Args[1])
		}
		return w.run(ctx, name, sandpit.Command{Argv: loginShell(ctx, w.sb, s.Args[0]), Env: w.env, Dir: w.dir, User: user})
	}
	return w.copy(ctx, name, s)
}

// run runs a command whose output goes to the log.
func (w *worker) run(ctx context.Context, step string, cmd sandpit.Command) error {
	log := &lineLog{b: w.b, step: step}
	defer log.flush()
	cmd.Stdout, cmd.Stderr = log, log
	out, err := sandpit.Run(ctx, w.sb, cmd)
	switch {
	case err != nil:
		return err
	case out.ExitCode != 0:
		return errors.New("the command failed: " + endOf(out.Result).Status)
	}
	return nil
}

// bash is the shell of E2B's SDKs and builds.
const bash = "/bin/bash"

// loginShell returns what runs a command of a template: bash, or /bin/sh in images without it.
func loginShell(ctx context.Context, sb engine.Box, command string) []string {
	shell := bash
	if _, err := sb.Files().Stat(ctx, bash); errors.Is(err, fs.ErrNotExist) {
		shell = "/bin/sh"
	}
	return []string{shell, "-l", "-c", command}
}

// shell runs a script of ours, with arguments.
func (w *worker) shell(ctx context.Context, step, user, what, script string, args ...string) error {
	if err := w.run(ctx, step, sandpit.Command{Argv: append([]string{"/bin/sh", "-ec", script, what}, args...), User: user}); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// copyScript copies what matches a pattern below an unpacked archive, $1 and $2, to $3, as COPY of a Dockerfile does: what is in a
// directory, or the file. $4 is the mode and $5 the owner, if not empty.
const copyScript = `IFS=
cd "$1"
put() {
	[ -z "$3" ] || chmod -R -- "$3" "$1"
	[ -z "$4" ] || chown -R -h -- "$4" "$1"
	if [ -d "$1" ] && [ ! -L "$1" ]; then mkdir -p -- "$2"; cp -R -P -p -- "$1/." "$2/"; else cp -P -p -- "$1" "$2"; fi
}
count=0
for from in $2; do count=$((count + 1)); done
case $3 in
*/) mkdir -p -- "$3"; into=yes ;;
*) mkdir -p -- "$(dirname -- "$3")"; into= ;;
esac
if [ $count -gt 1 ]; then mkdir -p -- "$3"; into=yes; fi
for from in $2; do
	to=$3
	if [ -n "$into" ] && [ ! -d "$from" ]; then to=${3%/}/$(basename -- "$from"); fi
	put "./$from" "$to" "$4" "$5"
done
`

// unpackDir is where archives are unpacked: no image has it.
const unpackDir = "/tmp/.sandpit-copy"

// copy carries out a COPY step. The archive is unpacked inside, with the rights of the user who gets the files.
func (w *worker) copy(ctx context.Context, step string, s buildStep) error {
	args := append(slices.Clone(s.Args), "", "")[:4]
	owner, mode := args[2], args[3]
	user := w.user
	if owner != "" || user == "" {
		name, _, _ := strings.Cut(cmp.Or(owner, "user"), ":")
		user = ownUser(name)
	}
	to := args[1]
	if !path.IsAbs(to) {
		slash := strings.HasSuffix(to, "/") || to == "."
		if to = path.Join(cmp.Or(w.dir, homeOf(w.sb, w.user)), to); slash {
			to += "/"
		}
	}
	r, err := w.b.stage.Files().Open(ctx, archivePath(s.Hash), 0, -1)
	if err != nil {
		return fmt.Errorf("the files of %.80q were not uploaded: %w", args[0], err)
	}
	defer r.Close()
	tar, err := unzipped(r)
	if err != nil {
		return err
	}
	as, own := user, "" // root may write where the user may not
	if made, err := w.sb.Made(); err == nil && made.Spec.RootInside {
		as, own = "root", owner
	}
	files := w.sb.Files().As(user)
	if err := files.Mkdir(ctx, unpackDir, 0o755, true); err != nil {
		return err
	}
	if err = files.Upload(ctx, unpackDir, tar); err == nil {
		from := cmp.Or(strings.TrimPrefix(path.Clean("/"+args[0]), "/"), ".")
		err = w.shell(ctx, step, as, "COPY", copyScript, unpackDir, from, to, mode, own)
	}
	return errors.Join(err, w.sb.Files().As(as).Remove(ctx, unpackDir, true))
}

// unzipped returns what is compressed in r, or r.
func unzipped(r io.Reader) (io.Reader, error) {
	head := make([]byte, 2)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	all := io.MultiReader(bytes.NewReader(head[:n]), r)
	if n == 2 && head[0] == 0x1f && head[1] == 0x8b {
		return gzip.NewReader(all)
	}
	return all, nil
}

// isPause reports whether a ready command tests nothing: the SDKs have a template of a Dockerfile with a CMD sleep for 20 s.
func isPause(command string) bool {
	words := strings.Fields(command)
	return len(words) == 2 && words[0] == "sleep" && strings.Trim(words[1], "0123456789.smhd") == "" && !strings.Contains(strings.TrimSpace(command), "\n")
}

// startProgram starts a program that goes on running, if there is one, and waits until another one says that it is ready.
func startProgram(ctx context.Context, sb engine.Box, start, ready string, within time.Duration, like sandpit.Command) error {
	if start != "" {
		like.Argv, like.Background = loginShell(ctx, sb, start), true
		p, err := sb.Start(ctx, like)
		if err != nil {
			return fmt.Errorf("starting the program of the template: %w", err)
		}
		detach(p)
	}
	if ready == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	like.Argv, like.Background = loginShell(ctx, sb, ready), false
	for {
		out, err := sandpit.Run(ctx, sb, like)
		switch {
		case err == nil && out.ExitCode == 0:
			return nil
		case ctx.Err() != nil:
			return &gate.Refusal{Code: errcode.Timeout, Message: "the template was not ready within " + within.String(), Hint: "move slow work to steps of the build: sandboxes of the template run the same commands"}
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(readyPause):
		}
	}
}

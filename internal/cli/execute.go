package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// modes are the parts of a run that are about this side of it.
type modes struct {
	tty, json  bool
	timeout    time.Duration
	workdir    bool            // one was asked for
	created    func()          // called when the sandbox is made, or could not be
	remove     func() error    // removes it, once; nil when it stays, or a server does it
	traffic    func() *traffic // what the sandbox did on the network; nil: it has none
	warn       bool            // about default limits that are not enforced
	stays      string          // the name of a sandbox that a server keeps; empty: it goes with the command
	detachKeys string          // keys that detach from a command in a sandbox that stays

	open   func(context.Context) (sandpit.Client, error) // what makes the sandbox
	served string                                        // the data directory whose server may do it instead; empty: none
	server string                                        // the address of the server that makes it; empty: this program
}

// execute makes a sandbox, runs cmd in it as if cmd were this program, and
// removes the sandbox. The error is an *ExitError with the code of cmd, unless
// Sandpit itself failed.
func (a *App) execute(ctx context.Context, spec sandpit.Spec, cmd sandpit.Command, m modes, relay *relay, steps *steps) (err error) {
	var term *Terminal
	if m.tty {
		if term, err = OpenTerminal(a.Stdin); err != nil {
			return err
		}
		defer term.Close()
	}
	if m.served != "" {
		relay.ready()
		box := &fastrun.Run{Home: m.served, Version: a.Version, Spec: spec, WorkDir: m.workdir, Report: m.json}
		err := a.attend(ctx, box, captured(cmd, m, spec), m, term, relay, steps)
		box.Close()
		if !errors.Is(err, fastrun.ErrDeclined) {
			return workDirError(err, spec.WorkDir)
		}
	}
	client, err := m.open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		err = orFailure(err, "closing the client", client.Close())
	}()
	relay.ready()
	steps.done("open the engine")

	sandbox, err := client.Create(ctx, spec)
	m.created()
	steps.done("create the sandbox")
	if err != nil {
		return interrupted(ctx, err)
	}
	removed := false
	m.remove = func() error {
		if removed {
			return nil
		}
		removed = true
		ctx := context.WithoutCancel(ctx)
		if m.server != "" { // which may not answer, while signals do nothing any more
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, removalTime)
			defer cancel()
		}
		return sandbox.Remove(ctx)
	}
	bound := slices.ContainsFunc(spec.Secrets, func(u sandpit.Secret) bool { return !u.Env }) // which open the network to their hosts
	if spec.Egress.Asked() || bound {
		m.traffic = func() *traffic { return trafficOf(ctx, sandbox) }
		if remove := m.remove; m.warn || spec.Egress.Preset == sandpit.EgressLearn && !m.json {
			m.remove = func() error {
				if !removed {
					if t := m.traffic(); t != nil {
						a.tellTraffic(t)
					}
				}
				return remove()
			}
		}
	}
	defer func() {
		err = orFailure(err, "removing the sandbox", m.remove())
		steps.done("remove the sandbox")
	}()

	if m.workdir {
		if err := checkWorkDir(ctx, sandbox, spec.WorkDir); err != nil {
			return interrupted(ctx, err)
		}
	}
	return a.attend(ctx, sandbox, captured(cmd, m, spec), m, term, relay, steps)
}

// removalTime is how long a server may take to remove the sandbox of a run.
const removalTime = time.Minute

// captured bounds the output of a command that is returned as a whole, if the limit was
// requested.
func captured(cmd sandpit.Command, m modes, spec sandpit.Spec) sandpit.Command {
	if m.json && spec.Limits.Output > 0 {
		cmd.OutputLimit = spec.Limits.Output
	}
	return cmd
}

// place is where a command runs: a sandpit.Sandbox, or one that a server makes
// for that command.
type place interface {
	Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error)
	Info(ctx context.Context) (sandpit.Info, error)
	Metrics(ctx context.Context) (sandpit.Metrics, error)
}

// attend runs cmd in a sandbox as if cmd were this program. The error is an
// *ExitError with the code of cmd, unless Sandpit itself failed.
func (a *App) attend(ctx context.Context, sandbox place, cmd sandpit.Command, m modes, term *Terminal, relay *relay, steps *steps) (err error) {
	if term != nil {
		a.addTerminal(&cmd, term)
	}
	var captured struct{ stdout, stderr bytes.Buffer }
	out := newOutput(relay)
	switch {
	case m.json:
		cmd.Stdout, cmd.Stderr = &captured.stdout, &captured.stderr
		if cmd.OutputLimit == 0 {
			cmd.OutputLimit = sandpit.DefaultCapture
		}
	default:
		if cmd.Stdout, err = out.to(a.Stdout); err != nil {
			return err
		}
		if cmd.Stderr, err = out.to(a.Stderr); err != nil {
			return err
		}
	}
	cmd.Stdin = cmd.Stdin && !isNull(a.Stdin)

	if err := term.Raw(); err != nil {
		return err
	}
	process, err := sandbox.Start(ctx, cmd)
	steps.done("start the command")
	var failed *sandpit.StartError
	if errors.As(err, &failed) {
		term.Restore()
		if m.json {
			return a.printReport(ctx, sandbox, m, report{result: sandpit.Result{ExitCode: failed.ExitCode}, startError: failed.Reason, code: failed.ExitCode})
		}
		return a.notStarted(ctx, sandbox, cmd, failed)
	}
	if err != nil {
		term.Restore()
		return interrupted(ctx, aboutUser(err))
	}
	if m.warn {
		a.warnLimits(context.WithoutCancel(ctx), sandbox, m.server)
	}
	waiting, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	relay.assign(job{process: process, term: term, giveUp: func() { giveUp(nil) }})
	if cmd.Stdin || term != nil {
		in := process.Stdin()
		if b, ok := process.(sandpit.Backgrounder); ok && term != nil && m.stays != "" {
			in = &detachKeys{WriteCloser: in, keys: m.detachKeys, detach: func() error {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				if err := b.Background(ctx); err != nil {
					return err
				}
				giveUp(errDetached)
				return nil
			}}
		}
		go a.feed(in, a.Stdin)
	}
	result, err := process.Wait(waiting)
	relay.release()
	term.Restore()
	steps.done("the command")
	switch {
	case err != nil && errors.Is(context.Cause(waiting), errDetached):
		a.noteDetached(m.stays, process.ID())
		return nil
	case errors.Is(err, context.Canceled):
		return errors.New("killing the command: its sandbox does not respond")
	case err != nil:
		return lostSight(fmt.Errorf("waiting for the command: %w", err), m.stays, process)
	}

	code := result.ExitCode
	if m.json {
		return a.printReport(ctx, sandbox, m, report{result: result, code: code, stdout: captured.stdout.Bytes(), stderr: captured.stderr.Bytes()})
	}
	a.explain(ctx, bounded{sandbox: sandbox, stays: m.stays, timeout: m.timeout, output: cmd.OutputLimit}, result)
	if err := out.failure(); err != nil {
		if result.Signal == int(syscall.SIGKILL) {
			code = 0
		}
		return outputError(err, "command", code)
	}
	return ExitWith(code)
}

// aboutUser returns the error of a start with a hint, if it is about the user of the command.
func aboutUser(err error) error {
	if sandpit.StageOf(err) == sandpit.StageUser && errors.Is(err, sandpit.ErrInvalid) && sandpit.Hint(err) == "" {
		return sandpit.WithHint(err, UserHint)
	}
	return err
}

// UserHint is the hint of an unknown user or group.
const UserHint = "use a user and a group of the image's /etc/passwd and /etc/group, or numeric ids"

// outputError returns the error of output that could not be passed on: for a closed pipe
// the exit code, which is that of SIGPIPE if there is none.
func outputError(err error, of string, code int) error {
	if errors.Is(err, syscall.EPIPE) {
		return ExitWith(cmp.Or(code, exitSignal+int(syscall.SIGPIPE)))
	}
	return fmt.Errorf("passing on the output of the %s: %w", of, err)
}

// addTerminal gives a command a terminal of its own of the same size as term.
func (a *App) addTerminal(cmd *sandpit.Command, term *Terminal) {
	cmd.Terminal = new(term.Size())
	if name, ok := a.Lookup("TERM"); ok && name != "" {
		cmd.Env = append([]string{"TERM=" + name}, cmd.Env...)
	}
}

// printReport prints the object of --json, completed with what the sandbox says, and returns
// the error of its exit code.
func (a *App) printReport(ctx context.Context, sandbox place, m modes, r report) error {
	ctx = context.WithoutCancel(ctx)
	var err error
	if r.info, err = sandbox.Info(ctx); err != nil {
		return fmt.Errorf("reading the sandbox's limits: %w", err)
	}
	// Without figures of the sandbox, those of its largest process do.
	if r.metrics, err = sandbox.Metrics(ctx); err != nil {
		r.metrics = sandpit.Metrics{MemoryPeak: -1}
	}
	if m.traffic != nil {
		r.traffic = m.traffic()
	}
	if m.remove != nil {
		// The sandbox goes first: what is printed then is all there is to come.
		if err := m.remove(); err != nil {
			return fmt.Errorf("removing the sandbox: %w", err)
		}
	}
	if err := a.printResult(r); err != nil {
		return err
	}
	return ExitWith(r.code)
}

// notStarted prints why a program could not be started, and returns the error of its exit code.
func (a *App) notStarted(ctx context.Context, sandbox place, cmd sandpit.Command, failed *sandpit.StartError) error {
	a.PrintError(a.startError(ctx, sandbox, cmd, failed))
	return ExitWith(failed.ExitCode)
}

// lostSight returns err with the hint where a process of a sandbox is found again,
// if it is that its server can't be asked any more.
func lostSight(err error, sandbox string, process sandpit.Process) error {
	if process == nil || sandbox == "" || !errors.Is(err, sandpit.ErrUnavailable) {
		return err
	}
	return sandpit.WithHint(err, fmt.Sprintf("run 'sandpit attach %s %s' to reconnect if it is still running", sandbox, process.ID()))
}

// checkWorkDir refuses a working directory that does not exist. Without this
// check the command would fail to start with 126, as in a shell.
func checkWorkDir(ctx context.Context, sandbox sandpit.Sandbox, dir string) error {
	info, err := sandbox.Files().Stat(ctx, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return workDirError(fastrun.ErrNoWorkDir, dir)
	case err == nil && !info.IsDir():
		return workDirError(fastrun.ErrNotWorkDir, dir)
	}
	return nil // what else is wrong, the start of the command will tell
}

// workDirError says what is wrong with a working directory, if that is the error.
func workDirError(err error, dir string) error {
	const hint = "name a directory of the image, or mount one there: --mount .:/work --workdir /work"
	switch {
	case errors.Is(err, fastrun.ErrNoWorkDir):
		return sandpit.WithHint(Usagef("the working directory %s does not exist in the sandbox", dir), hint)
	case errors.Is(err, fastrun.ErrNotWorkDir):
		return sandpit.WithHint(Usagef("the working directory %s is not a directory", dir), hint)
	}
	return err
}

// orFailure returns err, or the failure of what was done after it when err only
// says how the command ended: leaving something behind outweighs that.
func orFailure(err error, doing string, failure error) error {
	var exit *ExitError
	if failure != nil && (err == nil || errors.As(err, &exit)) {
		return fmt.Errorf("%s: %w", doing, failure)
	}
	return err
}

// ExitWith returns the error of an exit code: an *ExitError, or nil for 0.
func ExitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &ExitError{code}
}

// startError returns the error that a program could not be started. If it was not found in
// PATH, and the sandbox shows this machine's programs, the error says where it is.
func (a *App) startError(ctx context.Context, sandbox place, cmd sandpit.Command, failed *sandpit.StartError) error {
	name := programName(cmd)
	err := fmt.Errorf("starting %s: %w", name, failed)
	const notFound = 127
	if failed.ExitCode == notFound && strings.HasPrefix(name, "-") {
		return sandpit.WithHint(err, "write flags of sandpit before the command, and before the name of its sandbox")
	}
	if failed.ExitCode == notFound && cmd.FromImage && a.isImage(name) {
		rest := ""
		if len(cmd.Argv) > 1 {
			rest = " -- " + strings.Join(cmd.Argv[1:], " ")
		}
		return sandpit.WithHint(err, "write 'sandpit run --image "+Harmless(name+rest)+"' if it is an image")
	}
	if cmd.Dir != "" && failed.Stage == sandpit.StageDirectory {
		return sandpit.WithHint(err, "create the directory first, or choose another one with --workdir")
	}
	if failed.ExitCode != notFound || cmd.Script != "" || strings.Contains(name, "/") {
		return err
	}
	if _, address := a.configured(); !isHere(address) {
		return err // the sandbox shows another machine's programs
	}
	dir, shown := a.findProgram(name)
	if dir == "" {
		return err
	}
	if info, ierr := sandbox.Info(context.WithoutCancel(ctx)); ierr != nil || info.Image != "host" {
		return err
	}
	dir = Harmless(dir)
	if shown {
		return sandpit.WithHint(fmt.Errorf("%w; this machine has it in %s", err, dir), "add `-e PATH="+dir+":$PATH`")
	}
	return sandpit.WithHint(fmt.Errorf("%w; this machine has it in %s, which sandboxes do not show", err, dir),
		"make a sandbox with `-v "+tree(dir)+":"+tree(dir)+":ro -e PATH="+dir+":$PATH`, which shows everything in that directory")
}

// isImage reports whether the name of a program that was not found is most likely that of an
// image, as docker has it in the place of the program.
func (a *App) isImage(name string) bool {
	if strings.HasPrefix(name, "/") || strings.HasPrefix(name, ".") {
		return false
	}
	switch name {
	case "alpine", "archlinux", "busybox", "debian", "fedora", "ubuntu":
		return true
	}
	_, tag, tagged := strings.Cut(name, ":")
	return tagged && tag != ""
}

// A bounded is a command that may have reached a limit, for explain.
type bounded struct {
	sandbox place
	stays   string        // as in modes
	timeout time.Duration // its own; 0: none, or unknown if the command was found again
	output  int64         // its own limit; 0: none
	found   bool          // it was found again
}

// explain says on stderr which limits the command reached, and how to raise them.
func (a *App) explain(ctx context.Context, c bounded, result sandpit.Result) {
	if !result.OOMKilled && !result.TimedOut && !result.Truncated && !result.PidsRefused && !result.DiskFull && !result.FilesFull && !result.CPUExceeded {
		return
	}
	info, err := c.sandbox.Info(context.WithoutCancel(ctx))
	if err != nil {
		a.Note("the command reached a limit; reading it failed: %v", err)
		return
	}
	limits := info.Limits
	if result.TimedOut {
		a.explainTime(c, limits.Life, result)
	}
	who := ""
	if result.Signal == 0 {
		who = "a process of the command was "
	}
	if result.CPUExceeded {
		a.Note("%skilled: its rlimit cpu, the limit of CPU time, was reached; raise it with --ulimit cpu=SECONDS", who)
	}
	if result.OOMKilled {
		a.Note("%skilled: out of memory (limit %s); %s", who, notation.FormatSize(limits.Memory), c.remedy("memory", "SIZE"))
	}
	if result.PidsRefused {
		a.Note("a process or thread was refused: the limit of %d processes was reached; %s", limits.Pids, c.remedy("pids", "N"))
	}
	if result.DiskFull {
		a.Note("the sandbox's disk is full (limit %s); %s", notation.FormatSize(limits.Disk), c.remedy("disk", ""))
	}
	if result.FilesFull {
		a.Note("the sandbox can't have more files (limit %d); %s", limits.Files, c.remedy("files", ""))
	}
	if result.Truncated {
		a.explainOutput(c, limits.Output, result)
	}
}

// remedy says how to raise a limit of the sandbox. The shown form of a value is empty for limits
// that can't be changed after the creation.
func (c bounded) remedy(flag, shown string) string {
	switch {
	case c.stays == "":
		return "raise it with --" + flag
	case shown != "":
		return "raise it with 'sandpit update --" + flag + " " + shown + " " + c.stays + "'"
	default:
		return "create a sandbox with a larger --" + flag
	}
}

// explainTime says whether the command ran out of its own time, or of that of its sandbox.
func (a *App) explainTime(c bounded, life time.Duration, result sandpit.Result) {
	switch {
	case c.timeout > 0 && result.Wall >= c.timeout:
		a.Note("killed: timeout of %s exceeded; raise it with --timeout", notation.FormatDuration(c.timeout))
	case c.timeout == 0 && c.found:
		a.Note("killed: its timeout has ended, or the lifetime of the sandbox")
	case c.stays == "":
		a.Note("killed: the sandbox's lifetime of %s has ended; raise it with --timeout", notation.FormatDuration(life))
	default:
		a.Note("killed: the lifetime of the sandbox has ended, and it is removed; 'sandpit extend' makes one longer")
	}
}

// explainOutput says how much output was dropped because of the smaller one of two limits: that
// of the command and that of its sandbox.
func (a *App) explainOutput(c bounded, limit int64, result sandpit.Result) {
	own, passed := c.output, result.StdoutBytes+result.StderrBytes-result.DroppedBytes
	if c.found && passed < limit {
		own = passed // nothing else tells the limit of a command that was found again
	}
	remedy := c.remedy("output-limit", "")
	if own > 0 && (own < limit || limit == 0) {
		limit, remedy = own, "raise it with --output-limit"
	}
	a.Note("output exceeded the limit of %s: %s dropped; %s", notation.FormatSize(limit), notation.FormatSize(result.DroppedBytes), remedy)
}

// interrupted returns the exit code of the signal that ended ctx, or else err.
func interrupted(ctx context.Context, err error) error {
	var signal *signalError
	if errors.As(context.Cause(ctx), &signal) {
		return &ExitError{exitSignal + int(signal.signal)}
	}
	return err
}

// output passes the command's output on. The first writer that fails makes the
// command get what it would have got from writing there itself.
type output struct {
	relay  *relay
	failed chan error // holds the first failure
}

func newOutput(relay *relay) *output {
	return &output{relay: relay, failed: make(chan error, 1)}
}

// to returns a writer to file: to a copy of its descriptor, because a write to
// a closed pipe through os.Stdout itself would end this program.
func (o *output) to(file *os.File) (io.Writer, error) {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("copying the descriptor of %s: %w", file.Name(), err)
	}
	own := os.NewFile(uintptr(fd), file.Name())
	return writerFunc(func(p []byte) (int, error) {
		n, err := own.Write(p)
		if err != nil {
			o.fail(err)
		}
		return n, err
	}), nil
}

func (o *output) fail(err error) {
	select {
	case o.failed <- err:
	default:
	}
	o.relay.brokenPipe()
}

// watch makes the output fail when the reader of a pipe has gone, also if nothing is written.
func (o *output) watch(file *os.File) {
	var st unix.Stat_t
	fd := int(file.Fd())
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return
	}
	go func() {
		pipe := []unix.PollFd{{Fd: int32(fd)}}
		for {
			if _, err := unix.Poll(pipe, -1); err != unix.EINTR {
				break
			}
		}
		if pipe[0].Revents&unix.POLLERR != 0 {
			o.fail(syscall.EPIPE)
		}
	}()
}

// failure returns why passing on the output failed, or nil.
func (o *output) failure() error {
	select {
	case err := <-o.failed:
		return err
	default:
		return nil
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// feed copies standard input to the command until either ends.
func (a *App) feed(to io.WriteCloser, from *os.File) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		waitForeground(from)
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if errors.Is(err, syscall.EISDIR) {
			a.Note("standard input is a directory: the command gets empty input")
		}
		if err != nil {
			return
		}
	}
}

// isNull reports whether f is /dev/null, which needs no stream to be empty.
func isNull(f *os.File) bool {
	var file, null unix.Stat_t
	if unix.Fstat(int(f.Fd()), &file) != nil || unix.Stat(os.DevNull, &null) != nil {
		return false
	}
	return file.Mode&unix.S_IFMT == unix.S_IFCHR && file.Rdev == null.Rdev
}

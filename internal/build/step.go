package build

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Plan is what a build does.
type Plan struct {
	From         string // what the client calls the image on which it begins
	Image        string // that image
	Steps        []Step
	Start, Ready string // commands that each sandbox of the template runs, see StartProgram; or ""
	Force        bool   // nothing is taken from an earlier build
}

// Step is a step of a build, as in a Dockerfile: ENV with names and values, USER, WORKDIR, RUN with a command and perhaps its user, or
// COPY with a pattern, a destination, and perhaps an owner and a mode.
type Step struct {
	Type  string
	Args  []string
	Hash  string // of COPY: the archive
	Force bool   // as of Plan, for this step and those after it
}

// Check returns the error of a plan that can't be carried out.
func (p *Plan) Check() error {
	size, count := len(p.Start)+len(p.Ready)+len(p.From), 0
	for i, s := range p.Steps {
		count += len(s.Args)
		for _, arg := range s.Args {
			size += len(arg)
		}
		if err := s.check(); err != nil {
			return gate.Invalid(fmt.Sprintf("step %d: %v", i+1, err), "")
		}
	}
	if size > maxStepBytes || len(p.Steps) > maxSteps || count > maxStepArgs {
		return &gate.Refusal{Code: errcode.TooLarge, Message: fmt.Sprintf("a build has at most %d steps, with %d arguments, and %d bytes of them and its commands", maxSteps, maxStepArgs, maxStepBytes)}
	}
	return nil
}

// worker carries out the steps of a build.
type worker struct {
	b         *Build
	sb        engine.Box
	env       []string
	dir, user string // "": the sandbox's own
}

// environment returns the variables of a program: those of the image, and what lets pip install into its Python,
// which is the image's own (PEP 668).
func (w *worker) environment() []string {
	return append([]string{"PIP_BREAK_SYSTEM_PACKAGES=1"}, w.env...)
}

// files returns the files of the sandbox for the user of the steps, with the rights of root if the sandbox has root inside.
func (w *worker) files() sandpit.Files {
	made, _ := w.sb.Made() // one that is not known has the usual user
	return w.sb.RootFiles(cmp.Or(w.user, made.Guest.User))
}

// own returns "" for the name of the sandbox's own user.
func (w *worker) own(name string) string {
	if name == w.b.host.Own {
		return ""
	}
	return name
}

// check checks the arguments of a step.
func (s Step) check() error {
	n := len(s.Args)
	switch {
	case s.Type == "ENV" && n%2 == 0, s.Type == "RUN" && (n == 1 || n == 2), s.Type == "COPY" && n >= 2 && n <= 4 && ValidHash(s.Hash),
		(s.Type == "WORKDIR" || s.Type == "USER") && n == 1 && s.Args[0] != "":
		return nil
	}
	return fmt.Errorf("the arguments of %.40q are not valid, or it is not a kind of step", s.Type)
}

// step carries out a step.
func (w *worker) step(ctx context.Context, name string, s Step) error {
	switch s.Type {
	case "ENV":
		for i := 0; i < len(s.Args); i += 2 {
			w.env = append(w.env, s.Args[i]+"="+s.Args[i+1])
		}
		return nil
	case "USER":
		w.user = w.own(s.Args[0])
		return nil
	case "WORKDIR":
		if w.dir = path.Join("/", w.dir, s.Args[0]); path.IsAbs(s.Args[0]) {
			w.dir = path.Clean(s.Args[0])
		}
		return w.files().Mkdir(ctx, w.dir, 0o755, true)
	case "RUN":
		user := w.user
		if len(s.Args) == 2 && s.Args[1] != "" {
			user = w.own(s.Args[1])
		}
		return w.run(ctx, name, sandpit.Command{Argv: loginShell(ctx, w.sb, s.Args[0]), Env: w.environment(), Dir: w.dir, User: user})
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
		return errors.New("the command failed: " + endOf(out.Result))
	}
	return nil
}

// endOf says how a command has failed.
func endOf(r sandpit.Result) string {
	if r.Signal != 0 {
		return "signal: " + syscall.Signal(r.Signal).String()
	}
	return "exit status " + strconv.Itoa(r.ExitCode)
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

// copy carries out a COPY step. The archive is unpacked inside, with the rights of the user who gets the files.
func (w *worker) copy(ctx context.Context, step string, s Step) error {
	args := append(slices.Clone(s.Args), "", "")[:4]
	owner, mode := args[2], args[3]
	user := w.user
	if owner != "" || user == "" {
		name, _, _ := strings.Cut(cmp.Or(owner, w.b.host.Own), ":")
		user = w.own(name)
	}
	to := args[1]
	if !path.IsAbs(to) {
		slash := strings.HasSuffix(to, "/") || to == "."
		if to = path.Join(cmp.Or(w.dir, w.b.host.Home(w.sb, w.user)), to); slash {
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
	unpackDir := "/tmp/.sandpit-copy-" + rand.Text() // which no image has
	if err := files.Mkdir(ctx, unpackDir, 0o755, false); err != nil {
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

package e2b

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// E2B's agent is root, and gives what it makes to the user whom a request names. So what the rights of that user do not suffice for
// is done again by root, where the sandbox has root inside: nothing but that which its programs may do with sudo. All else is
// done with the user's own rights, at the price of one question.

// rootHome is the home directory of root.
const rootHome = "/root"

// filesOf returns the files of a sandbox with the rights of a user; "" is the sandbox's own.
func filesOf(sb engine.Box, user string) place {
	f := place{Files: sb.Files().As(user)}
	made, err := sb.Made()
	switch f.home = homeIn(made, user); {
	case err != nil:
	case f.home == rootHome:
		f.base = rootHome // also if the sandbox has a working directory
	case made.Spec.RootInside:
		f.root = sb.Files().As("root")
	}
	return f
}

// homeOf returns where relative paths of a user begin, as far as the host knows.
func homeOf(sb engine.Box, user string) string {
	made, _ := sb.Made() // one that is not known has the usual ones
	return homeIn(made, user)
}

func homeIn(made engine.Made, user string) string {
	switch name, _, _ := strings.Cut(cmp.Or(user, made.Guest.User), ":"); {
	case name == "root" || name == "0":
		return rootHome
	case made.Guest.Dir != "":
		return made.Guest.Dir
	case name == "" || name == "user":
		return "/home/user"
	default:
		return "/home/" + name
	}
}

// denied reports whether root may do what has failed.
func (f place) denied(err error) bool { return f.root != nil && errors.Is(err, fs.ErrPermission) }

// at returns a path as the sandbox takes it.
func (f place) at(p string) string {
	if f.base == "" || path.IsAbs(p) {
		return p
	}
	return f.base + "/" + p
}

// Stat is sandpit.Files.Stat.
func (f place) Stat(ctx context.Context, p string) (sandpit.FileInfo, error) {
	i, err := f.Files.Stat(ctx, f.at(p))
	if f.denied(err) {
		return f.root.Stat(ctx, f.absolute(p))
	}
	return i, err
}

// Lstat is sandpit.Files.Lstat.
func (f place) Lstat(ctx context.Context, p string) (sandpit.FileInfo, error) {
	i, err := f.Files.Lstat(ctx, f.at(p))
	if f.denied(err) {
		return f.root.Lstat(ctx, f.absolute(p))
	}
	return i, err
}

// Open is sandpit.Files.Open.
func (f place) Open(ctx context.Context, p string, offset, length int64) (io.ReadCloser, error) {
	r, err := f.Files.Open(ctx, f.at(p), offset, length)
	if f.denied(err) {
		return f.root.Open(ctx, f.absolute(p), offset, length)
	}
	return r, err
}

// Find is sandpit.Files.Find.
func (f place) Find(ctx context.Context, p string, q sandpit.FindQuery) ([]sandpit.FileInfo, bool, error) {
	list, more, err := f.Files.Find(ctx, f.at(p), q)
	if f.denied(err) {
		return f.root.Find(ctx, f.absolute(p)+"/.", q)
	}
	return list, more, err
}

// Watch is sandpit.Files.Watch.
func (f place) Watch(ctx context.Context, p string, recursive bool) iter.Seq2[sandpit.FileEvent, error] {
	return func(yield func(sandpit.FileEvent, error) bool) {
		began := false
		for e, err := range f.Files.Watch(ctx, f.at(p), recursive) {
			if !began && f.denied(err) {
				f.root.Watch(ctx, f.absolute(p), recursive)(yield)
				return
			}
			began = true
			if !yield(e, err) {
				return
			}
		}
	}
}

// Remove is sandpit.Files.Remove.
func (f place) Remove(ctx context.Context, p string, recursive bool) error {
	err := f.Files.Remove(ctx, f.at(p), recursive)
	if f.denied(err) {
		return f.root.Remove(ctx, f.absolute(p), recursive)
	}
	return err
}

// Rename is sandpit.Files.Rename.
func (f place) Rename(ctx context.Context, from, to string) error {
	err := f.Files.Rename(ctx, f.at(from), f.at(to))
	if f.denied(err) {
		return f.root.Rename(ctx, f.absolute(from), f.absolute(to))
	}
	return err
}

// Mkdir is sandpit.Files.Mkdir with parents, which all belong to the user.
func (f place) Mkdir(ctx context.Context, p string, mode fs.FileMode, parents bool) error {
	err := f.Files.Mkdir(ctx, f.at(p), mode, parents)
	if !f.denied(err) {
		return err
	}
	give, err := f.giver(ctx)
	if err != nil {
		return err
	}
	return f.makeDirs(ctx, f.absolute(p), give)
}

// Write is sandpit.Files.Write.
func (f place) Write(ctx context.Context, p string, r io.Reader, opt sandpit.WriteOptions) (int64, error) {
	if f.root == nil {
		return f.Files.Write(ctx, f.at(p), r, opt)
	}
	first := &replay{r: r, hold: f.hold}
	defer first.free()
	n, err := f.Files.Write(ctx, f.at(p), first, opt)
	switch {
	case first.err != nil:
		return n, first.err
	case !f.denied(err) || first.lost:
		return n, err
	}
	give, err := f.giver(ctx)
	if err != nil {
		return 0, err
	}
	p = f.absolute(p)
	if err := f.makeDirs(ctx, path.Dir(p), give); err != nil {
		return 0, err
	}
	if n, err = f.root.Write(ctx, p, io.MultiReader(bytes.NewReader(first.read), r), opt); err != nil {
		return n, err
	}
	return n, give(p)
}

// guestWindow is what a sandbox is sent of content before it has opened the file (wire.GuestWindow).
const guestWindow = 256 << 10

// replay remembers the content that was read while it is not known that the sandbox has opened its file. That is so until more than
// the guest's first window was sent: the guest gives more only after it has opened the file.
type replay struct {
	r    io.Reader
	hold func(more int64) error // holds memory; negative: releases it
	read []byte
	held int64
	lost bool  // the file was opened: the content is not kept any more
	err  error // of hold
}

// Read reads content. All of it that was read by earlier calls has been sent.
func (p *replay) Read(b []byte) (int, error) {
	if len(p.read) > guestWindow {
		p.lost = true
		p.free()
	}
	n, err := p.r.Read(b)
	if p.lost {
		return n, err
	}
	p.read = append(p.read, b[:n]...)
	if more := gate.HeldByte*int64(len(p.read)) - p.held; len(p.read) > gate.FreeBody && more > 0 {
		if p.err = p.hold(more); p.err != nil {
			return 0, p.err
		}
		p.held += more
	}
	return n, err
}

// free forgets the content.
func (p *replay) free() {
	_ = p.hold(-p.held) // less is never too much
	p.read, p.held = nil, 0
}

// giver returns what gives files to the user. Only the sandbox knows the user's ids: a link that the user makes has them.
func (f place) giver(ctx context.Context) (give func(p string) error, err error) {
	link := "/tmp/" + temporary + strings.ToLower(rand.Text())
	if err := f.Files.Symlink(ctx, "-", link); err != nil {
		return nil, err
	}
	i, err := f.Files.Lstat(ctx, link)
	if err := errors.Join(err, f.Files.Remove(ctx, link, false)); err != nil {
		return nil, err
	}
	return func(p string) error {
		// A link that somebody has put there meanwhile is not followed.
		return f.root.SetAttr(ctx, p, sandpit.FileAttr{NoFollow: true, UID: &i.UID, GID: &i.GID})
	}, nil
}

// makeDirs makes a directory and its parents as root, and gives the new ones away.
func (f place) makeDirs(ctx context.Context, dir string, give func(string) error) error {
	var missing []string
	for ; ; dir = path.Dir(dir) {
		_, err := f.root.Stat(ctx, dir)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return err
		}
		missing = append(missing, dir)
	}
	for _, dir := range slices.Backward(missing) {
		if err := f.root.Mkdir(ctx, dir, 0o755, false); err != nil {
			return err
		}
		if err := give(dir); err != nil {
			return err
		}
	}
	return nil
}

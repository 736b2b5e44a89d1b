package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

// place is an argument of cp: a path here or in a sandbox.
type place struct {
	sandbox string // empty: here
	path    string
}

// parsePlace reads NAME:PATH, a path, or "-". A path with a colon here is
// written with a slash before it: ./a:b.
func parsePlace(text string) place {
	name, rest, ok := strings.Cut(text, ":")
	if !ok || strings.Contains(name, "/") || name == "" || name == "." {
		return place{path: text}
	}
	if rest == "" {
		rest = "."
	}
	return place{name, rest}
}

// meansContents reports whether a source of cp is what is in a directory, and not the directory
// with its name: ".", "dir/.".
func meansContents(name string) bool {
	name = strings.TrimRight(name, "/")
	return name == "." || strings.HasSuffix(name, "/.")
}

// cpCommand is sandpit cp.
func (a *tree) cpCommand() *cobra.Command {
	opt := copyFlags{user: textFlag("OWNER")}
	as := textFlag("USER")
	cmd := a.serverCommand(&cobra.Command{
		Use: "cp [flags] SRC DST",
		Long: `Copy a file or directory from this machine into a sandbox, or back. The sandbox's side is
NAME:PATH; PATH is absolute, or relative to the sandbox's working directory. As with
cp -r, the copy keeps its name if DST is an existing directory. It also keeps its name if
DST ends in a slash, which creates the directory if necessary. A SRC that is '.' or ends in
'/.' means what is in the directory, which DST then gets beside what it has. '-' stands for
standard input or output.

A symbolic link at the destination is replaced, never followed. Elsewhere in a path of this
machine cp follows only the system's links: root's in /, /var, /etc, /usr, /usr/bin,
/usr/lib and /dev. It refuses other links, because a sandbox may have created them; name
their targets instead.

In a directory, links are copied as links, wherever they lead; with --follow, those that stay in
it are copied as what they lead to. Sockets, pipes, devices and what can't be read or written
are named, and everything else is copied: the exit code is then 1. An archive, from a directory
to '-', fails at the first file that can't be read.

In the sandbox cp has the rights of the sandbox's user, to whom the copies belong; with --as those
of another user. --user gives them to another, with the sandbox's own chown.`,
		Example: `  sandpit cp ./src work:/workspace/
  sandpit cp ./src/. work:/workspace/
  sandpit cp work:/workspace/result.json .
  sandpit cp work:/var/log/app.log -`,
		Args: arguments(2, 2),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}, func(ctx context.Context, s *session, args []string) error {
		from, to := parsePlace(args[0]), parsePlace(args[1])
		switch {
		case opt.follow && opt.links:
			return cli.Usagef("--links and --follow exclude each other")
		case args[0] == "" || args[1] == "":
			return sandpit.WithHint(cli.Usagef("the source or destination of cp is empty"), "write 'sandpit cp SRC DST'")
		case from.sandbox == "" && to.sandbox == "":
			return sandpit.WithHint(cli.Usagef("neither %s nor %s is a path in a sandbox", args[0], args[1]), "write a path in a sandbox as NAME:PATH")
		case from.sandbox != "" && to.sandbox != "":
			return sandpit.WithHint(cli.Usagef("both %s and %s are paths in a sandbox", args[0], args[1]), "copy out and then in; within one sandbox run 'sandpit exec NAME -- cp -r SRC DST'")
		case from.sandbox == "":
			sb, err := s.find(ctx, to.sandbox)
			if err != nil {
				return err
			}
			return wholeName(a.copyIn(ctx, asUser{sb, as.is}, from.path, to.path, opt), sb, to.path)
		case opt.user.set:
			return sandpit.WithHint(cli.Usagef("--user applies only to copies into a sandbox"), "omit it: copies on this machine belong to you; --as reads with the rights of another user")
		case opt.follow:
			return sandpit.WithHint(cli.Usagef("links of a sandbox are not followed"), "copy inside first: sandpit exec "+from.sandbox+" -- cp -rL SRC DST")
		}
		sb, err := s.find(ctx, from.sandbox)
		if err != nil {
			return err
		}
		return wholeName(a.copyOut(ctx, asUser{sb, as.is}, from.path, to.path), sb, from.path)
	})
	cmd.Flags().VarP(&opt.user, "user", "u", "owner of what is copied into the sandbox, in the form of chown: root, 1000:1000")
	asFlag(cmd, &as)
	cmd.Flags().BoolVar(&opt.links, "links", false, "copy links in a directory as links (the default)")
	cmd.Flags().BoolVarP(&opt.follow, "follow", "L", false, "copy what links in a directory lead to, if it is in the directory, too")
	return cmd
}

// asUser is a sandbox whose files are used with the rights of another user, unless that is
// empty.
type asUser struct {
	sandpit.Sandbox
	user string
}

// Files returns the files with the rights of that user.
func (s asUser) Files() sandpit.Files { return s.Sandbox.Files().As(s.user) }

// asFlag adds the flag --as.
func asFlag(cmd *cobra.Command, as *parsed[string]) {
	cmd.Flags().Var(as, "as", "user whose rights are used in the sandbox (default its own): root, 1000:1000")
}

// copyFlags are the flags of cp.
type copyFlags struct {
	user          parsed[string]
	links, follow bool
}

// wholeName returns the error of cp with the whole name of the path in the sandbox, if it is
// about that.
func wholeName(err error, sb sandpit.Sandbox, name string) error {
	var about *fs.PathError
	if !errors.As(err, &about) || about.Path != name || errors.Is(err, sandpit.ErrState) {
		return err
	}
	named := fmt.Errorf("copying %s:%s: %w", sb.Name(), name, about.Err)
	if hint := sandpit.Hint(err); hint != "" || !errors.Is(err, fs.ErrNotExist) {
		return cli.WithHintOf(named, err)
	}
	return sandpit.WithHint(named, "run 'sandpit ls "+sb.Name()+" "+path.Dir(path.Clean(name))+"' to list what is there")
}

// copyIn copies a file or directory of this machine into a sandbox.
func (a *tree) copyIn(ctx context.Context, sb sandpit.Sandbox, from, to string, opt copyFlags) error {
	if err := checkOwner(ctx, sb, opt.user.is); err != nil {
		return err
	}
	files := sb.Files()
	if from == "-" {
		if _, err := files.Write(ctx, to, a.Stdin, sandpit.WriteOptions{}); err != nil {
			if errors.Is(err, sandpit.ErrIsDirectory) {
				return sandpit.WithHint(err, "name a file; a tar stream is unpacked by: sandpit exec -i "+sb.Name()+" -- tar x -C "+to)
			}
			return wantsDirectory(err, createFirst(sb, to))
		}
		return giveTo(ctx, sb, to, opt.user.is)
	}
	source, again, err := openSource(from)
	if err != nil {
		err = fmt.Errorf("copying: %w", err)
		if errors.Is(err, fs.ErrNotExist) {
			err = sandpit.WithHint(err, "check the path; a path in a sandbox is NAME:PATH")
		}
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	there, err := files.Stat(ctx, to)
	isDir := err == nil && there.IsDir()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	whole, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	named := strings.HasSuffix(to, "/") // as a directory, which is made if need be
	contents := meansContents(from)
	if contents && isDir && opt.user.set { // what it has already must keep its owner
		return sandpit.WithHint(cli.Usagef("--user can't be combined with a copy of contents into an existing directory"), "name a new directory, or the source without '/.'")
	}
	if (isDir || named) && !contents {
		to = path.Join(to, filepath.Base(whole))
	}
	switch {
	case info.Mode().IsRegular():
		f, err := os.Open(again)
		if err != nil {
			return opening(err, again, from)
		}
		defer f.Close()
		if _, err := files.Write(ctx, to, f, sandpit.WriteOptions{Mode: info.Mode().Perm(), Parents: named}); err != nil {
			return wantsDirectory(err, createFirst(sb, to))
		}
		if err := files.Chmod(ctx, to, info.Mode().Perm()); err != nil {
			return err
		}
		return giveTo(ctx, sb, to, opt.user.is)
	case !info.IsDir():
		return sandpit.WithHint(cli.Usagef("%s is not a file or a directory", from), "use '-' and a redirection to copy its contents")
	}
	with := unbounded
	if opt.follow {
		with.Follow, with.MaxFiles = true, 0 // a few links can make very many copies
	}
	err = opening(sandpit.CopyIn(ctx, sb, again, to, with), again, from)
	if _, partly := errors.AsType[*sandpit.CopyError](err); err == nil || partly {
		if err := giveTo(ctx, sb, to, opt.user.is); err != nil {
			return err
		}
	}
	return a.notCopied(err, from)
}

// opening returns the error of opening again with the name that the user knows.
func opening(err error, again, name string) error {
	if about, ok := errors.AsType[*fs.PathError](err); ok && about.Path == again {
		return fmt.Errorf("copying: opening %s: %w", name, about.Err)
	}
	return err
}

// checkOwner refuses an owner that the sandbox does not know or can't give files to, before
// anything is copied.
func checkOwner(ctx context.Context, sb sandpit.Sandbox, owner string) error {
	if owner == "" {
		return nil
	}
	user := strings.TrimSuffix(owner, ":") // the user with its own group
	if strings.HasPrefix(owner, ":") {
		user = "root" + owner // a group alone
	}
	for _, user := range [...]string{user, "root"} { // root runs chown
		_, err := sandpit.Run(ctx, sb, sandpit.Command{Argv: []string{"true"}, User: user})
		switch {
		case errors.Is(err, sandpit.ErrInvalid):
			return sandpit.WithHint(fmt.Errorf("--user: %w", err), cli.UserHint)
		case errors.Is(err, sandpit.ErrUnsupported):
			return sandpit.WithHint(fmt.Errorf("--user: %w", err), ownerHint)
		}
	}
	return nil // another error is met again, and then told
}

const ownerHint = "--user needs a sandbox with several users and a chown program; see 'sandpit doctor'"

// giveTo gives a file, or a directory and what is in it, to an owner; "" leaves it to the user
// of the sandbox.
func giveTo(ctx context.Context, sb sandpit.Sandbox, name, owner string) error {
	if owner == "" {
		return nil
	}
	failed := func(err error, hint string) error {
		return sandpit.WithHint(fmt.Errorf("the files were copied, but do not belong to %q: %w", owner, err), hint)
	}
	out, err := sandpit.Run(ctx, sb, sandpit.Command{Argv: []string{"chown", "-hR", "--", owner, name}, User: "root", OutputLimit: 4 << 10})
	switch {
	case err != nil:
		return failed(err, ownerHint)
	case !out.Success():
		return failed(errors.New(strings.TrimSpace(string(out.Stderr))), "use a user and a group that the sandbox has, or numbers")
	}
	return nil
}

// unbounded is a copy whose size is the user's own matter, who can end it.
var unbounded = sandpit.CopyOptions{MaxBytes: -1, MaxFiles: -1}

// notCopied names what was not copied below a directory, and returns the exit code for that.
func (a *tree) notCopied(err error, dir string) error {
	left, ok := errors.AsType[*sandpit.CopyError](err)
	if !ok {
		return err
	}
	for _, skipped := range left.Skipped {
		a.Note("not copied: %s: %v", path.Join(dir, skipped.Path), skipped.Err)
	}
	if left.More > 0 {
		a.Note("not copied: %d more", left.More)
	}
	if n := len(left.Skipped) + left.More; n == 1 {
		a.Note("1 file was not copied, everything else was")
	} else {
		a.Note("%d files were not copied, everything else was", n)
	}
	return &cli.ExitError{Code: 1}
}

// copyOut copies a file or directory of a sandbox to this machine.
func (a *tree) copyOut(ctx context.Context, sb sandpit.Sandbox, from, to string) error {
	files := sb.Files()
	info, err := files.Stat(ctx, from)
	if err != nil {
		return err
	}
	if to == "-" {
		if info.IsDir() {
			return archiveError(ctx, sb, from, files.Download(ctx, from, a.Stdout))
		}
		return copyFile(ctx, files, from, a.Stdout)
	}
	local, err := os.Stat(to)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("copying: %w", err)
	}
	into := (err == nil && local.IsDir() || strings.HasSuffix(to, "/")) && !meansContents(from)
	name := path.Base(path.Clean(from))
	if into && (name == "." || name == ".." || name == "/") {
		// What it is called is the sandbox's to say; it is given no name here.
		return sandpit.WithHint(cli.Usagef("%s has no file name to keep", from), "name the directory to create: "+filepath.Join(to, "NAME"))
	}
	if into {
		to = filepath.Join(to, name)
	}
	if !info.IsDir() {
		if into {
			dir, err := openDirectory(filepath.Dir(to), true)
			if err != nil {
				return fmt.Errorf("copying: %w", err)
			}
			_ = dir.Close()
		}
		return writeLocal("copying", to, info.Mode.Perm(), func(w io.Writer) error { return copyFile(ctx, files, from, w) })
	}
	if _, _, err := files.ReadDir(ctx, from, "", 1); err != nil {
		return err // nothing is made here then
	}
	root, err := openDirectory(to, true)
	if err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	_ = root.Close()
	dir, again, err := openSource(to)
	if err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	defer dir.Close()
	return a.notCopied(sandpit.CopyOut(ctx, sb, from, again, unbounded), from)
}

// archiveError returns the error of an archive of a directory. A server can only break off an
// archive that it has begun: if that was because of a file that can't be read, the error names it.
func archiveError(ctx context.Context, sb sandpit.Sandbox, dir string, err error) error {
	if ctx.Err() != nil || !errors.Is(err, sandpit.ErrUnavailable) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	unread := unreadable(ctx, sb.Files(), dir)
	if !errors.Is(unread, fs.ErrPermission) {
		return err
	}
	return sandpit.WithHint(fmt.Errorf("copying %s:%s: %w", sb.Name(), dir, unread),
		"the archive is not complete; copy to a directory, which leaves out what can't be read")
}

// unreadable returns the error of the first file or directory in dir that can't be read, or nil.
func unreadable(ctx context.Context, files sandpit.Files, dir string) error {
	entries, err := readWholeDir(ctx, files, dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		switch {
		case e.IsDir():
			err = unreadable(ctx, files, name)
		case e.Mode.IsRegular():
			var f io.ReadCloser
			if f, err = files.Open(ctx, name, 0, 1); err == nil {
				err = f.Close()
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// createFirst is the hint for a file whose directory is not there.
func createFirst(sb sandpit.Sandbox, name string) string {
	return "create the directory first: sandpit exec " + sb.Name() + " -- mkdir -p " + path.Dir(name)
}

// wantsDirectory returns the error of a write with a hint, if it is that the file's
// directory is not there.
func wantsDirectory(err error, hint string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return sandpit.WithHint(err, hint)
	}
	return err
}

func copyFile(ctx context.Context, files sandpit.Files, from string, to io.Writer) error {
	r, err := files.Open(ctx, from, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(to, r); err != nil {
		return fmt.Errorf("copying %s: %w", from, err)
	}
	return nil
}

// lsCommand is sandpit ls.
func (a *tree) lsCommand() *cobra.Command {
	var long, asJSON bool
	as := textFlag("USER")
	cmd := a.serverCommand(&cobra.Command{
		Use:               "ls [flags] NAME [PATH]",
		Long:              "List a directory of a sandbox.",
		Example:           "  sandpit ls work /etc\n  sandpit ls -l work",
		Args:              arguments(1, 2),
		ValidArgsFunction: a.completeNames(1),
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, args []string) error {
		dir := "."
		if len(args) == 1 {
			dir = args[0]
		}
		files := sb.Files().As(as.is)
		info, err := files.Stat(ctx, dir)
		if err != nil {
			return err
		}
		entries := []sandpit.FileInfo{info}
		if info.IsDir() {
			if entries, err = readWholeDir(ctx, files, dir); err != nil {
				return err
			}
		}
		return a.printFiles(entries, long, asJSON)
	}))
	cmd.Flags().BoolVarP(&long, "long", "l", false, "show mode, owner, size and time")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	asFlag(cmd, &as)
	return cmd
}

func readWholeDir(ctx context.Context, files sandpit.Files, dir string) ([]sandpit.FileInfo, error) {
	var all []sandpit.FileInfo
	for after := ""; ; {
		page, more, err := files.ReadDir(ctx, dir, after, 10_000)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if !more || len(page) == 0 {
			return all, nil
		}
		after = page[len(page)-1].Name
	}
}

// jsonFile is a file in the output of ls --json.
type jsonFile struct {
	Name    string `json:"name"`
	Type    string `json:"type"` // file, directory, symlink, other
	Size    int64  `json:"size"`
	Mode    string `json:"mode"` // octal
	ModTime string `json:"mod_time"`
	UID     uint32 `json:"uid"`
	GID     uint32 `json:"gid"`
	Target  string `json:"target,omitempty"`
}

func (a *tree) printFiles(entries []sandpit.FileInfo, long, asJSON bool) error {
	if asJSON {
		objects := make([]jsonFile, len(entries))
		for i, e := range entries {
			kind := "other"
			switch {
			case e.Mode.IsRegular():
				kind = "file"
			case e.IsDir():
				kind = "directory"
			case e.Mode&fs.ModeSymlink != 0:
				kind = "symlink"
			}
			objects[i] = jsonFile{e.Name, kind, e.Size, fmt.Sprintf("%04o", e.Mode.Perm()), e.ModTime.UTC().Format("2006-01-02T15:04:05.999999999Z"), e.UID, e.GID, e.Target}
		}
		return a.PrintJSON(objects)
	}
	if !long {
		for _, e := range entries {
			if _, err := fmt.Fprintln(a.Stdout, cli.Harmless(e.Name)); err != nil {
				return err
			}
		}
		return nil
	}
	table := a.table("MODE", "UID", "GID", "SIZE", "MODIFIED", "NAME")
	for _, e := range entries {
		name := cli.Harmless(e.Name)
		if e.Target != "" {
			name += " -> " + cli.Harmless(e.Target)
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\t%s\n", e.Mode, e.UID, e.GID, e.Size, e.ModTime.Local().Format("2006-01-02 15:04"), name)
	}
	return table.Flush()
}

// catCommand is sandpit cat.
func (a *tree) catCommand() *cobra.Command {
	as := textFlag("USER")
	cmd := a.serverCommand(&cobra.Command{
		Use:               "cat [flags] NAME PATH...",
		Long:              "Write files of a sandbox to standard output.",
		Example:           "  sandpit cat work /etc/os-release",
		Args:              arguments(2, -1),
		ValidArgsFunction: a.completeNames(1),
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, args []string) error {
		for _, name := range args {
			err := copyFile(ctx, sb.Files().As(as.is), name, a.Stdout)
			if errors.Is(err, sandpit.ErrIsDirectory) {
				return sandpit.WithHint(err, "run 'sandpit ls "+sb.Name()+" "+name+"' to list it")
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	asFlag(cmd, &as)
	return cmd
}

// writeCommand is sandpit write.
func (a *tree) writeCommand() *cobra.Command {
	opt := sandpit.WriteOptions{}
	as := textFlag("USER")
	mode := parsed[fs.FileMode]{parse: parseMode, shown: "MODE"}
	cmd := a.serverCommand(&cobra.Command{
		Use:               "write [flags] NAME PATH",
		Long:              "Write standard input to a file of a sandbox. The file is replaced atomically.",
		Example:           "  echo hello | sandpit write work /tmp/hello",
		Args:              arguments(2, 2),
		ValidArgsFunction: a.completeNames(1),
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, args []string) error {
		opt.Mode = mode.is
		_, err := sb.Files().As(as.is).Write(ctx, args[0], a.Stdin, opt)
		return wantsDirectory(err, "use --parents to create missing directories")
	}))
	cmd.Flags().BoolVarP(&opt.Append, "append", "a", false, "append to the file")
	cmd.Flags().BoolVarP(&opt.Parents, "parents", "p", false, "create missing parent directories")
	asFlag(cmd, &as)
	cmd.Flags().Var(&mode, "mode", "permissions of a new file (default 0644)")
	return cmd
}

func parseMode(text string) (fs.FileMode, error) {
	var n uint32
	if _, err := fmt.Sscanf(text, "%o", &n); err != nil || n > 0o777 || strings.Trim(text, "01234567") != "" {
		return 0, sandpit.WithHint(fmt.Errorf("%q is not an octal mode", text), "write it like 0644")
	}
	return fs.FileMode(n), nil
}

// editCommand is sandpit edit.
func (a *tree) editCommand() *cobra.Command {
	var edit sandpit.Edit
	as := textFlag("USER")
	replacement := parsed[string]{parse: func(text string) (string, error) { return text, nil }, shown: "TEXT"}
	cmd := a.serverCommand(&cobra.Command{
		Use: "edit [flags] NAME PATH",
		Long: `Replace exact text in a file of a sandbox. The text must occur exactly once, unless --all
is given; otherwise nothing is changed. --new '' deletes it.`,
		Example:           `  sandpit edit --old 'debug = false' --new 'debug = true' work /workspace/config.toml`,
		Args:              arguments(2, 2),
		ValidArgsFunction: a.completeNames(1),
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, args []string) error {
		if edit.Old == "" {
			return sandpit.WithHint(cli.Usagef("the text to replace is empty"), "give it with --old")
		}
		if !replacement.set {
			return sandpit.WithHint(cli.Usagef("the new text is missing"), "give it with --new; --new '' deletes the old text")
		}
		edit.New = replacement.is
		return sb.Files().As(as.is).Edit(ctx, args[0], []sandpit.Edit{edit})
	}))
	asFlag(cmd, &as)
	cmd.Flags().StringVar(&edit.Old, "old", "", "the `TEXT` to replace")
	cmd.Flags().Var(&replacement, "new", "the text that replaces it; '' deletes it")
	cmd.Flags().BoolVar(&edit.All, "all", false, "replace every occurrence")
	return cmd
}

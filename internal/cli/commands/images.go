package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

const imagesLong = `Images are root file systems. The image host, this machine's own toolchain, always
exists. Others are pulled from registries on first use, or with images pull, and stored
in the data directory, each layer once. images commit saves what a sandbox has changed as
saved:NAME. If a server is configured (SANDPIT_SERVER), ls, pull and rm work on its images. On this
machine, ls shows only the stored images; a server lists host, too.`

// imagesCommand is sandpit images.
func (a *tree) imagesCommand() *cobra.Command {
	cmd := a.group(&cobra.Command{Use: "images", Long: imagesLong})
	for _, made := range [...]*cobra.Command{
		a.imagesList(), a.imagesPull(), a.imagesCommit(), a.imagesTag(), a.imagesInspect(), a.imagesRemove(), a.imagesPrune(), a.imagesImport(), a.imagesExport(),
	} {
		cmd.AddCommand(made)
	}
	return cmd
}

// store opens the image store, as configured.
func (a *tree) store(o *cli.Options) (*image.Store, error) {
	if err := o.Configure(a.Config()); err != nil {
		return nil, err
	}
	home, err := o.DataDir()
	if err != nil {
		return nil, err
	}
	cli.OwnerUmask()
	return a.OpenImages(home), nil
}

// completeImages completes the names of images in the store.
func (a *tree) completeImages(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	o := cli.NewOptions(a.Lookup)
	if o.Configure(a.Config()) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if address, _ := o.Server(); address != "" {
		return a.completed(func(ctx context.Context, s *session, _ []string, prefix string) (names []string) {
			list, err := s.images(ctx)
			for _, i := range list {
				if err == nil && strings.HasPrefix(i.Reference, prefix) {
					names = append(names, i.Reference)
				}
			}
			return names
		})(cmd, args, prefix)
	}
	store, err := a.store(o)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return store.Names(prefix), cobra.ShellCompDirectiveNoFileComp
}

// arguments is for commands that take from least to most of them.
func arguments(least, limit int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if few := len(args) < least; few || limit >= 0 && len(args) > limit {
			wrong := "too many arguments"
			hint := "usage: " + strings.TrimSuffix(cmd.CommandPath(), cmd.Name()) + cmd.Use
			if few {
				wrong = "arguments are missing"
				if len(args) == 1 && strings.Contains(cmd.Use, " NAME PATH") {
					hint = cmp.Or(separately(args[0]), hint)
				}
			}
			return sandpit.WithHint(cli.Usagef("%s: %s", strings.TrimPrefix(cmd.CommandPath(), "sandpit "), wrong), hint)
		}
		return nil
	}
}

// imageNames is arguments for commands whose first one names an image, as may the
// others: a script's variable may be empty.
func imageNames(least, limit int) cobra.PositionalArgs {
	count := arguments(least, limit)
	return func(cmd *cobra.Command, args []string) error {
		if err := count(cmd, args); err != nil {
			return err
		}
		if slices.Contains(args, "") {
			return sandpit.WithHint(cli.Usagef("%s: an argument is empty", strings.TrimPrefix(cmd.CommandPath(), "sandpit ")), "run 'sandpit images ls' to list the stored images")
		}
		return nil
	}
}

func (a *tree) imagesList() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Aliases:           []string{"list"},
		Short:             "list the images in the store",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	var as format
	as.register(cmd, jsonImage{})
	quiet := cmd.Flags().BoolP("quiet", "q", false, "print only names, or the digests of images without one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o := cli.NewOptions(a.Lookup)
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		if address, _ := o.Server(); address != "" {
			return a.withServer(cmd.Context(), true, func(ctx context.Context, s *session) error { return a.serverImages(ctx, s, &as, *quiet) })
		}
		store, err := a.store(o)
		if err != nil {
			return err
		}
		list, err := store.List(cmd.Context())
		if err != nil {
			return err
		}
		objects := make([]jsonImage, len(list))
		for i, s := range list {
			objects[i] = jsonOfImage(s)
		}
		switch {
		case *quiet:
			return a.printImageNames(objects)
		case as.given():
			return printObjects(a, &as, objects)
		}
		table := a.table("NAME", "PLATFORM", "DIGEST", "CREATED", "SIZE", "USED")
		for _, s := range list {
			name, used := s.Name, ""
			if name == "" {
				name = "-"
			}
			if s.InUse {
				used = "now"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", cli.Harmless(name), cli.Harmless(s.Platform), shortDigest(s.Digest), date(s.Created), notation.FormatSize(s.Unpacked), used)
		}
		return table.Flush()
	}
	return at(cmd, placeServer)
}

// serverImages lists the images of the configured server.
func (a *tree) serverImages(ctx context.Context, s *session, as *format, quiet bool) error {
	list, err := s.images(ctx)
	if err != nil {
		return err
	}
	if quiet || as.template != nil {
		objects := make([]jsonImage, len(list))
		for i, m := range list {
			objects[i] = jsonImage{Name: m.Reference, FullName: m.Reference, Digest: m.Digest, Stored: m.CreatedAt, Unpacked: m.Size, InUse: m.InUse}
		}
		if quiet {
			return a.printImageNames(objects)
		}
		return printObjects(a, as, objects)
	}
	if as.json {
		if list == nil {
			list = []v1.Image{}
		}
		return a.PrintJSON(list)
	}
	table := a.table("NAME", "DIGEST", "ADDED", "SIZE", "USED")
	for _, i := range list {
		used := ""
		if i.InUse {
			used = "now"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", cli.Harmless(i.Reference), shortDigest(cli.Harmless(i.Digest)), date(i.CreatedAt), notation.FormatSize(i.Size), used)
	}
	return table.Flush()
}

// printImageNames prints a name for each image, or else its digest.
func (a *tree) printImageNames(images []jsonImage) error {
	var b strings.Builder
	for _, i := range images {
		b.WriteString(cli.Harmless(cmp.Or(i.Name, i.Digest)) + "\n")
	}
	_, err := a.Stdout.WriteString(b.String())
	return err
}

// images returns the images of the server.
func (s *session) images(ctx context.Context) (all []v1.Image, err error) {
	err = pages(ctx, s, "/v1/images", url.Values{}, func(page v1.ImageList) (string, error) {
		all = append(all, page.Images...)
		return page.Next, nil
	})
	return all, err
}

// shortDigest is enough of a digest to tell images apart, and to name one by.
func shortDigest(digest string) string {
	const hex = len("sha256:") + 12
	return digest[:min(len(digest), hex)]
}

func date(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateOnly)
}

func (a *tree) imagesPull() *cobra.Command {
	o := cli.NewOptions(a.Lookup)
	cmd := &cobra.Command{
		Use:   "pull [flags] IMAGE...",
		Short: "pull images from their registries",
		Long: `Pull images from their registries, including those that are already stored, and print
each with its digest. An interrupted pull continues where it stopped. Credentials are
those of docker login and podman login.`,
		Example:           "  sandpit images pull debian:13\n  sandpit images pull ghcr.io/org/app@sha256:…\n  sandpit images pull --platform linux/arm64 alpine",
		Args:              imageNames(1, -1),
		ValidArgsFunction: a.completeImages,
	}
	platform := platformFlag(cmd)
	addFlags(cmd.Flags(), o.Flag("mirror"), o.Flag("plain-http"))
	for _, name := range cli.UpstreamFlags() {
		addFlags(cmd.Flags(), o.Flag(name))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		if address, _ := o.Server(); address != "" {
			if *platform != "" {
				return sandpit.WithHint(cli.Usagef("--platform has no effect on the server %s, which pulls images for its own machine", address), "omit it")
			}
			if err := o.Elsewhere(false); err != nil {
				return err
			}
			return a.withServer(cmd.Context(), false, func(ctx context.Context, s *session) error { return a.serverPull(ctx, s, args) })
		}
		if _, err := o.Upstream(); err != nil {
			return err
		}
		store, err := a.store(o)
		if err != nil {
			return err
		}
		return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
			for _, ref := range args {
				shown := a.ShowProgress()
				opt := o.Acquire()
				opt.Pull, opt.Platform, opt.Progress = sandpit.PullAlways, *platform, shown.Update
				s, err := store.Pull(ctx, ref, opt)
				shown.End()
				if err != nil {
					return err
				}
				if err := a.printPulled(s); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return at(cmd, placeServer)
}

// serverPull has the configured server pull images.
func (a *tree) serverPull(ctx context.Context, s *session, refs []string) error {
	for _, ref := range refs {
		var pulled v1.Image
		if err := s.call(ctx, http.MethodPost, "/v1/images/pull", v1.ImagePull{Image: ref}, &pulled); err != nil {
			return err
		}
		if err := a.printPulled(image.Summary{FullName: pulled.Reference, Digest: pulled.Digest}); err != nil {
			return err
		}
	}
	return nil
}

func platformFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("platform", "", "`OS/ARCHITECTURE` to pull (default this machine's)")
}

// printPulled prints the name of an image with its digest, so that it can be
// pinned.
func (a *tree) printPulled(s image.Summary) error {
	name, _, _ := strings.Cut(s.FullName, "@")
	if s.Digest != "" {
		name += "@" + s.Digest
	}
	_, err := fmt.Fprintln(a.Stdout, cli.Harmless(name))
	return err
}

func (a *tree) imagesCommit() *cobra.Command {
	var c sandpit.Commit
	env := a.envFlag()
	labels := parsedList[[2]string]{parse: parseLabel, shown: "KEY=VALUE"}
	workdir, user := textFlag("DIRECTORY"), textFlag("USER")
	entrypoint := parsed[string]{parse: func(text string) (string, error) { return text, nil }, shown: "PROGRAM"}
	cmd := a.serverCommand(&cobra.Command{
		Use:   "commit [flags] SANDBOX NAME [-- COMMAND...]",
		Short: "save the changed files of a sandbox as an image",
		Long: `Save the files that a sandbox has changed as the image saved:NAME: the image of the
sandbox with one layer more. Only sandboxes of the same namespace can use it. An image
that has the name loses it. COMMAND replaces the command of the image.

A running sandbox is paused meanwhile. Not saved are what is mounted in it, such as
/dev/shm (and /tmp with --read-only or --write), files that Sandpit makes itself
(such as /etc/hosts), and the environment. Files that an image can't have,
such as sockets, are left out and listed.`,
		Example:           "  sandpit images commit work app\n  sandpit run --image saved:app -- make test\n  sandpit images commit --env A=1 --label team=a work app -- python3 main.py",
		Args:              arguments(2, -1),
		ValidArgsFunction: a.completeNames(1),
	}, func(ctx context.Context, s *session, args []string) error {
		c.Name, c.WorkDir, c.User = strings.TrimPrefix(args[1], sandpit.SavedImages), workdir.is, user.is
		c.Env = env.entries()
		if len(args) > 2 {
			c.Cmd = args[2:]
		}
		if entrypoint.set {
			c.Entrypoint = []string{}
			if entrypoint.is != "" {
				c.Entrypoint = append(c.Entrypoint, entrypoint.is)
			}
		}
		for _, l := range labels.are {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[l[0]] = l[1]
		}
		sb, err := s.find(ctx, args[0])
		if err != nil {
			return err
		}
		committer, ok := sb.(sandpit.Committer)
		if !ok {
			return fault.Errorf(sandpit.ErrUnsupported, "saving images: this client does not support it")
		}
		saved, err := committer.Commit(ctx, c)
		if err != nil {
			return err
		}
		for _, left := range saved.LeftOut {
			a.Note("left out: %s", cli.Harmless(left))
		}
		return a.printPulled(image.Summary{FullName: saved.Name, Digest: saved.Digest})
	})
	cmd.Flags().BoolVar(&c.NoPause, "no-pause", false, "let programs run on; files that they change may be saved half changed")
	cmd.Flags().VarP(env, "env", "e", "set a variable of the image; KEY alone takes its value from here")
	cmd.Flags().VarP(&labels, "label", "l", "add or replace a label of the image")
	cmd.Flags().VarP(&workdir, "workdir", "w", "working directory of the image")
	cmd.Flags().VarP(&user, "user", "u", "user of the image")
	cmd.Flags().Var(&entrypoint, "entrypoint", "replace the image's entrypoint and command; empty for none")
	return cmd
}

// shortSaved returns the name of an image as this user writes it: without their own namespace.
func shortSaved(name string) string {
	if own, ok := strings.CutPrefix(name, sandpit.SavedImages+image.LocalNamespace+"/"); ok {
		return sandpit.SavedImages + own
	}
	return name
}

func (a *tree) imagesTag() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tag IMAGE NAME",
		Short: "give a stored image another name",
		Long: `Give a stored image another name, which another image may lose. One that was saved from a
sandbox is saved:NAME or saved:NAME:TAG, and its new name is of that form, too. On a server only
these have names to give.`,
		Example:           "  sandpit images tag debian:13 base:1\n  sandpit images tag saved:app:2 saved:app:stable",
		Args:              imageNames(2, 2),
		ValidArgsFunction: a.completeImages,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o := cli.NewOptions(a.Lookup)
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		name, saved := strings.CutPrefix(args[1], sandpit.SavedImages)
		if strings.HasPrefix(args[0], sandpit.SavedImages) && !saved {
			return sandpit.WithHint(cli.Usagef("%s was saved from a sandbox, and its names begin with %s", args[0], sandpit.SavedImages), "write "+sandpit.SavedImages+args[1])
		}
		if address, _ := o.Server(); address != "" {
			return a.withServer(cmd.Context(), false, func(ctx context.Context, s *session) error { return a.serverTag(ctx, s, args[0], name) })
		}
		store, err := a.store(o)
		if err != nil {
			return err
		}
		if from, own := strings.CutPrefix(args[0], sandpit.SavedImages); own && saved {
			digest, err := store.TagSaved(cmd.Context(), "", from, []string{name})
			if err != nil {
				return err
			}
			return a.printPulled(image.Summary{FullName: args[1], Digest: digest})
		}
		tagged, err := store.Tag(cmd.Context(), args[0], args[1])
		if err != nil {
			return err
		}
		return a.printPulled(tagged)
	}
	return at(cmd, placeServer)
}

// serverTag has the configured server give a saved image a name.
func (a *tree) serverTag(ctx context.Context, s *session, ref, name string) error {
	var tagged v1.TaggedImage
	if err := s.call(ctx, http.MethodPost, "/v1/images/tag", v1.ImageTag{Image: ref, Names: []string{name}}, &tagged); err != nil {
		return err
	}
	for _, ref := range tagged.References {
		if err := a.printPulled(image.Summary{FullName: ref, Digest: tagged.Digest}); err != nil {
			return err
		}
	}
	return nil
}

func (a *tree) imagesInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "inspect IMAGE",
		Short:             "show the details of an image as JSON",
		Args:              imageNames(1, 1),
		ValidArgsFunction: a.completeImages,
	}
	return a.hereCommand(cmd, "images inspect", func(cmd *cobra.Command, o *cli.Options, args []string) error {
		store, err := a.store(o)
		if err != nil {
			return err
		}
		details, err := store.Inspect(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return a.PrintJSON(jsonOfDetails(details))
	})
}

func (a *tree) imagesRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "rm IMAGE...",
		Aliases:           []string{"remove"},
		Short:             "remove images by name or digest, unless they are in use",
		Args:              imageNames(1, -1),
		ValidArgsFunction: a.completeImages,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o := cli.NewOptions(a.Lookup)
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		if address, _ := o.Server(); address != "" {
			return a.withServer(cmd.Context(), false, func(ctx context.Context, s *session) error { return a.serverRemove(ctx, s, args) })
		}
		store, err := a.store(o)
		if err != nil {
			return err
		}
		return a.eachText(cmd.Context(), args, func(ref string) error {
			removed, err := store.Remove(cmd.Context(), ref)
			if errors.Is(err, sandpit.ErrState) {
				if s, cerr := a.connect(cmd.Context(), true); cerr == nil {
					defer s.Close()
					if used, ierr := store.Inspect(cmd.Context(), ref); ierr == nil {
						err = s.nameUsers(cmd.Context(), err, used.Digest)
					}
				}
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Stdout, "removed %s, freed %s\n", cli.Harmless(shortSaved(cmp.Or(removed.Name, removed.Image))), notation.FormatSize(removed.Bytes))
			return err
		})
	}
	return at(cmd, placeServer)
}

// serverRemove has the configured server remove images.
func (a *tree) serverRemove(ctx context.Context, s *session, refs []string) error {
	return a.eachText(ctx, refs, func(ref string) error {
		err := s.call(ctx, http.MethodDelete, "/v1/images?"+url.Values{"image": {ref}}.Encode(), nil, nil)
		if errors.Is(err, sandpit.ErrState) {
			list, _ := s.images(ctx)
			if i := slices.IndexFunc(list, func(i v1.Image) bool { return i.Reference == ref }); i >= 0 {
				err = s.nameUsers(ctx, err, list[i].Digest)
			}
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.Stdout, "removed %s\n", cli.Harmless(ref))
		return err
	})
}

// nameUsers returns an error that an image is in use, by its digest, with the first of the sandboxes of this caller that
// use it. Without one it returns err.
func (s *session) nameUsers(ctx context.Context, err error, digest string) error {
	const shown = 3
	all, lerr := s.list(ctx, sandpit.ListQuery{})
	var users []string
	for _, i := range all {
		if digest != "" && strings.HasSuffix(i.Image, "@"+digest) {
			users = append(users, cli.Harmless(cmp.Or(i.Name, i.ID)))
		}
	}
	if lerr != nil || len(users) == 0 {
		return err
	}
	hint := "remove the sandboxes that use it first: " + strings.Join(users[:min(shown, len(users))], ", ")
	if more := len(users) - shown; more > 0 {
		hint += fmt.Sprintf(" and %d more", more)
	}
	return sandpit.WithHint(err, hint)
}

func (a *tree) imagesPrune() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "prune [--all]",
		Short:             "remove unused images, layers and blobs",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	all := cmd.Flags().BoolP("all", "a", false, "also remove named images that no sandbox uses")
	return a.hereCommand(cmd, "images prune", func(cmd *cobra.Command, o *cli.Options, _ []string) error {
		store, err := a.store(o)
		if err != nil {
			return err
		}
		pruned, err := store.Prune(cmd.Context(), image.PruneOptions{All: *all})
		if err != nil {
			return err
		}
		var b strings.Builder
		for _, name := range pruned.Names {
			fmt.Fprintf(&b, "removed %s\n", cli.Harmless(name))
		}
		fmt.Fprintf(&b, "freed %s (images: %d, layers: %d, blobs: %d)\n", notation.FormatSize(pruned.Bytes), pruned.Images, pruned.Layers, pruned.Blobs)
		_, err = a.Stdout.WriteString(b.String())
		return err
	})
}

func (a *tree) imagesImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import [flags] SRC [NAME]",
		Short: "add an archive or directory to the store",
		Long: `Add an archive or directory to the store under a name. SRC is oci-archive:FILE,
docker-archive:FILE, oci:DIRECTORY, dir:DIRECTORY, or a path whose form is detected.`,
		Example: "  sandpit images import app.tar my/app:1\n  sandpit images import dir:rootfs my/root",
		Args:    arguments(1, 2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	platform := platformFlag(cmd)
	return a.hereCommand(cmd, "images import", func(cmd *cobra.Command, o *cli.Options, args []string) error {
		store, err := a.store(o)
		if err != nil {
			return err
		}
		name := ""
		if len(args) == 2 {
			name = args[1]
		}
		return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
			shown := a.ShowProgress()
			s, err := store.Import(ctx, args[0], name, image.ImportOptions{Platform: *platform, Progress: shown.Update})
			shown.End()
			if err != nil {
				return err
			}
			return a.printPulled(s)
		})
	})
}

func (a *tree) imagesExport() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "export IMAGE FILE",
		Short:   "write an image as an OCI archive; '-' is standard output",
		Example: "  sandpit images export my/app:1 app.tar\n  sandpit images export my/app:1 - | ssh host sandpit images import /dev/stdin my/app:1",
		Args:    imageNames(2, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return a.completeImages(cmd, args, prefix)
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	return a.hereCommand(cmd, "images export", func(cmd *cobra.Command, o *cli.Options, args []string) error {
		store, err := a.store(o)
		if err != nil {
			return err
		}
		return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
			if args[1] == "-" {
				if cli.IsTerminal(a.Stdout) {
					return sandpit.WithHint(cli.Usagef("an archive can't be written to a terminal"), "name a file, or redirect the output")
				}
				return store.Export(ctx, args[0], a.Stdout)
			}
			return writeLocal("writing the archive", args[1], 0o666, func(w io.Writer) error { return store.Export(ctx, args[0], w) })
		})
	})
}

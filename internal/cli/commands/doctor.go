package commands

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

const doctorLong = `Check what this machine can enforce for this user, what it can't, why, and how to fix it.
The exit code is 0 if sandboxes can be created, and 1 if not.`

// doctorCommand is sandpit doctor.
func (a *tree) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "doctor [--json]",
		Long:              doctorLong,
		Example:           "  sandpit doctor\n  sandpit doctor --json",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := a.diagnose(cmd.Context())
		if *asJSON {
			if err := a.PrintJSON(d); err != nil {
				return err
			}
		} else if _, err := a.Stdout.WriteString(d.text()); err != nil {
			return err
		}
		if !d.Available {
			return &cli.ExitError{Code: 1}
		}
		return nil
	}
	return at(cmd, placeHere)
}

// diagnosis is the result of doctor, and the object of doctor --json.
type diagnosis struct {
	Available bool            `json:"available"` // sandboxes can be made
	Drivers   []driverFinding `json:"drivers"`
	Home      homeFinding     `json:"home"`
	Config    []configFinding `json:"config"`
	Server    string          `json:"server,omitempty"`         // where other commands work, and who says so
	Proxy     string          `json:"upstream_proxy,omitempty"` // without its password
	CABundle  string          `json:"ca_bundle,omitempty"`
	Unknown   []string        `json:"unknown_variables"` // SANDPIT_* that nothing reads
	Problem   string          `json:"problem,omitempty"` // with the configuration
	Fix       string          `json:"fix,omitempty"`

	onlyRuns bool // without a data directory
}

type driverFinding struct {
	Name       string        `json:"name"`
	Available  bool          `json:"available"`
	Enforced   feature.Set   `json:"enforced"`
	Changeable feature.Set   `json:"changeable"` // limits, while a sandbox lives
	Gaps       []sandpit.Gap `json:"gaps"`
	Facts      []driver.Fact `json:"facts"`
}

type homeFinding struct {
	Path    string `json:"path"` // empty if unknown
	Exists  bool   `json:"exists"`
	Free    int64  `json:"free"`   // bytes that this user may still write there; -1 when not known
	Images  int    `json:"images"` // in the store, the host image included; 0 when not known
	Problem string `json:"problem,omitempty"`
	Fix     string `json:"fix,omitempty"`
}

type configFinding struct {
	File   string `json:"file"`
	Exists bool   `json:"exists"`
}

func (a *tree) diagnose(ctx context.Context) diagnosis {
	o := cli.NewOptions(a.Lookup)
	d := diagnosis{
		Drivers: []driverFinding{},
		Config:  []configFinding{},
		Unknown: config.UnknownVariables(a.Environ, cli.Keys(o.Settable())),
	}
	if d.Unknown == nil {
		d.Unknown = []string{}
	}
	if err := o.Configure(a.Config()); err != nil {
		d.Problem, d.Fix = err.Error(), sandpit.Hint(err)
	}
	if d.Problem == "" {
		way, err := wayOf(o)
		if err != nil {
			d.Problem, d.Fix = err.Error(), sandpit.Hint(err)
		} else if d.Proxy = way.Shown(); way.Roots() != nil {
			d.CABundle = o.Flag("ca-bundle").Value.String()
		}
	}
	if address, _ := o.Server(); address != "" {
		d.Server = o.ServerText()
	}
	system, user, _ := a.Config().Files()
	for _, file := range [...]string{user, system} {
		if file != "" {
			_, err := os.Stat(file)
			d.Config = append(d.Config, configFinding{File: file, Exists: err == nil})
		}
	}
	home, err := o.DataDir()
	if err == nil {
		d.Home = a.examineHome(home)
	} else { // nothing in it is read
		_, missing := os.Lstat(home)
		d.Home = homeFinding{Path: home, Exists: missing == nil, Free: -1, Problem: err.Error(), Fix: sandpit.Hint(err)}
	}
	for _, drv := range a.Drivers(home) {
		caps := probe(ctx, drv)
		d.Available = d.Available || caps.Available
		found := driverFinding{drv.Name(), caps.Available, caps.Features, caps.Changeable, caps.Gaps, caps.Facts}
		if found.Gaps == nil {
			found.Gaps = []sandpit.Gap{}
		}
		if found.Facts == nil {
			found.Facts = []driver.Fact{}
		}
		d.Drivers = append(d.Drivers, found)
	}
	d.onlyRuns = d.Home.Problem != "" && o.OnlyRuns()
	d.Available = d.Available && (d.Home.Problem == "" || d.onlyRuns) && d.Problem == ""
	return d
}

// wayOf returns how this program reaches the network.
func wayOf(o *cli.Options) (*upstream.Way, error) {
	u, err := o.Upstream()
	if err != nil {
		return nil, err
	}
	roots, err := upstream.ReadRoots(u.CABundle)
	if err != nil {
		return nil, err
	}
	return upstream.New(upstream.Settings{Proxy: u.Proxy, NoProxy: u.NoProxy, Roots: roots})
}

func probe(ctx context.Context, d driver.Driver) driver.Capabilities {
	if e, ok := d.(driver.Examiner); ok {
		return e.Examine(ctx)
	}
	return d.Probe(ctx)
}

// examineHome looks at the data directory, and makes none.
func (a *tree) examineHome(home string) homeFinding {
	found := homeFinding{Path: home, Free: -1, Images: len(a.OpenImages(home).Names(""))}
	existing := home
	for {
		info, err := os.Stat(existing)
		if err == nil {
			found.Exists = existing == home
			if !info.IsDir() {
				found.Problem, found.Fix = existing+" is not a directory", "set SANDPIT_HOME to a directory"
				return found
			}
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || existing == "/" {
			found.Problem, found.Fix = err.Error(), "set SANDPIT_HOME to a directory that you can write to"
			return found
		}
		existing = filepath.Dir(existing)
	}
	if err := syscall.Access(existing, 2 /* W_OK */); err != nil {
		found.Problem, found.Fix = existing+" can't be written: "+err.Error(), "allow writing to it, or set SANDPIT_HOME to a directory that you can write to"
	}
	var st syscall.Statfs_t
	if syscall.Statfs(existing, &st) != nil {
		return found
	}
	found.Free = int64(st.Bavail) * int64(st.Bsize) //nolint:unconvert // Bsize is not an int64 on every system
	if found.Problem != "" {
		return found
	}
	const noexec = 8 // ST_NOEXEC of statvfs(3): the guest's program is kept there, too
	switch {
	case mountFlags(st)&noexec != 0:
		found.Problem, found.Fix = "programs can't be executed in "+existing+": it is mounted noexec", "set SANDPIT_HOME to a directory that allows executing programs"
	case found.Free < leastFree:
		found.Problem = fmt.Sprintf("not enough space in %s: %s free, at least %s needed", existing, notation.FormatSize(found.Free), notation.FormatSize(leastFree))
		found.Fix = "free some space there, for example with 'sandpit images prune', or set SANDPIT_HOME to another directory"
	case st.Files > 0 && st.Ffree == 0:
		found.Problem = "no file can be created in " + existing + ": its file system has no inode left"
		found.Fix = "remove files there, or set SANDPIT_HOME to another directory"
	}
	return found
}

// leastFree is what a data directory needs, in bytes: the guest's program, and
// the files of the host image that are not the host's own.
const leastFree = 8 << 20

// text is the diagnosis for a person.
func (d diagnosis) text() string {
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "  %-18s %s\n", name, cli.Harmless(value)) }
	for _, drv := range d.Drivers {
		verdict := "can create sandboxes"
		if !drv.Available {
			verdict = "can't create sandboxes"
		}
		fmt.Fprintf(&b, "driver %s: %s\n", drv.Name, verdict)
		for _, fact := range drv.Facts {
			line(fact.Name, fact.Value)
		}
		if drv.Available {
			line("enforced", enforced(drv.Enforced, true))
		}
		if missing := enforced(drv.Enforced, false); missing != "" {
			line("not enforced", missing)
		}
		if changeable := enforced(drv.Changeable, true); changeable != "" {
			line("changeable", changeable)
		}
		for _, gap := range drv.Gaps {
			fmt.Fprintf(&b, "\n  %s: %s\n", cli.Harmless(gap.What), cli.Harmless(gap.Why))
			if gap.Fix != "" {
				fmt.Fprintf(&b, "  fix: %s\n", cli.Harmless(gap.Fix))
			}
		}
		b.WriteByte('\n')
	}
	b.WriteString("data\n")
	switch where := d.Home.Path; {
	case where == "":
		line("home", "unknown")
	case d.Home.Exists:
		line("home", where)
	default:
		line("home", where+" (created when needed)")
	}
	if d.Home.Free >= 0 {
		line("free", notation.FormatSize(d.Home.Free))
	}
	if d.Home.Images > 0 {
		line("images", fmt.Sprintf("%d (host included)", d.Home.Images))
	}
	for _, c := range d.Config {
		state := "not there"
		if c.Exists {
			state = "read"
		}
		line("configuration", c.File+" ("+state+")")
	}
	if d.Proxy != "" {
		line("upstream proxy", d.Proxy)
	}
	if d.CABundle != "" {
		line("CA bundle", d.CABundle)
	}
	if d.Server != "" {
		line("server", d.Server+": other commands work there, and this one is about this machine")
	}
	problem := func(why, fix string) {
		if why == "" {
			return
		}
		fmt.Fprintf(&b, "\n  problem: %s\n", cli.Harmless(why))
		if fix != "" {
			fmt.Fprintf(&b, "  fix: %s\n", cli.Harmless(fix))
		}
	}
	problem(d.Home.Problem, d.Home.Fix)
	problem(d.Problem, d.Fix)
	for _, name := range d.Unknown {
		problem(name+" is set, but unknown", "correct its name; see 'sandpit help config'")
	}
	switch {
	case d.Available && d.onlyRuns:
		b.WriteString("\nsandpit run works here; images and sandboxes that stay need SANDPIT_HOME\n")
	case d.Available:
		b.WriteString("\nsandboxes can be created here\n")
	default:
		b.WriteString("\nsandboxes can't be created here\n")
	}
	return b.String()
}

// enforced lists the features that are in the set, or those that are not.
func enforced(set feature.Set, in bool) string {
	var names []string
	for _, f := range feature.All() {
		if set[f] == in {
			names = append(names, string(f))
		}
	}
	return strings.Join(names, ", ")
}

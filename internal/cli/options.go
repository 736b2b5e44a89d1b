package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/datadir"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Options are the settings of a run, from flags, variables and files.
type Options struct {
	lookup notation.Lookup

	image, name, hostname, user, workdir, entrypoint scalar[string]
	pull                                             scalar[sandpit.PullPolicy]
	env                                              list[string] // "KEY=VALUE", or "" for a KEY that is not set here
	envFile                                          list[string]
	label                                            list[[2]string]

	timeout                            scalar[time.Duration]
	memory, disk, output               scalar[int64]
	pids, files, nofile                scalar[int64]
	cpus                               scalar[float64]
	ulimit                             list[sandpit.Rlimit]
	mount                              list[sandpit.Mount]
	tmpfs                              list[sandpit.Tmpfs]
	write                              list[string]
	readOnly, rootInside               flag
	egress                             scalar[sandpit.EgressPreset]
	closed                             bool // --network none
	allow, deny, resolve, dns          list[string]
	bounds                             []scalar[int64] // as in notation.TrafficBounds
	upstreamProxy, noProxy, caBundle   scalar[string]
	secret, secretEnv                  list[sandpit.Secret]
	secretFrom                         list[[2]string] // a name, and the source of the value
	interactive, tty, asJSON, initTime flag
	detach                             flag           // of exec
	detachOn                           scalar[string] // of exec: --detach-keys
	quiet                              flag

	plainHTTP flag
	mirror    list[[2]string] // a registry, and what to ask before it

	// Keys and variables, not flags.
	home   scalar[string] // the data directory
	server scalar[string] // the address of a server; empty: this user's own
	key    scalar[string] // for a server at an address

	namespace scalar[string] // of the sandboxes of servers, nested in the caller's; empty: none

	configured    bool
	misconfigured error
}

// NewOptions returns options without settings. lookup finds variables that a value names.
func NewOptions(lookup notation.Lookup) *Options {
	o := &Options{lookup: lookup}
	text := func(shown string) scalar[string] { return scalar[string]{parse: words, shown: shown} }
	size := func() scalar[int64] { return scalar[int64]{parse: notation.ParseSize, shown: "SIZE"} }
	count := func() scalar[int64] { return scalar[int64]{parse: notation.ParseCount, shown: "N"} }

	o.image, o.name, o.hostname = text("IMAGE"), text("NAME"), text("NAME")
	o.user, o.workdir = text("USER"), text("DIR")
	o.entrypoint = scalar[string]{parse: anyText, shown: "PROGRAM"}
	o.pull = scalar[sandpit.PullPolicy]{parse: notation.ParsePull, shown: "WHEN"}
	o.env = list[string]{parse: o.parseEnv, shown: "KEY[=VALUE]", adds: true}
	o.envFile = list[string]{parse: words, shown: "FILE", adds: true}
	o.label = list[[2]string]{parse: parseLabel, shown: "KEY=VALUE", adds: true}

	o.timeout = scalar[time.Duration]{parse: notation.ParseDuration, shown: "DURATION"}
	o.memory, o.disk, o.output = size(), size(), size()
	o.pids, o.files, o.nofile = count(), count(), count()
	o.ulimit = list[sandpit.Rlimit]{parse: notation.ParseRlimit, shown: "NAME=SOFT[:HARD]", adds: true}
	o.cpus = scalar[float64]{parse: notation.ParseCPUs, shown: "N"}
	o.mount = list[sandpit.Mount]{parse: notation.ParseMount, shown: "SRC:DST[:ro[,nosockets]]"}
	o.tmpfs = list[sandpit.Tmpfs]{parse: notation.ParseTmpfs, shown: "PATH[:SIZE]"}
	o.write = list[string]{parse: notation.ParsePath, shown: "PATH"}
	o.egress = scalar[sandpit.EgressPreset]{parse: notation.ParseEgress, shown: "PRESET"}
	o.allow = list[string]{parse: words, shown: "RULE", adds: true}
	o.deny = list[string]{parse: words, shown: "RULE", adds: true}
	o.resolve = list[string]{parse: words, shown: "HOST:ADDR", adds: true}
	o.dns = list[string]{parse: words, shown: "ADDR"}
	for _, b := range notation.TrafficBounds(new(sandpit.EgressBounds)) {
		o.bounds = append(o.bounds, scalar[int64]{parse: b.Parse, shown: b.Shown})
	}
	o.upstreamProxy, o.noProxy = text("URL"), text("HOSTS")
	o.caBundle = scalar[string]{parse: filepath.Abs, shown: "FILE"}
	o.secret = list[sandpit.Secret]{parse: notation.ParseSecret, shown: "NAME[=VAR][@HOST]", adds: true}
	o.secretEnv = list[sandpit.Secret]{parse: notation.ParseSecretEnv, shown: "NAME[=VAR]", adds: true}
	o.secretFrom = list[[2]string]{parse: parseSecretFrom, shown: "NAME=SOURCE", adds: true}
	o.rootInside = newFlag()
	o.readOnly, o.interactive, o.tty, o.asJSON, o.initTime = newFlag(), newFlag(), newFlag(), newFlag(), newFlag()
	o.detach, o.quiet = newFlag(), newFlag()
	o.detachOn = scalar[string]{parse: ParseDetachKeys, shown: "KEYS"}
	o.plainHTTP = newFlag()
	o.mirror = list[[2]string]{parse: parseMirror, shown: "REGISTRY=URL"}
	o.home = scalar[string]{parse: parseHome, shown: "DIR"}
	o.server, o.key, o.namespace = text("ADDRESS"), text("KEY"), text("NAME")
	return o
}

func (o *Options) parseEnv(text string) (string, error) {
	entry, _, err := notation.ParseEnv(text, o.lookup)
	return entry, err
}

func parseLabel(text string) ([2]string, error) {
	key, value, err := notation.ParseLabel(text)
	return [2]string{key, value}, err
}

func parseMirror(text string) ([2]string, error) {
	registry, base, err := notation.ParseMirror(text)
	return [2]string{registry, base}, err
}

// Acquire returns the options for fetching images.
func (o *Options) Acquire() image.AcquireOptions {
	opt := image.AcquireOptions{Pull: o.pull.is, PlainHTTP: o.plainHTTP.is, Proxy: o.upstreamProxy.is, NoProxy: o.noProxy.is, CABundle: o.caBundle.is}
	for _, m := range o.mirror.values() {
		if opt.Mirrors == nil {
			opt.Mirrors = map[string][]string{}
		}
		opt.Mirrors[m[0]] = append(opt.Mirrors[m[0]], m[1])
	}
	return opt
}

// Upstream returns how connections leave this machine. It refuses a password on the command line, which
// everybody on this machine can read.
func (o *Options) Upstream() (Upstream, error) {
	u := Upstream{Proxy: o.upstreamProxy.is, NoProxy: o.noProxy.is, CABundle: o.caBundle.is}
	if _, address, found := strings.Cut(u.Proxy, "://"); found && o.upstreamProxy.from.Level == config.Flag && strings.Contains(address, "@") {
		return u, sandpit.WithHint(Usagef("--upstream-proxy has a user and password, which everybody on this machine can read there"),
			"set SANDPIT_UPSTREAM_PROXY, or upstream-proxy in the configuration file")
	}
	return u, nil
}

// ServerEnviron returns the environment of a server that is started for this user: it reaches the network
// as this program does.
func (o *Options) ServerEnviron(environ []string) []string {
	environ = environ[:len(environ):len(environ)]
	for _, name := range UpstreamFlags() {
		if e := o.Flag(name); e.Value.String() != "" {
			environ = append(environ, config.Key{Name: name}.Variable()+"="+e.Value.String())
		}
	}
	return environ
}

// UpstreamFlags returns the names of the flags of Upstream.
func UpstreamFlags() []string { return []string{"upstream-proxy", "no-proxy", "ca-bundle"} }

func parseHome(text string) (string, error) {
	if !filepath.IsAbs(text) {
		return "", sandpit.WithHint(fmt.Errorf("%q is not an absolute path", text), "give a path that starts with /")
	}
	return filepath.Clean(text), nil
}

// Entry is a flag, a key of the configuration, or both.
type Entry struct {
	Name      string // without dashes
	Shorthand string // one letter, or none
	Value     Value
	Usage     string
	once      bool // only a flag: it makes no sense as a default of every run
}

// Switch reports whether the flag has no value.
func (e Entry) Switch() bool { return e.Value.Type() == "bool" }

// Section is a section of the flags in help.
type Section struct {
	Title   string
	Entries []Entry
}

// Sections returns the flags of sandpit run: the one table for all commands, variables and
// files.
func (o *Options) Sections() []Section {
	return []Section{
		{"Image and command", []Entry{
			{"image", "", &o.image, "root file system: host, an OCI reference, oci-archive:FILE, docker-archive:FILE or dir:DIRECTORY (default host)", false},
			{"pull", "", &o.pull, "when to pull the image: missing, always or never (default missing)", false},
			{"mirror", "", &o.mirror, "try this mirror before the registry: docker.io=https://mirror.example", false},
			{"plain-http", "", &o.plainHTTP, "allow plain HTTP to the image's registry", true},
			{"entrypoint", "", &o.entrypoint, "replace the image's entrypoint; empty for none", true},
			{"env", "e", &o.env, "set a variable; KEY alone passes on its value from here", false},
			{"env-file", "", &o.envFile, "set variables from a file of KEY=VALUE lines", false},
			{"workdir", "w", &o.workdir, "working directory of CMD (default the image's)", false},
			{"user", "u", &o.user, "name, uid, name:group or uid:gid (default the image's user, or else an unprivileged one)", false},
			{"root-inside", "", &o.rootInside, "have root and other users inside, beside --user, and sudo", false},
		}},
		{"Limits", []Entry{
			{"timeout", "", &o.timeout, "kill CMD and its descendants after this time: 30s, 5m, 1h30m", false},
			{"memory", "m", &o.memory, "memory, including swap, /tmp files and page cache: 512m, 1g (default 2g)", false},
			{"cpus", "", &o.cpus, "CPUs: 2, 0.5 (default 2)", false},
			{"pids", "", &o.pids, "processes and threads (default 1024)", false},
			{"disk", "", &o.disk, "bytes written to the sandbox's own files (default 1g, or most of the memory if that is less)", false},
			{"files", "", &o.files, "files and directories created in the sandbox (default 262144)", false},
			{"nofile", "", &o.nofile, "open files per process (default 4096)", false},
			{"ulimit", "", &o.ulimit, "a resource limit of CMD, as setrlimit(2) has it: cpu=60 (seconds), fsize=8m, nproc=10:20, stack=unlimited", false},
			{"output-limit", "", &o.output, "output of CMD; the rest is counted and dropped (default 1g; 16m with --json)", false},
		}},
		{"Files", []Entry{
			{"mount", "", &o.mount, "mount a host file or directory; a writable one contains no data directory and no other mount", false},
			{"volume", "v", volumes{&o.mount}, "the same; SRC starts with / or . as for docker", true},
			{"tmpfs", "", &o.tmpfs, "mount an empty directory in memory (default size 64m)", false},
			{"read-only", "", &o.readOnly, "make the root file system read-only", false},
			{"write", "", &o.write, "make only this path writable", false},
		}},
		{"Network", append([]Entry{
			{"egress", "", &o.egress, "what may be reached: none, registries, public, all or learn (default none)", false},
			{"allow", "", &o.allow, "allow HOST, HOST:PORT, *.HOST, CIDR or a set, after udp: or ping: if it is not TCP; or METHOD:https://HOST/PATH*", false},
			{"deny", "", &o.deny, "deny the same; wins over --allow and --egress", false},
			{"resolve", "", &o.resolve, "use this address for a host; allows nothing by itself", false},
			{"dns", "", &o.dns, "name server that Sandpit asks (default the machine's)", false},
			{"upstream-proxy", "", &o.upstreamProxy, "reach the network, and registries, through http://, https:// or socks5://HOST:PORT; a password belongs in a variable or file", false},
			{"no-proxy", "", &o.noProxy, "hosts that are reached without that proxy: names, addresses and CIDRs, separated by commas", false},
			{"ca-bundle", "", &o.caBundle, "certificates, in PEM, to trust beside the machine's: in registries, proxies and origins; also sandboxes with egress get them", false},
			{"secret", "", &o.secret, "use a secret: VAR has a placeholder, which its value replaces in requests to its hosts", false},
			{"secret-env", "", &o.secretEnv, "give the sandbox the value of a secret, which it can then read and send", false},
			{"secret-from", "", &o.secretFrom, "read the value of a secret on this machine, for this sandbox alone: SOURCE is env:VARIABLE, file:PATH or cmd:COMMAND; --secret NAME is implied", false},
		}, o.boundFlags()...)},
		{"The sandbox", []Entry{
			{"name", "", &o.name, "unique name of the sandbox", true},
			{"hostname", "", &o.hostname, "host name inside the sandbox (default its name)", false},
			{"label", "l", &o.label, "attach a label", false},
		}},
		{"Input and output", []Entry{
			{"interactive", "i", &o.interactive, "pass standard input to CMD (the default); --interactive=false gives it empty input", true},
			{"tty", "t", &o.tty, "give CMD a terminal of the same size as this one", true},
			{"json", "", &o.asJSON, "print one JSON object with the result and the output", true},
			{"quiet", "q", &o.quiet, "omit warnings, such as that of default limits that are not enforced", false},
			{"init-time", "", &o.initTime, "show on stderr how long each step took", true},
		}},
	}
}

// boundFlags returns the flags that bound the traffic.
func (o *Options) boundFlags() (flags []Entry) {
	for i, b := range notation.TrafficBounds(new(sandpit.EgressBounds)) {
		usual := "unlimited"
		if b.Default > 0 {
			usual = b.Format(b.Default)
		}
		flags = append(flags, Entry{b.Flag, "", &o.bounds[i], b.Usage + " (default " + usual + ")", false})
	}
	return flags
}

// ExecFlags returns the flags of sandpit exec: those of run that concern a command, and one
// of its own.
func (o *Options) ExecFlags() []Section {
	names := [...]string{"env", "env-file", "workdir", "user", "timeout", "output-limit", "nofile", "ulimit", "interactive", "tty", "json", "quiet"}
	flags := make([]Entry, 0, len(names)+1)
	for _, name := range names {
		e := o.Flag(name)
		switch name {
		case "workdir":
			e.Usage = "working directory of CMD (default the sandbox's)"
		case "user":
			e.Usage = "name, uid, name:group or uid:gid (default the sandbox's user)"
		case "quiet":
			e.Usage = "omit warnings"
		case "json":
			e.Usage += "; with -d one with the ID of the process"
		case "interactive":
			e.Usage = "pass standard input to CMD (the default without -d); with -d keep it open for sandpit attach"
		}
		flags = append(flags, e)
	}
	return []Section{{"", append(
		flags,
		Entry{"detach", "d", &o.detach, "run CMD in the background and print its ID", true},
		Entry{"detach-keys", "", &o.detachOn, DetachKeysUsage, true},
	)}}
}

// DetachKeysUsage describes the flag --detach-keys.
const DetachKeysUsage = "keys that detach from a terminal; empty for none (default ctrl-p,ctrl-q)"

// detachKeys returns the keys that detach from a command.
func (o *Options) detachKeys() string {
	if o.detachOn.set {
		return o.detachOn.is
	}
	return DefaultDetachKeys
}

// Flag returns the flag of a name, which must exist.
func (o *Options) Flag(name string) Entry {
	e, found := entryOf(o.Sections(), func(e Entry) bool { return e.Name == name })
	if !found {
		panic("unknown flag --" + name)
	}
	return e
}

// Settable returns the settings that variables and files may set.
func (o *Options) Settable() []Entry {
	settable := []Entry{
		{Name: "home", Value: &o.home, Usage: "where images and state are kept"},
		{Name: "server", Value: &o.server, Usage: "server on which all commands work: unix:///PATH, https://HOST:PORT, or local for this machine (the default)"},
		{Name: "key", Value: &o.key, Usage: "key for that server"},
		{Name: "namespace", Value: &o.namespace, Usage: "namespace of the sandboxes that outlive a command, inside the key's own; * lists those of all"},
	}
	for _, section := range o.Sections() {
		for _, e := range section.Entries {
			if !e.once {
				settable = append(settable, e)
			}
		}
	}
	return settable
}

// Keys returns the keys that files and variables may set.
func Keys(entries []Entry) []config.Key {
	keys := make([]config.Key, len(entries))
	for i, e := range entries {
		keys[i] = config.Key{Name: e.Name, Kind: e.Value.kind()}
	}
	return keys
}

// Configure reads variables and files, once: later calls return the same error.
func (o *Options) Configure(env config.Environ) error {
	if !o.configured {
		o.configured, o.misconfigured = true, o.configure(env)
	}
	return o.misconfigured
}

func (o *Options) configure(env config.Environ) error {
	entries := o.Settable()
	settings, err := env.Load(Keys(entries))
	if err != nil {
		return err
	}
	for _, s := range settings {
		for _, e := range entries {
			if e.Name != s.Key {
				continue
			}
			for _, text := range s.Values {
				if err := e.Value.add(text, s.Origin); err != nil {
					return WithHintOf(Usagef("%s: %v", s.Origin.Place(s.Key), err), err)
				}
			}
			break
		}
	}
	return o.close()
}

// CloseNetwork is --network none: nothing that opens the network counts, wherever it is set.
func (o *Options) CloseNetwork() { o.closed = true }

// close leaves out what would open the network in spite of CloseNetwork, or of a preset none that
// was set at a stronger level.
func (o *Options) close() error {
	least := config.Flag + 1
	switch {
	case o.closed:
		for _, name := range [...]string{"egress", "allow", "secret", "secret-from"} {
			if o.Flag(name).Value.Origin().Level == config.Flag {
				return sandpit.WithHint(Usagef("--network none and --%s can't be combined", name), "omit one of them")
			}
		}
		o.egress = scalar[sandpit.EgressPreset]{}
		o.resolve.items, o.dns.items = nil, nil
	case o.egress.set && o.egress.is == sandpit.EgressNone:
		least = o.egress.from.Level
	default:
		return nil
	}
	o.allow.keep(least)
	o.secret.keep(least)
	o.secretFrom.keep(least)
	return nil
}

// DataDir returns the configured data directory, or datadir.Default. It refuses one in which
// others may have put something, and returns its name with the error.
func (o *Options) DataDir() (string, error) {
	dir := o.home.is
	if !o.home.set {
		var err error
		if dir, err = datadir.Default(o.lookup); err != nil {
			return "", sandpit.WithHint(Usagef("%v", err), "set SANDPIT_HOME to a directory")
		}
	}
	return dir, datadir.CheckHome(dir)
}

// Spec returns the request for a sandbox.
func (o *Options) Spec() (sandpit.Spec, error) {
	spec := sandpit.Spec{
		Name:     o.name.is,
		Image:    o.image.is,
		Pull:     o.pull.is,
		Hostname: o.hostname.is,
		WorkDir:  o.workdir.is,
		User:     o.user.is, RootInside: o.rootInside.is,
		Limits: sandpit.Limits{
			Memory: o.memory.is,
			CPUs:   o.cpus.is,
			Pids:   o.pids.is,
			Disk:   o.disk.is,
			Files:  o.files.is,
			NoFile: o.nofile.is,
			Output: o.output.is,
		},
		Mounts:   o.mount.values(),
		Tmpfs:    o.tmpfs.values(),
		ReadOnly: o.readOnly.is,
		Write:    o.write.values(),
		Egress:   o.network(),
	}
	spec.Secrets = append(o.secret.values(), o.secretEnv.values()...)
	for _, from := range o.secretFrom.values() {
		if !slices.ContainsFunc(spec.Secrets, func(u sandpit.Secret) bool { return u.Name == from[0] }) {
			spec.Secrets = append(spec.Secrets, sandpit.Secret{Name: from[0]})
		}
	}
	// A command that may run for longer than sandboxes live by default needs
	// one that lives as long, with time to be made and cleaned up.
	if o.timeout.is > sandpit.DefaultLimits().Life {
		spec.Limits.Life = o.timeout.is + time.Minute
	}
	if spec.ReadOnly && len(spec.Write) > 0 {
		switch write := o.write.chosen()[0].from; {
		case o.readOnly.from.Level > write.Level:
			spec.Write = nil
		case o.readOnly.from.Level < write.Level:
			spec.ReadOnly = false
		default:
			return spec, sandpit.WithHint(Usagef("--read-only and --write can't be combined"),
				"omit --read-only: with --write everything else is read-only")
		}
	}
	if labels := o.label.values(); len(labels) > 0 {
		spec.Labels = make(map[string]string, len(labels))
		for _, label := range labels {
			spec.Labels[label[0]] = label[1]
		}
	}
	var err error
	if spec.Rlimits, err = o.rlimits(); err != nil {
		return spec, err
	}
	spec.Env, err = o.environment()
	return spec, err
}

// rlimits returns the resource limits of commands. One of a stronger level replaces those of the same resource.
func (o *Options) rlimits() (limits []sandpit.Rlimit, err error) {
	chosen := o.ulimit.chosen()
	for i, l := range chosen {
		replaces := func(later item[sandpit.Rlimit]) bool {
			return later.is.Resource == l.is.Resource && later.from.Level > l.from.Level
		}
		if !slices.ContainsFunc(chosen[i+1:], replaces) {
			limits = append(limits, l.is)
		}
	}
	if err := notation.CheckRlimits(limits); err != nil {
		return nil, WithHintOf(Usagef("--ulimit: %v", err), err)
	}
	return limits, nil
}

// network returns what the sandbox may reach.
func (o *Options) network() sandpit.Egress {
	if o.closed {
		return sandpit.Egress{}
	}
	e := sandpit.Egress{Preset: o.egress.is, Allow: o.allow.values(), Deny: o.deny.values(), Resolve: o.resolve.values(), DNS: o.dns.values()}
	for i, b := range notation.TrafficBounds(&e.Bounds) {
		*b.Value = o.bounds[i].is
	}
	return e
}

// environment returns the variables of all levels, the weakest first, and in
// each level those of files first: a later one of the same name wins.
func (o *Options) environment() ([]string, error) {
	vars, files := o.env.chosen(), o.envFile.chosen()
	if len(vars)+len(files) == 0 {
		return nil, nil
	}
	var env []string
	for level := config.System; level <= config.Flag; level++ {
		for _, file := range files {
			if file.from.Level != level {
				continue
			}
			entries, err := o.readEnvFile(file.is)
			if err != nil {
				return nil, err
			}
			env = append(env, entries...)
		}
		for _, v := range vars {
			if v.from.Level == level && v.is != "" {
				env = append(env, v.is)
			}
		}
	}
	return env, nil
}

func (o *Options) readEnvFile(name string) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, sandpit.WithHint(fmt.Errorf("reading the environment file: %w", err), "create it, or correct env-file")
	}
	defer f.Close()
	entries, err := notation.ReadEnvFile(f, o.lookup)
	if err != nil {
		return nil, WithHintOf(Usagef("reading the environment file %s: %v", name, err), err)
	}
	return entries, nil
}

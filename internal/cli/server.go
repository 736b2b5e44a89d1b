package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
)

// thisMachine is the address that stands for no server: this machine, with this user's own
// server where one is needed. With it a variable overrides a file.
const thisMachine = "local"

// Server returns the configured address and key of the server. The address is "" if none is
// configured: run and shell then work in this program, other commands use this user's own
// server.
func (o *Options) Server() (address, key string) {
	if o.server.is == thisMachine || o.server.is == "" { // which need no key
		return "", ""
	}
	return o.server.is, o.key.is
}

// Key returns the configured key, whether or not a server is configured.
func (o *Options) Key() string { return o.key.is }

// Namespace returns the nested namespace of sandboxes on a server, or "".
func (o *Options) Namespace() string { return o.namespace.is }

// ServerText names the configured server and where it is configured, for messages.
func (o *Options) ServerText() string {
	address, _ := o.Server()
	return address + " (" + o.server.from.Where + ")"
}

// OnlyHere refuses a command that works on this machine if another server is configured.
// Nil if none is.
func (o *Options) OnlyHere(command string) error {
	if address, _ := o.Server(); address == "" {
		return nil
	}
	return sandpit.WithHint(Usagef("%s works only on this machine, but the server %s is configured", command, o.ServerText()),
		"run 'SANDPIT_SERVER="+thisMachine+" sandpit "+command+"' for this machine")
}

// Elsewhere refuses settings that mean something of this machine if the configured server may
// be on another. A run refuses every mount and image of this machine. A sandbox that persists
// may have those that the server's policy allows, by their absolute paths on the server.
func (o *Options) Elsewhere(run bool) error {
	address, _ := o.Server()
	if address == "" {
		return nil
	}
	if o.plainHTTP.is {
		return sandpit.WithHint(Usagef("--plain-http has no effect on the server %s, which pulls its images itself", address), "omit it")
	}
	if from := o.mirror.Origin(); from.Level == config.Flag {
		return sandpit.WithHint(Usagef("--mirror has no effect on the server %s, which pulls its images itself", address), "omit it")
	}
	if err := o.ownWay("the server " + address); err != nil {
		return err
	}
	if isHere(address) {
		return nil
	}
	for _, m := range o.mount.chosen() {
		if run || !strings.HasPrefix(m.text, "/") {
			return o.notThere("mount", m.is.Source, m.from, "copy files with 'sandpit cp' into a sandbox of 'sandpit create'")
		}
	}
	kind, file, _ := strings.Cut(o.image.is, ":")
	if (kind == "dir" || strings.HasSuffix(kind, "-archive")) && (run || !strings.HasPrefix(file, "/")) {
		return o.notThere("image", o.image.is, o.image.from, "use an image of a registry")
	}
	return nil
}

// ownWay refuses flags of Upstream for a run on a server, which has its own settings.
func (o *Options) ownWay(server string) error {
	for _, name := range UpstreamFlags() {
		if e := o.Flag(name); e.Value.Origin().Level == config.Flag {
			return sandpit.WithHint(Usagef("--%s has no effect on %s, which reaches the network as its own settings say", name, server),
				"set "+name+" in server.yaml, and restart the server")
		}
	}
	return nil
}

// restart refuses flags of Upstream for a run on this user's server, which was running already.
func (o *Options) restart(home string) error {
	err := o.ownWay("this user's server, which is running")
	if err == nil {
		return nil
	}
	pid := fastrun.ServerPID(home)
	if pid == 0 {
		return err
	}
	return sandpit.WithHint(err, fmt.Sprintf("restart it with 'kill %d', and run this again, which starts a server with these settings; sandboxes and their programs go on meanwhile", pid))
}

// isHere reports whether a server is certainly on this machine.
func isHere(address string) bool { return address == "" || strings.HasPrefix(address, "unix:") }

// notThere returns the error of a setting with a path of this machine.
func (o *Options) notThere(name, path string, from config.Origin, instead string) error {
	where := "--" + name
	if from.Level != config.Flag {
		where = from.Place(name)
	}
	address, _ := o.Server()
	return sandpit.WithHint(Usagef("%s: %s is on this machine, but the sandbox would be on the server %s", where, path, address),
		instead+", or set SANDPIT_SERVER="+thisMachine+" to run on this machine")
}

// serverIdle is the idle time of a sandbox that run makes on a server. If this program is
// killed, the server ends the command at once, and removes the sandbox after this time.
const serverIdle = time.Minute

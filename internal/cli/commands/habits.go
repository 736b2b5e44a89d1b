package commands

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

// A habit is a flag that people type because they know it from docker, podman, bwrap, kubectl
// or E2B, or from another command of this program.
//
// If it means a flag of ours, it is accepted in its place. If its value asks for what a sandbox
// always has, it is accepted and changes nothing. Otherwise the hint says what to use instead.
type habit struct {
	commands string // with the flag, separated by spaces
	flags    string // without dashes, separated by spaces
	means    string // the name of the flag that it is accepted as
	always   string // the value that changes nothing; "true": the flag is a switch
	hint     string
}

const (
	anew    = "run shell create" // the commands that make a sandbox
	started = "run shell create exec"
)

// closed is what to use in place of flags about a network that sandboxes do not have.
const closed = "use --egress or --allow to say what the sandbox may reach, and 'sandpit forward NAME PORT' to reach a port of it"

// habits returns all habits.
func habits() []habit {
	const (
		powers  = "omit it: no program in a sandbox can have capabilities, devices or more rights than its user"
		own     = "omit it: a sandbox always has namespaces of its own"
		forward = "nothing reaches a sandbox from outside; use 'sandpit forward NAME PORT' with a sandbox of 'sandpit create'"
	)
	return []habit{
		// What is always so.
		{"run shell", "rm", "", "true", ""},
		{anew, "init no-healthcheck unshare-all unshare-user unshare-pid unshare-ipc unshare-uts unshare-cgroup die-with-parent new-session", "", "true", ""},
		{anew, "cap-drop", "", "all", powers},
		{anew, "security-opt", "", "no-new-privileges", "omit it: a sandbox always has a seccomp filter, and its programs get no new privileges"},
		{anew, "ipc pid uts userns cgroupns", "", "private", own},
		{"ps", "no-trunc", "", "true", ""},
		{"rm", "v volumes", "", "true", ""},
		{"prune", "f force", "", "true", ""},
		{"kill", "9", "", "true", ""},
		{"cp", "r R recursive", "", "true", ""},

		// Other names.
		{anew, "pids-limit", "pids", "", ""},
		{started, "chdir cwd", "workdir", "", ""},
		{started, "envs", "env", "", ""},
		{anew, "mem memory-limit", "memory", "", ""},
		{anew, "cpu", "cpus", "", ""},
		{anew, "template", "image", "", ""},
		{"stop", "time timeout", "grace", "", ""},
		{"kill stop", "s signal", "", "", "use 'sandpit signal -s SIGNAL NAME PROCESS' for a process"},

		// What is said in another way.
		{anew, "p publish P publish-all expose", "", "", forward},
		{"run shell", "d detach", "", "", "use 'sandpit create NAME' and then 'sandpit exec -d NAME -- CMD'"},
		{"create", "d detach i interactive it t tty", "", "", "omit it: 'sandpit create' starts no command; use 'sandpit exec' with it"},
		{"create", "rm", "", "", "use --life or --idle for how long it exists, or 'sandpit run', which removes its sandbox"},
		{"create", "name", "", "", "write the name as an argument: 'sandpit create NAME'"},
		{"create", "timeout", "", "", "use --life, or --timeout of 'sandpit exec'"},
		{"create", "entrypoint", "", "", "omit it: 'sandpit create' starts no command; use 'sandpit exec'"},
		{"run shell", "life", "", "", "use --timeout, or --life of 'sandpit create'"},
		{anew, "memory-swap memory-reservation", "", "", "use --memory, which includes swap"},
		{anew, "cpu-shares cpu-quota cpu-period cpuset-cpus c", "", "", "use --cpus"},
		{anew, "storage-opt", "", "", "use --disk"},
		{anew, "shm-size", "", "", "use --tmpfs /dev/shm:SIZE"},
		{anew, "bind bind-try", "", "", "use --mount SOURCE:TARGET"},
		{anew, "ro-bind ro-bind-try", "", "", "use --mount SOURCE:TARGET:ro"},
		{anew, "setenv", "", "", "use --env KEY=VALUE"},
		{anew, "unsetenv clearenv", "", "", "omit it: no variable is passed on but those of --env"},
		{anew, "dev proc", "", "", "omit it: a sandbox always has /dev and /proc"},
		{anew, "volumes-from volume-driver", "", "", "use --mount SOURCE:TARGET, for each mount"},
		{anew, "label-file", "", "", "use --label, or the key label of a file: see 'sandpit help config'"},
		{anew, "a attach sig-proxy", "", "", "omit it: 'sandpit run' passes on streams and signals; 'sandpit attach' attaches to a process"},
		{anew, "cidfile", "", "", "use the output of 'sandpit create', or of 'sandpit run --json'"},

		// What does not exist.
		{started, "privileged", "", "", powers},
		{anew, "cap-add device device-cgroup-rule group-add", "", "", powers},
		{anew, "gpus runtime", "", "", "omit it: sandboxes have no devices of this machine, also no GPU"},
		{anew, "add-host", "", "", "use --resolve HOST:ADDR, and --allow HOST to let the sandbox reach it"},
		{anew, "link ip mac-address network-alias", "", "", closed},
		{anew, "share-net", "", "", closed},
		{anew, "restart", "", "", "omit it: a sandbox has no command of its own to restart"},
		{anew, "platform", "", "", "omit it: programs run on this machine's own processor"},
		{anew, "log-driver log-opt", "", "", "omit it: output of 'sandpit exec' is in 'sandpit logs'"},
		{"logs", "details until", "", "", "use --since, --tail, --process or --json"},
		{"ps", "s size", "", "", "use 'sandpit stats', which shows the disk in use"},
		{"ps", "n last latest", "", "", "use --reverse, which lists the newest first, or --filter since=TIME"},
		{"start", "a attach i interactive", "", "", "use 'sandpit exec NAME -- CMD' or 'sandpit attach NAME PROCESS'"},
	}
}

// acceptHabits adds the flags of habits that are accepted to a command, hidden from help and
// completion.
func acceptHabits(cmd *cobra.Command) {
	flags := cmd.Flags()
	for _, h := range habits() {
		if !contains(h.commands, cmd.Name()) || h.means == "" && h.always == "" {
			continue
		}
		for name := range strings.FieldsSeq(h.flags) {
			var value pflag.Value = &alwaysValue{name, h.always, h.hint}
			if h.means != "" {
				value = flags.Lookup(h.means).Value
			}
			short := ""
			if len(name) == 1 {
				name, short = "habit-"+name, name
			}
			if flags.Lookup(name) != nil || short != "" && flags.ShorthandLookup(short) != nil {
				continue
			}
			f := flags.VarPF(value, name, short, "")
			f.Hidden = true
			if h.always == "true" {
				f.NoOptDefVal = "true"
			}
		}
	}
}

// closeFlags gives a command the flags of other programs that close the network, hidden like habits.
func closeFlags(cmd *cobra.Command, o *cli.Options) {
	for name, value := range map[string]string{"network": "none", "net": "none", "unshare-net": "true"} {
		f := cmd.Flags().VarPF(&closingValue{alwaysValue{name, value, closed}, o}, name, "", "close the network")
		f.Hidden = true
		if value == "true" {
			f.NoOptDefVal = value
		}
	}
}

// closingValue is the value of a flag that closes the network.
type closingValue struct {
	alwaysValue
	o *cli.Options
}

func (v *closingValue) Set(text string) error {
	if err := v.alwaysValue.Set(text); err != nil {
		return err
	}
	v.o.CloseNetwork()
	return nil
}

// alwaysValue is the value of a flag that asks for what a sandbox always has.
type alwaysValue struct{ name, value, hint string }

func (v *alwaysValue) String() string { return "" }

func (v *alwaysValue) Type() string {
	if v.value == "true" {
		return "bool"
	}
	return "VALUE"
}

func (v *alwaysValue) Set(text string) error {
	if strings.EqualFold(text, v.value) {
		return nil
	}
	err := fmt.Errorf("%q is not supported, only %s", text, v.value)
	if v.hint == "" {
		return sandpit.WithHint(err, "omit --"+v.name)
	}
	return sandpit.WithHint(err, v.hint)
}

// habitHint returns what to use instead of an unknown flag of a command, or "".
func habitHint(command, flag string) string {
	for _, h := range habits() {
		if h.hint != "" && contains(h.commands, command) && contains(h.flags, flag) {
			return h.hint
		}
	}
	return ""
}

// contains reports whether a word is among those of a list.
func contains(list, word string) bool {
	for w := range strings.FieldsSeq(list) {
		if w == word {
			return true
		}
	}
	return false
}

// commandHabit returns what to use instead of a command that other programs have, or "".
func commandHabit(name string) string {
	for _, h := range [...]struct{ words, hint string }{
		{"list get", "did you mean 'sandpit ps'?"},
		{"pull", "use 'sandpit images pull IMAGE'; 'sandpit run --image IMAGE' pulls it as well"},
		{"rmi", "use 'sandpit images rm IMAGE'"},
		{"tag", "use 'sandpit images tag IMAGE NAME'"},
		{"save", "use 'sandpit images commit SANDBOX NAME' for a sandbox, 'sandpit images export IMAGE FILE' for an image"},
		{"load import", "use 'sandpit images import FILE [NAME]'"},
		{"export download upload push", "use 'sandpit cp SRC DST' for files, 'sandpit images export' for images"},
		{"image", "did you mean 'sandpit images'?"},
		{"history search", "use 'sandpit images inspect IMAGE' for what is known of an image"},
		{"build", "build images with another program; 'sandpit images import FILE NAME' adds them"},
		{"commit checkpoint snapshot", "use 'sandpit images commit SANDBOX NAME'; 'sandpit run --image saved:NAME' uses the image"},
		{"login logout", "use 'docker login' or 'podman login': their credentials are used"},
		{"rename", "use 'sandpit update --name NEW NAME'"},
		{"restart", "use 'sandpit stop NAME' and then 'sandpit start NAME'"},
		{"unpause", "did you mean 'sandpit resume'?"},
		{"port port-forward publish", "use 'sandpit forward NAME PORT', or 'sandpit preview NAME PORT' for browsers"},
		{"previews expose share url", "use 'sandpit preview NAME PORT'"},
		{"describe", "did you mean 'sandpit inspect'?"},
		{"delete remove destroy", "did you mean 'sandpit rm'?"},
		{"up spawn new launch", "use 'sandpit create NAME', or 'sandpit run -- CMD' for one command"},
		{"connect enter ssh bash sh", "use 'sandpit exec -it NAME -- sh', or 'sandpit run -it -- sh' for a new sandbox"},
		{"info", "did you mean 'sandpit doctor'?"},
		{"system df", "use 'sandpit prune', 'sandpit images prune', 'sandpit stats' or 'sandpit doctor'"},
		{"container sandbox sbx", "omit it: 'sandpit ps', 'sandpit create' and others are about sandboxes"},
		{"volume volumes", "named volumes do not exist; use --mount SOURCE:TARGET"},
		{"net networks egress firewall", "use --egress or --allow of 'sandpit run' and 'sandpit create' to open the network, 'sandpit network' to change it, and 'sandpit forward NAME PORT' to reach a port"},
		{"diff changes", "changes of a sandbox are not listed; use 'sandpit images commit SANDBOX NAME' to save them, 'sandpit cp' to keep files"},
		{"server daemon", "did you mean 'sandpit serve'?"},
		{"processes", "use 'sandpit ps NAME'"},
	} {
		if contains(h.words, name) {
			return h.hint
		}
	}
	return ""
}

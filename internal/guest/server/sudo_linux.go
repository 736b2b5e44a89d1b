package server

import (
	"fmt"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// sudoName is the base name of argv[0] that makes the program ask the guest of its sandbox to
// start a command.
const sudoName = "sudo"

const sudoUsage = `usage: sudo [-EHknS] [-u USER] [VAR=VALUE ...] COMMAND [ARGUMENT ...]
       sudo [-EHknS] [-u USER] -i | -s [COMMAND]
COMMAND runs as root or USER of this sandbox, with no password, and ends with sudo. What it leaves
running ends with it.
`

// sudo is the program sudo of sandboxes with root inside. It has no rights of its own: the guest
// starts the command (process.Table.ServeSudo) with the standard streams of this program.
func sudo(args []string) int {
	fail := func(why string) int {
		fmt.Fprintln(os.Stderr, "sudo: "+why)
		return 1
	}
	m, shell, ok := parseSudo(args[1:], os.Environ())
	if !ok {
		os.Stderr.WriteString(sudoUsage)
		return 1
	}
	if shell != "" {
		command := m.Argv
		m.Argv = []string{"/bin/sh"}
		if shell == "-i" {
			m.Argv = append(m.Argv, "-l")
		}
		if len(command) > 0 {
			m.Argv = append(m.Argv, "-c", strings.Join(command, " "))
		}
	}
	var err error
	if m.Dir, err = os.Getwd(); err != nil {
		m.Dir = "/"
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: wire.SudoSocket})
	}
	if err != nil {
		return fail("this sandbox has no root inside: " + err.Error())
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	b := m.Append(nil)
	if len(b) > wire.MaxSudo {
		return fail("the command and its environment are too long")
	}
	if err := unix.Sendmsg(fd, b, unix.UnixRights(0, 1, 2), nil, unix.MSG_NOSIGNAL); err != nil && err != unix.EPIPE { // a refusal may have come already
		return fail("asking for the command: " + err.Error())
	}
	go func() {
		for s := range signals {
			_, _ = unix.Write(fd, []byte{byte(s.(syscall.Signal))})
		}
	}()
	answer := make([]byte, wire.MaxSmall)
	for {
		n, err := unix.Read(fd, answer)
		if err == unix.EINTR || err == unix.ECONNRESET { // the second comes once, before the answer of a guest that has not read the request
			continue
		}
		var e wire.Exit
		if err != nil || n == 0 || e.Decode(answer[:n]) != nil {
			return fail("the sandbox gave no answer")
		}
		if e.StartError != "" {
			fmt.Fprintln(os.Stderr, "sudo: "+e.StartError)
		}
		return int(e.Code)
	}
}

// parseSudo reads the arguments of sudo. shell is "-i" or "-s" if one is to be started.
func parseSudo(args, environ []string) (m wire.Start, shell string, ok bool) {
	keep := false
options:
	for len(args) > 0 {
		arg := args[0]
		switch {
		case arg == "--":
			args = args[1:]
			break options
		case arg == "--preserve-env" || arg == "--set-home" || arg == "--non-interactive" || arg == "--stdin":
			keep = keep || arg == "--preserve-env"
		case strings.HasPrefix(arg, "--user="):
			m.User = arg[len("--user="):]
		case len(arg) < 2 || arg[0] != '-':
			if name, _, isVar := strings.Cut(arg, "="); !isVar || name == "" || strings.Contains(name, "/") {
				break options
			}
			m.Env = append(m.Env, arg)
		default:
			for letters := arg[1:]; letters != ""; letters = letters[1:] {
				switch letters[0] {
				case 'E':
					keep = true
				case 'H', 'k', 'n', 'S':
				case 'i', 's':
					shell = "-" + letters[:1]
				case 'u':
					if m.User = letters[1:]; m.User == "" {
						if len(args) < 2 {
							return m, "", false
						}
						m.User, args = args[1], args[1:]
					}
					letters = letters[:1]
				default:
					return m, "", false
				}
			}
		}
		args = args[1:]
	}
	m.Argv = args
	var env []string
	for _, e := range environ {
		switch name, _, _ := strings.Cut(e, "="); name {
		case "":
		case "TERM", "LANG", "COLORTERM", "PIP_BREAK_SYSTEM_PACKAGES": // root's Python is that of the sandbox, too
			env = append(env, e)
		case "HOME", "USER", "LOGNAME", "PATH":
		default:
			if keep {
				env = append(env, e)
			}
		}
	}
	m.Env = append(append(env, fmt.Sprintf("SUDO_UID=%d", os.Getuid()), fmt.Sprintf("SUDO_GID=%d", os.Getgid())), m.Env...)
	return m, shell, len(m.Argv) > 0 || shell != ""
}

// isSudo reports whether the program was started as sudo.
func isSudo(args []string) bool { return len(args) > 0 && path.Base(args[0]) == sudoName }

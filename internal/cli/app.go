// Package cli is the command line. It turns commands into requests to a sandpit.Client, and results
// into output and an exit code.
//
// The rules of output:
//
//   - Stdout and stderr of `sandpit run` are those of CMD. Sandpit adds to
//     stderr only when it has something to say, and to stdout only what was
//     asked for by name.
//   - An error is one line, "sandpit: doing something: why", without a capital
//     or a full stop, and, when there is a way out, a second: "hint: do this".
//   - What comes from a sandbox, an image or a registry is made harmless before
//     it is shown on a terminal as part of a message.
//   - Progress is shown only when stderr is a terminal.
//
// Starting the program is part of every sandbox's start. So this package has only what run, shell,
// exec and version need, and App.Launch runs them without a framework. Package commands, on top of
// it, has all commands with help and completion.
package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// AuditEntry is an entry of an audit that is known from an earlier check, by its
// number and its hash in hexadecimal. The zero AuditEntry is none.
type AuditEntry struct {
	Seq  uint64
	Hash string
}

// App is the program, with everything that it gets from outside.
type App struct {
	// Stdin, Stdout and Stderr are files because they may be terminals.
	Stdin, Stdout, Stderr *os.File

	// Environ is the environment: "NAME=VALUE".
	Environ []string

	// SystemConfig is the configuration file of the machine; empty: none.
	SystemConfig string

	// Version is the release, empty for a build from a work tree.
	Version string

	// NewClient opens the engine.
	NewClient func(ClientOptions) (sandpit.Client, error)

	// Connect connects to a server. If it is this user's own and does not run, Connect
	// starts it and reports that in started.
	Connect func(context.Context, ConnectOptions) (client sandpit.Client, started bool, err error)

	// Serve runs a server until ctx ends.
	Serve func(context.Context, ServeOptions) error

	// Dialects are those of Serve.
	Dialects []Dialect

	// VerifyAudit checks the audit in a data directory, and describes the result in a
	// line. A known entry must be in it.
	VerifyAudit func(ctx context.Context, home string, known AuditEntry) (string, error)

	// Drivers returns the drivers of this program, the preferred one first.
	Drivers func(home string) []driver.Driver

	// FilesInMemory says that the preferred driver stores a sandbox's own files in memory.
	FilesInMemory bool

	// ReadSecret reads the value of a secret from a source, with an environment and stderr for
	// commands. Errors do not have the value. See secret.Read.
	ReadSecret func(ctx context.Context, source string, environ []string, stderr io.Writer) (string, error)

	// OpenImages opens the image store under home.
	OpenImages func(home string) *image.Store

	// PrintsKey says that the command prints the configured key, which is then of use without a server.
	PrintsKey bool

	warned bool // about variables
}

// ClientOptions configure a client.
type ClientOptions struct {
	// Home is the data directory.
	Home string

	// Trace, if set, receives the time of every step of creating a sandbox.
	Trace func(step string, took time.Duration)

	// Acquire has the settings for images, except Pull, which is in the Spec.
	Acquire image.AcquireOptions

	// Upstream says how sandboxes reach the network.
	Upstream Upstream
}

// Upstream is how connections leave this machine. See package upstream.
type Upstream struct {
	Proxy, NoProxy string
	CABundle       string // file
}

// ConnectOptions select a server.
type ConnectOptions struct {
	Home    string   // the data directory whose server it is, when Address is empty
	Address string   // unix:///PATH, https://HOST:PORT or http://HOST:PORT
	Key     string   // for a server at an Address
	Nested  string   // the nested namespace; empty: none
	Environ []string // of a server that is started
	Running bool     // none is started: the error matches ErrNoServer if none answers
}

// ErrNoServer says that no server of this user runs.
var ErrNoServer = errors.New("no server is running")

// ServeOptions are the flags of sandpit serve.
type ServeOptions struct {
	Home       string
	Settings   string          // file; empty: the machine's, if it is there
	Listen     []Listen        // addresses, beside those of the file
	Upstream   Upstream        // what is set takes precedence over the file
	Background bool            // started by a command that needed a server
	IdleExit   *time.Duration  // nil: as the settings say, or 5m in the background; 0: never
	Reload     <-chan struct{} // each is a demand to read the policies again
	Leave      <-chan struct{} // each is a demand to end if no requests are in progress

	// RemoveOrphans destroys sandboxes that the server's state has no record of, or that
	// nobody can reach.
	RemoveOrphans bool
}

// Listen is an address to listen on.
type Listen struct {
	Address string // HOST:PORT or unix:///PATH
	Service string // that is served there; empty: Sandpit's own API
}

// Dialect is a wire API of another project that sandpit serve can serve.
type Dialect struct{ Name, Title string } // "e2b", "E2B"

// Lookup finds a variable of the environment, like os.LookupEnv.
func (a *App) Lookup(name string) (string, bool) {
	// The last one wins, as in os/exec.
	for i := len(a.Environ) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(a.Environ[i], name); ok && strings.HasPrefix(value, "=") {
			return value[1:], true
		}
	}
	return "", false
}

// Config is the source of settings.
func (a *App) Config() config.Environ {
	return config.Environ{Lookup: a.Lookup, System: a.SystemConfig}
}

package commands

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/cli"
)

const serveLong = `Serve sandboxes to many callers, until SIGTERM or ^C: on a unix socket in the data
directory, which belongs to its user alone, and on the addresses that are asked for.

Nobody has to start a server: a command that needs one starts it for its user. This
is for a server of a machine or of a team: under systemd (deploy/systemd has the
units; socket activation and sd_notify are spoken) or in a container.

Over TCP every caller needs a key (sandpit key create); the first one is made, and
shown once, when a server listens on TCP and there is none. Without a certificate only
loopback is served, unless plain-http says that a proxy before the server has TLS.

SIGHUP reads the policies again, which is done anyway when their file changes. When the
server ends, its sandboxes go on, and the next one takes them over. A server refuses to
start while sandboxes run here that its state has no record of: the state was lost, or is
an older copy. Restore state/ in the data directory, or give --remove-orphans. That also
destroys sandboxes that no server can reach because the data directory was moved to
another disk while they ran.

The settings of a server are in /etc/sandpit/server.yaml, or the file of --config:

  listen: ["0.0.0.0:8443"]
  tls-cert: server.pem
  tls-key: server.key
  policy: policy.yaml          # default policy.yaml in the data directory
  domain: sandboxes.example    # ports of sandboxes: https://8080-ID.sandboxes.example
  memory: 64g                  # what all sandboxes together are promised
  kept-memory: 4g              # what requests may leave behind in the server itself
  cpus: 32
  sandboxes: 500
  connections: 8192            # at once; a quarter of them without a valid key
  connections-per-address: 500 # without a valid key
  hosts: [sandpit.example]     # names by which it may be called
  origins: []                  # web pages that may call it
  logs: 4g                     # what logs may take of the disk; logs-per-namespace: 1g
  sync-audit: false            # each entry of the audit on the disk before it goes on
  audit-size: 4g               # how much of it is kept; audit-time: 168h in which no key may fill it
  private-webhooks: false      # may events be sent to addresses that are not public`

// serveCommand is sandpit serve.
func (a *tree) serveCommand() *cobra.Command {
	opt := cli.ServeOptions{}
	idle := durationFlag()
	cmd := &cobra.Command{
		Use:               "serve [flags]",
		Long:              serveLong,
		Example:           "  sandpit serve\n  sandpit serve --listen 127.0.0.1:8080\n  sandpit serve --config /srv/sandpit/server.yaml",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringArrayVar(&opt.Listen, "listen", nil, "also listen on this `ADDRESS`: HOST:PORT or unix:///PATH")
	cmd.Flags().StringVar(&opt.Settings, "config", "", "`FILE` with the server's settings (default /etc/sandpit/server.yaml)")
	cmd.Flags().Var(&idle, "idle-exit", "leave after so long without a sandbox and a request (default never)")
	cmd.Flags().BoolVar(&opt.RemoveOrphans, "remove-orphans", false, "destroy sandboxes that run here and that the state has no record of, or that nobody can reach")
	cmd.Flags().BoolVar(&opt.Background, "background", false, "started by a command that needed a server")
	_ = cmd.Flags().MarkHidden("background")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		opt.IdleExit = idle.is
		if opt.Background {
			// Who has started it has read the configuration, and says what is of use.
			opt.Home, _ = a.Lookup("SANDPIT_HOME")
			if !idle.set {
				opt.IdleExit = backgroundIdle
			}
		} else {
			o := cli.NewOptions(a.Lookup)
			err := o.Configure(a.Config())
			if err == nil {
				opt.Home, err = o.DataDir()
			}
			if err != nil {
				return err
			}
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		opt.Reload = reloads(ctx)
		return a.Serve(ctx, opt)
	}
	return cmd
}

// backgroundIdle is when a server leaves that nobody has started by name.
const backgroundIdle = 5 * time.Minute

// reloads has a value for each SIGHUP, which does not end the program.
func reloads(ctx context.Context) <-chan struct{} {
	signals, demands := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
				select {
				case demands <- struct{}{}:
				default: // one is waiting already
				}
			}
		}
	}()
	return demands
}

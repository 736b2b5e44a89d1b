package commands

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

const serveLong = `Run a server for many users until SIGTERM or ^C. It listens on a unix socket in the data
directory, which only its own user may use, and on the addresses given with --listen.

You do not have to start a server for yourself: a command that needs one starts it. This
command is for a server of a machine or a team, under systemd (see deploy/systemd; socket
activation and sd_notify are supported) or in a container. It takes the place of a server
that a command started, and adopts its sandboxes. While that has requests in progress, such
as 'sandpit exec', this one waits for 5 seconds, and then refuses to start. It waits for a
server that is ending.

With --ensure it runs no server itself. It finds the one that is configured, or starts this
user's own in the background unless that runs, and prints where it is, for programs:
server, an address; credentials, which are "peer" (none are needed), "environment"
(SANDPIT_KEY) or "configuration"; and then the key.

Over TCP every caller needs a key (sandpit key create). If a server listens on TCP and has
no key, it creates the first one and shows it once. Without a certificate the server
listens only on the loopback, unless plain-http is set because a proxy provides TLS.

SIGHUP reloads the policies, which also happens when their file changes. When the server
ends, its sandboxes keep running, and the next server adopts them. A server refuses to
start if sandboxes run here that its state does not contain: the state was lost, or is
an old copy. Restore state/ in the data directory, or use --remove-orphans.
If the data directory is a copy, the sandboxes of the original are never destroyed. The
server names them, and their first process if the original is not in its old place.

The settings of a server are in /etc/sandpit/server.yaml, or the file given with --config:

  listen: ["0.0.0.0:8443"]     # or {address: ADDRESS, service: e2b}, for clients of E2B
  tls-cert: server.pem
  tls-key: server.key
  policy: policy.yaml          # default policy.yaml in the data directory
  domain: sandboxes.example    # ports of sandboxes: https://8080-ID.sandboxes.example
  memory: 64g                  # total memory of all sandboxes
  kept-memory: 4g              # memory of the server that requests may occupy
  cpus: 32
  sandboxes: 500
  connections: 8192            # at the same time; at most a quarter without a valid key
  connections-per-address: 500 # without a valid key
  hosts: [sandpit.example]     # host names that clients may use
  origins: []                  # origins of web pages that may use it
  logs: 4g                     # disk space for logs; logs-per-namespace: 1g
  sync-audit: false            # sync every audit entry to disk before the request proceeds
  audit-size: 4g               # size of the audit log; audit-time: 168h in which no key may fill it
  upstream-proxy: http://proxy.example:3128  # for sandboxes and images; or https://, socks5://
  no-proxy: .corp.example,10.0.0.0/8         # hosts that are reached without it
  ca-bundle: corp.pem          # certificates to trust, also in sandboxes with egress
  dns: [10.0.0.53]             # name servers for sandboxes that name none (default the machine's)
  private-webhooks: false      # allow webhooks to addresses that are not public
  services: [{name: own, hosts: [api.example.com], variables: [OWN_KEY]}]  # for secrets`

// serveCommand is sandpit serve.
func (a *tree) serveCommand() *cobra.Command {
	opt, config, ensure := cli.ServeOptions{}, textFlag("FILE"), false
	o := cli.NewOptions(a.Lookup)
	idle := parsed[time.Duration]{parse: notation.ParseDurationOrNever, shown: "DURATION"}
	cmd := &cobra.Command{
		Use:               "serve [flags]",
		Long:              serveLong,
		Example:           "  sandpit serve\n  sandpit serve --listen 127.0.0.1:8080\n  sandpit serve --config /srv/sandpit/server.yaml",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().Var(listenFlag{&opt.Listen, ""}, "listen", "also listen on this address: HOST:PORT or unix:///PATH")
	for _, d := range a.Dialects {
		cmd.Flags().Var(listenFlag{&opt.Listen, d.Name}, d.Name, "also serve clients of "+d.Title+" on this address")
	}
	cmd.Flags().Var(&config, "config", "file with the server's settings (default /etc/sandpit/server.yaml)")
	for _, name := range cli.UpstreamFlags() {
		addFlags(cmd.Flags(), o.Flag(name))
	}
	cmd.Flags().Var(&idle, "idle-exit", "exit after this time without sandboxes and requests (default never)")
	cmd.Flags().BoolVar(&opt.RemoveOrphans, "remove-orphans", false, "destroy sandboxes that run here without a record")
	cmd.Flags().BoolVar(&ensure, "ensure", false, "print where this user's server is, as JSON, and start it if needed")
	cmd.Flags().BoolVar(&opt.Background, "background", false, "started by a command that needed a server")
	_ = cmd.Flags().MarkHidden("background")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if ensure {
			if cmd.Flags().NFlag() > 1 {
				return cli.Usagef("--ensure starts a server with the settings of the configuration file, and can't be used with other flags")
			}
			return a.ensureServer(cmd.Context())
		}
		if idle.set {
			opt.IdleExit = &idle.is
		}
		opt.Settings = config.is
		if opt.Background {
			// The process that started it has read the configuration, and passes on what is needed.
			opt.Home, _ = a.Lookup("SANDPIT_HOME")
			opt.Upstream.Proxy, _ = a.Lookup("SANDPIT_UPSTREAM_PROXY")
			opt.Upstream.NoProxy, _ = a.Lookup("SANDPIT_NO_PROXY")
			opt.Upstream.CABundle, _ = a.Lookup("SANDPIT_CA_BUNDLE")
		} else {
			err := o.Configure(a.Config())
			if err == nil {
				opt.Home, err = o.DataDir()
			}
			if err == nil {
				opt.Upstream, err = o.Upstream()
			}
			if err != nil {
				return err
			}
			if address, _ := o.Server(); address != "" {
				a.Note("this server runs on this machine, and is not the configured one, %s", o.ServerText())
			}
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		opt.Reload = demands(ctx, syscall.SIGHUP)
		if opt.Background {
			opt.Leave = demands(ctx, syscall.SIGWINCH) // server.LeaveSignal
		}
		return a.Serve(ctx, opt)
	}
	return at(cmd, placeHere)
}

// The credentials of a server.
const (
	ofPeer          = "peer"          // the kernel says who asks
	ofEnvironment   = "environment"   // SANDPIT_KEY
	ofConfiguration = "configuration" // the configuration file
)

// ensured says where a server is.
type ensured struct {
	Server      string `json:"server"` // as in SANDPIT_SERVER
	Credentials string `json:"credentials"`
	Key         string `json:"key,omitempty"` // of the configuration file
	Namespace   string `json:"namespace,omitempty"`
}

// ensureServer prints where the server is that commands use, once it answers.
func (a *tree) ensureServer(ctx context.Context) error {
	return a.withServer(ctx, false, func(ctx context.Context, s *session) error {
		if _, err := s.List(ctx, sandpit.ListQuery{Limit: 1}); err != nil { // it is the right one, and the key is valid
			return err
		}
		o := cli.NewOptions(a.Lookup)
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		at := ensured{Credentials: ofPeer, Namespace: s.nested}
		var key string
		if at.Server, key = o.Server(); at.Server == "" {
			at.Server = "unix://" + filepath.Join(s.home, "server.sock")
		}
		if set, _ := a.Lookup("SANDPIT_KEY"); key != "" && key == set {
			at.Credentials = ofEnvironment
		} else if key != "" {
			at.Credentials, at.Key = ofConfiguration, key
		}
		return a.PrintJSON(at)
	})
}

// listenFlag adds addresses of a service to a list.
type listenFlag struct {
	all     *[]cli.Listen
	service string
}

// Set adds an address.
func (f listenFlag) Set(text string) error {
	*f.all = append(*f.all, cli.Listen{Address: text, Service: f.service})
	return nil
}

func (f listenFlag) String() string { return "" }

// Type is the name of the value in help.
func (f listenFlag) Type() string { return "ADDRESS" }

// demands has a value for each signal, which does not end the program.
func demands(ctx context.Context, sig os.Signal) <-chan struct{} {
	signals, demands := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(signals, sig)
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

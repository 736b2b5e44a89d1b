package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/mcp"
)

// mcpCommand is sandpit mcp.
func (a *tree) mcpCommand() *cobra.Command {
	opt := mcp.Options{Version: a.Version}
	cmd := at(&cobra.Command{
		Use: "mcp [flags]",
		Long: `Serve the Model Context Protocol (MCP) over standard input and output, for the agent that
starts this command. It gives the model tools that create, use and remove sandboxes: of
this user's server, which is started if need be, or of the one that is configured. A server
that listens on TCP serves the same tools over HTTP at /mcp, with its keys.

The model can use all sandboxes of the caller; SANDPIT_NAMESPACE=NAME restricts it to a
nested namespace. It can't mount files of this machine, name images in files, use secrets or
open the network to addresses. Sandboxes outlive the agent, until they expire.

Tools and their groups:
` + toolHelp(),
		Example: `  claude mcp add sandpit -- sandpit mcp
  sandpit mcp --read-only
  sandpit mcp --tools sandboxes,commands --image python:3.13`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, placeServer)
	cmd.Flags().StringSliceVar(&opt.Tools, "tools", nil, "`TOOLS` or groups of tools to offer, separated by commas (default all)")
	cmd.Flags().BoolVar(&opt.ReadOnly, "read-only", false, "offer only tools that change nothing")
	cmd.Flags().StringArrayVar(&opt.Images, "image", nil, "create sandboxes only from this `IMAGE`; may be repeated, and the first one is the default")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withServer(cmd.Context(), false, func(ctx context.Context, s *session) error {
			if _, err := s.List(ctx, sandpit.ListQuery{Limit: 1}); err != nil {
				return err // now, for people: later it would be an error of a tool
			}
			host := &mcpHost{tree: a, ctx: ctx}
			defer host.close()
			return mcp.ServeStdio(ctx, opt, host, a.Stdin, a.Stdout)
		})
	}
	return cmd
}

// toolHelp lists the tools by their groups.
func toolHelp() string {
	var b strings.Builder
	var rows [][2]string
	for _, g := range mcp.Groups() {
		rows = append(rows, [2]string{g.Name, strings.Join(g.Tools, ", ")})
	}
	writeRows(&b, rows, 0)
	return strings.TrimRight(b.String(), "\n")
}

// mcpHost is the caller's server, as mcp.Host. Its methods are safe for concurrent use.
type mcpHost struct {
	tree *tree
	ctx  context.Context // of the command

	mu       sync.Mutex // held while a server is found
	forwards map[string]*mcpForward
	wait     sync.WaitGroup
}

// mcpForward is a port of this machine that leads to one of a sandbox.
type mcpForward struct {
	session  *session
	listener net.Listener
}

// Open implements mcp.Host. A server of this user that has ended because it was idle is started again.
func (h *mcpHost) Open(ctx context.Context) (sandpit.Client, error) { return h.open(ctx) }

func (h *mcpHost) open(ctx context.Context) (*session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tree.connect(ctx, false)
}

// Policy implements mcp.Host.
func (h *mcpHost) Policy(ctx context.Context) (json.RawMessage, error) {
	s, err := h.open(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var p v1.NamedPolicy
	if err := s.call(ctx, http.MethodGet, "/v1/policy", nil, &p); err != nil {
		return nil, fmt.Errorf("getting the policy: %w", err)
	}
	return json.Marshal(p)
}

// maxForwards bounds the ports that a model may forward.
const maxForwards = 32

// Forward implements mcp.Host. It forwards a free port of this machine.
func (h *mcpHost) Forward(ctx context.Context, sb sandpit.Sandbox, port uint16) (address, note string, err error) {
	note = "It is reachable from this machine alone, and until this MCP server ends or the sandbox is removed."
	to := fmt.Sprintf("%s:%d", sb.ID(), port)
	s, err := h.open(ctx)
	if err != nil {
		return "", "", err
	}
	defer func() {
		if s != nil {
			s.Close()
		}
	}()
	sb, err = s.Get(ctx, sb.ID())
	if err != nil {
		return "", "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.forwards[to]; f != nil {
		return f.listener.Addr().String(), note, nil
	}
	if len(h.forwards) >= maxForwards {
		return "", "", fault.Errorf(sandpit.ErrQuota, "forwarding port %d: %d ports are forwarded already", port, len(h.forwards))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", fmt.Errorf("forwarding port %d: %w", port, err)
	}
	if h.forwards == nil {
		h.forwards = map[string]*mcpForward{}
	}
	h.forwards[to] = &mcpForward{s, l}
	kept := s
	s = nil
	h.wait.Go(func() {
		ctx, cancel := context.WithCancel(h.ctx)
		defer cancel()
		h.wait.Go(func() {
			_ = kept.outlast(ctx, sb) // whatever the reason, the port is of no more use
			l.Close()
		})
		err := h.tree.forward(ctx, l, sb, port)
		cancel()
		if err != nil && !errors.Is(err, net.ErrClosed) && h.ctx.Err() == nil {
			h.tree.Note("%v", err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.forwards, to)
		l.Close()
		kept.Close()
	})
	return l.Addr().String(), note, nil
}

// close ends all forwards.
func (h *mcpHost) close() {
	h.mu.Lock()
	for _, f := range h.forwards {
		f.listener.Close()
	}
	h.mu.Unlock()
	h.wait.Wait()
}

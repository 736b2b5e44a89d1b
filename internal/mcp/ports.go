package mcp

import (
	"context"

	"github.com/google/jsonschema-go/jsonschema"
)

type portIn struct {
	Sandbox string `json:"sandbox" jsonschema:"name or ID of the sandbox"`
	Port    int    `json:"port" jsonschema:"TCP port on which a program in the sandbox listens"`
}

func (r *registry) addPorts() {
	add(r, tool{
		name: "forward_port", group: groupPorts, title: "Forward a port", idempotent: true, openWorld: true,
		text: "Make a TCP port of a sandbox, such as that of a web server in it, reachable for the user. Returns the address or URL to give to the user. The program must listen on localhost or all addresses. Start it with start_process first.",
		tune: func(s *jsonschema.Schema) { between(s, "port", 1, 1<<16-1) },
	}, forward)
}

// forward carries out forward_port.
func forward(ctx context.Context, c *call, in portIn) (*answer, error) {
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	address, note, err := c.host.Forward(ctx, sb, uint16(in.Port))
	if err != nil {
		return nil, err
	}
	return say("port %d of sandbox %q is reachable at %s\n%s", in.Port, sb.Name(), address, note), nil
}

package api

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/portproxy"
)

func portRoutes() []Route {
	const tag = "Sandboxes"
	return []Route{
		{Method: http.MethodGet, Path: oneSandbox + "/ports", ID: "listPorts", Tag: tag, Summary: "List the TCP ports on which programs in a sandbox listen", Query: pageParams(), Status: http.StatusOK, Out: v1.PortList{}, handle: listOf(listPorts, portPosition, func(part []sandpit.Port, next string) v1.PortList { return v1.PortList{Ports: part, Next: next} })},
		{
			Method: http.MethodGet, Path: oneSandbox + "/ports/{port}/tcp", ID: "connectPort", Ticket: true, Tag: tag, Summary: "Connect to a TCP port of a sandbox",
			Text:   "With Upgrade: tcp the connection carries the raw bytes of the TCP connection, and each direction can be closed separately. A WebSocket (subprotocol " + v1.Subprotocol + ") carries them in binary messages; an empty one ends a direction. When both have ended, the server closes the socket with 1000.",
			Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, handle: connectPort,
		},
	}
}

func listPorts(c *call) ([]sandpit.Port, error) {
	n, err := c.sandbox()
	if err != nil {
		return nil, err
	}
	return n.Ports(c.Ctx)
}

func portPosition(p sandpit.Port) string { return fmt.Sprintf("%05d %s", p.Port, p.Address) }

// connectPort makes the connection one to a port of the sandbox.
func connectPort(c *call) error {
	port, err := portproxy.ParsePort(c.R.PathValue("port"))
	if err != nil {
		return err
	}
	kind := strings.ToLower(c.R.Header.Get("Upgrade"))
	if c.R.ProtoMajor != 1 || kind != "tcp" && kind != "websocket" {
		c.W.Header().Set("Upgrade", "tcp, websocket")
		c.W.Header().Set("Connection", "Upgrade")
		return &gate.Refusal{Code: errcode.UpgradeRequired, Message: "this path needs a protocol upgrade", Hint: "send the headers Connection: Upgrade and Upgrade: tcp over HTTP/1.1, or connect with a WebSocket client"}
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	n, err := c.sandbox()
	if err != nil {
		return err
	}
	inside, err := n.Dial(c.Ctx, port)
	if err != nil {
		return err
	}
	defer inside.Close()
	if kind == "websocket" {
		s, err := stream.Accept(c.Call)
		if err != nil {
			return err
		}
		defer s.Close()
		s.Tunnel(inside)
		return nil
	}
	return stream.Tunnel(c.Call, inside)
}

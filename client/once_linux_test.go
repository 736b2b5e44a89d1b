package client_test

import (
	"bufio"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A connection that ends instead of the response makes the client send the request again, and
// the server carries it out once.
func TestStartedOnce(t *testing.T) {
	s := serve(t)
	path := filepath.Join(s.home, "lossy")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var lost atomic.Bool
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go loseOne(s, conn, &lost)
		}
	}()
	c, err := client.New(client.Options{Address: "unix://" + path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sb, err := c.Create(t.Context(), sandpit.Spec{})
	testkit.Made(t, err)
	p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true})
	if err != nil || !lost.Load() {
		t.Fatalf("%v; a response was lost: %t", err, lost.Load())
	}
	all, err := sb.Processes(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != p.ID() {
		t.Errorf("%+v, %v; want only %s", all, err, p.ID())
	}
}

// loseOne passes requests on to the server, but closes the connection instead of the first response
// to the start of a process.
func loseOne(s *served, conn net.Conn, lost *atomic.Bool) {
	defer conn.Close()
	to, err := net.Dial("unix", server.SocketIn(s.home).Host)
	if err != nil {
		return
	}
	defer to.Close()
	in, out := bufio.NewReader(conn), bufio.NewReader(to)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if err := req.Write(to); err != nil {
			return
		}
		resp, err := http.ReadResponse(out, req)
		if err != nil {
			return
		}
		if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/processes") && lost.CompareAndSwap(false, true) {
			resp.Body.Close()
			return
		}
		err = resp.Write(conn)
		resp.Body.Close()
		if err != nil {
			return
		}
	}
}

package api_test

import (
	"net"
	"strings"
	"testing"
)

// That a client leaves, in whatever it does, is no failure of the server: its log
// has no error. Over TCP the connection is reset.
func TestLeavingIsNoFailure(t *testing.T) {
	s := serve(t, nil)
	sb, p := s.talking("")
	for name, c := range kinds(sb, p) {
		for _, network := range []string{"unix", "tcp"} {
			t.Run(name+"/"+network, func(t *testing.T) {
				before := s.ended(c.operation)
				conn := s.begin(sb, network, adminKey, c)
				if tcp, ok := conn.(*net.TCPConn); ok {
					_ = tcp.SetLinger(0)
				}
				_ = conn.Close()
				eventually(t, "it has ended", func() bool { return s.ended(c.operation) > before })
			})
		}
	}
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
			t.Error(line)
		}
	}
}

package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// supervisor is the service manager that started this program, reached through
// sd_notify(3). The zero supervisor is none.
type supervisor struct {
	socket string        // address of a datagram socket; "@" stands for an abstract one
	beat   time.Duration // how often it wants to hear that all is well; 0: never
}

// newSupervisor reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
func newSupervisor(lookup func(string) (string, bool)) supervisor {
	var s supervisor
	s.socket, _ = lookup("NOTIFY_SOCKET")
	if !strings.HasPrefix(s.socket, "/") && !strings.HasPrefix(s.socket, "@") {
		return supervisor{}
	}
	if pid, ok := lookup("WATCHDOG_PID"); ok && pid != strconv.Itoa(os.Getpid()) {
		return s
	}
	text, _ := lookup("WATCHDOG_USEC")
	if usec, err := strconv.ParseInt(text, 10, 64); err == nil && usec > 0 {
		s.beat = time.Duration(usec) * time.Microsecond / 2 // half, as sd_watchdog_enabled(3) advises
	}
	return s
}

// tell sends a state: "READY=1", "STOPPING=1", "STATUS=…".
func (s supervisor) tell(state string) error {
	if s.socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notifying the service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notifying the service manager: %w", err)
	}
	return nil
}

// watchdog reports liveness until ctx ends.
func (s supervisor) watchdog(ctx context.Context) {
	if s.beat == 0 {
		return
	}
	tick := time.NewTicker(s.beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = s.tell("WATCHDOG=1") // a missed one is what the service manager watches for
		}
	}
}

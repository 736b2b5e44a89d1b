package client

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// broken is a connection that can't be read.
type broken struct{ net.Conn }

func (broken) Read([]byte) (int, error)    { panic("on purpose") }
func (broken) Write(b []byte) (int, error) { return len(b), nil }
func (broken) Close() error                { return nil }

// A panic while something is read from a guest ends the connection, and not the program.
func TestReaderPanics(t *testing.T) {
	_, err := New(t.Context(), broken{}, Options{})
	var hidden interface{ Detail() string }
	if !errors.Is(err, sandpit.ErrProtocol) || !errors.As(err, &hidden) || !strings.Contains(hidden.Detail(), "on purpose\n") {
		t.Errorf("got %v", err)
	}
}

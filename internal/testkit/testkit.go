// Package testkit has helpers for tests. Tests run beside others on a busy machine: waits may take
// long, and resources must not be shared.
package testkit

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Patience bounds every wait of a test. Nothing should take long: it ends waits that would
// otherwise hang.
const Patience = 3 * time.Minute

// Until waits until a condition holds. If it does not, the test fails with a description of
// what it waited for, and with the result of saying, which may be nil.
func Until(t testing.TB, what string, is func() bool, saying ...func() string) {
	t.Helper()
	for end := time.Now().Add(Patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().Before(end) {
			continue
		}
		text := ""
		for _, say := range saying {
			text += "\n" + say()
		}
		t.Fatalf("waited in vain until %s%s", what, text)
	}
}

// Address returns a loopback HOST:PORT without a listener, which no other program takes
// before the test does, or between two servers of the test.
func Address(t testing.TB) string {
	t.Helper()
	host := net.IPv4(127, 0, 0, 1)
	if runtime.GOOS == "linux" {
		// All of 127/8 is this machine's. Elsewhere in it than at its first
		// address there are no ports of connections that somebody else makes.
		var b [3]byte
		_, _ = rand.Read(b[:]) // never fails
		host = net.IPv4(127, 1+b[0]%250, b[1], 1+b[2]%250)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(host.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Leaks waits until no goroutines are left except the caller's and those that the options
// name, and reports those that do not end. A closed connection takes a while to end its
// goroutines.
func Leaks(options ...goleak.Option) error {
	var err error
	for end := time.Now().Add(Patience / 3); time.Now().Before(end); {
		if err = goleak.Find(options...); err == nil {
			return nil
		}
	}
	return err
}

// Main runs the tests of a package, then reports goroutines that they have left behind. It
// returns the exit code of the program.
func Main(m *testing.M) int {
	code := m.Run()
	if code != 0 {
		return code
	}
	if err := Leaks(); err != nil {
		fmt.Fprintf(os.Stderr, "goroutines are left behind: %v\n", err)
		return 1
	}
	return 0
}

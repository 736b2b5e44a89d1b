// Package testkit is for tests. They run beside others, on a machine that is busy: what
// they wait for may take long, and what they use must be theirs alone.
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

// Patience is how long anything may take that a test waits for. Nothing is
// expected to take long: it bounds what would otherwise hang.
const Patience = 3 * time.Minute

// Until waits until something that must come to be is so. When it does not come
// to be, the test fails with what was waited for, and with what saying returns,
// which may be nil.
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

// Address returns a HOST:PORT of loopback at which nobody listens, and which no
// other program takes before the test does, or between two servers of the test.
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

// Leaks waits until no goroutine is left but the caller's and those that the
// options name, and says which are when they do not end. A connection that has
// been closed takes a while to end its goroutines.
func Leaks(options ...goleak.Option) error {
	var err error
	for end := time.Now().Add(Patience / 3); time.Now().Before(end); {
		if err = goleak.Find(options...); err == nil {
			return nil
		}
	}
	return err
}

// Main runs the tests of a package, and then looks for goroutines that they have
// left behind. It returns the exit code of the program.
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

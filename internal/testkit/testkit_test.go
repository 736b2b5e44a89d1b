package testkit_test

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// What Address returns can be listened at, again and again.
func TestAddress(t *testing.T) {
	address := testkit.Address(t)
	if conn, err := net.DialTimeout("tcp", address, testkit.Patience); err == nil {
		conn.Close()
		t.Errorf("somebody listens at %s", address)
	}
	for range 2 {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.DialTimeout("tcp", address, testkit.Patience)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		l.Close()
	}
	if other := testkit.Address(t); other == address {
		t.Errorf("%s was returned twice", address)
	}
}

// A goroutine that ends is waited for, and one that does not would be told.
func TestLeaks(t *testing.T) {
	ended := make(chan struct{})
	go func() {
		<-ended
		time.Sleep(time.Second) // longer than goleak waits by itself
	}()
	time.AfterFunc(100*time.Millisecond, func() { close(ended) })
	if err := testkit.Leaks(); err != nil {
		t.Errorf("what ends is told: %v", err)
	}
}

func TestUntil(t *testing.T) {
	n := 0
	testkit.Until(t, "it is so the third time", func() bool { n++; return n == 3 }, func() string { return strings.Repeat("?", n) })
	if n != 3 {
		t.Errorf("it was looked at %d times", n)
	}
}

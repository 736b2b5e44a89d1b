package fetch

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// names is a resolver whose name server knows some names and fails for others.
func names(known map[string]string, broken string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			for {
				var size [2]byte // as over TCP (RFC 1035, 4.2.2)
				if _, err := io.ReadFull(far, size[:]); err != nil {
					return
				}
				q := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(far, q); err != nil {
					return
				}
				a := answer(q, known, broken)
				if _, err := far.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
					return
				}
			}
		}()
		return near, nil
	}}
}

// answer answers a question of DNS (RFC 1035, 4.1).
func answer(q []byte, known map[string]string, broken string) []byte {
	var labels []string
	at := 12
	for q[at] != 0 {
		labels = append(labels, string(q[at+1:at+1+int(q[at])]))
		at += 1 + int(q[at])
	}
	end, kind, name := at+5, binary.BigEndian.Uint16(q[at+1:]), strings.Join(labels, ".")
	a := append([]byte(nil), q[:end]...)
	copy(a[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}) // an answer, to one question
	ip, ok := known[name]
	switch {
	case name == broken:
		a[3] |= 2 // SERVFAIL
	case !ok:
		a[3] |= 3 // NXDOMAIN
	case kind == 1:
		a[7] = 1
		a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
		a = append(a, netip.MustParseAddr(ip).AsSlice()...)
	}
	return a
}

// Whoever may name any registry learns nothing of this network: a name that it has
// and one that it has not are one to him, and no error tells an address.
func TestErrorsTellNothingOfTheNetwork(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "")
	t.Setenv("https_proxy", "")
	f := New(Options{
		Getenv:   func(string) string { return "" },
		Resolver: names(map[string]string{"inside.test": "10.9.8.7", "this.test": "127.0.0.1"}, "broken.test"),
	})
	ask := func(host string, public bool) error {
		t.Helper()
		ref, err := image.ParseReference(host + "/x:1")
		if err != nil {
			t.Fatal(err)
		}
		src, err := f.registry(ref, image.AcquireOptions{PublicOnly: public})
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		_, _, err = src.manifestOnce(t.Context(), src.endpoints[0], "1")
		if err == nil {
			t.Fatalf("%s answers", host)
		}
		for _, told := range []string{"10.9.8.7", "127.0.0", "lookup", ":53", "read ", "dial "} {
			if strings.Contains(err.Error(), told) {
				t.Errorf("the error of %s tells %q: %v", host, told, err)
			}
		}
		return err
	}
	there, missing := ask("inside.test", true), ask("missing.test", true)
	if a, b := strings.ReplaceAll(there.Error(), "inside", "x"), strings.ReplaceAll(missing.Error(), "missing", "x"); a != b || sandpit.Hint(there) != sandpit.Hint(missing) {
		t.Errorf("they are told apart: %v (%s) and %v (%s)", there, sandpit.Hint(there), missing, sandpit.Hint(missing))
	}
	for _, err := range []error{there, missing, ask("this.test", true)} {
		if !errors.Is(err, sandpit.ErrForbidden) {
			t.Errorf("the error is %v", err)
		}
	}
	// The log has more.
	var d interface{ Detail() string }
	if !errors.As(there, &d) || !errors.As(missing, &d) || !strings.Contains(d.Detail(), "no such host") {
		t.Error("there is no detail for the log")
	}
	for host, public := range map[string]bool{"broken.test": true, "missing.test": false, "this.test:1": false} {
		if err := ask(host, public); !errors.Is(err, sandpit.ErrUnavailable) || !errors.As(err, &d) || len(d.Detail()) < 10 {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// A connection that breaks tells no address either.
func TestBrokenBodiesTellNoAddress(t *testing.T) {
	inner := &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 9, 8, 7)}, Addr: &net.TCPAddr{IP: net.IPv4(10, 9, 8, 6)}, Err: errors.New("connection reset by peer")}
	if got := hide(&net.OpError{Op: "proxyconnect", Net: "tcp", Err: inner}).Error(); got != "connecting to the proxy: connection reset by peer" {
		t.Error(got)
	}
	r := newIdleReader(io.NopCloser(failing{inner}), func() {})
	defer r.Close()
	if _, err := r.Read(make([]byte, 1)); err == nil || err.Error() != "connection reset by peer" {
		t.Error(err)
	}
	if hide(io.EOF) != io.EOF {
		t.Error("the end is another one")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

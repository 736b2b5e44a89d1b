package intercept

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
)

// FuzzTarget checks that an allowed request goes on with a path, or with the * of OPTIONS, and never
// with another host.
func FuzzTarget(f *testing.F) {
	for _, target := range []string{
		"/", "/a?b", "*", "http://good.test/a?", "http://good.test", "//evil.test/a", "x:http://evil.test/p", "http:http://evil.test/p", "x:evil.test/p", "http:evil.test", "x:*", "x:/p", "x:?q",
		"http://user@good.test/", "http:///p", "ftp://good.test/", "/%", "/\\", "?q", "evil.test",
	} {
		for _, method := range []string{"GET", "OPTIONS"} {
			f.Add(method + " " + target)
		}
	}
	f.Fuzz(func(t *testing.T, line string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line + " HTTP/1.1\r\nHost: good.test\r\n\r\n")))
		if err != nil || r.Method == http.MethodConnect || r.Host != "good.test" || !originTarget(r) {
			return
		}
		out := r.Clone(t.Context())
		rewrite(&httputil.ProxyRequest{In: r, Out: out}, "http")
		var sent bytes.Buffer
		if err := out.Write(&sent); err != nil {
			return
		}
		got, err := http.ReadRequest(bufio.NewReader(&sent))
		if err != nil {
			t.Fatalf("%q goes on as %q", line, sent.String())
		}
		if got.Host != "good.test" || got.RequestURI[0] != '/' && (got.RequestURI != "*" || got.Method != http.MethodOptions) {
			t.Errorf("%q goes on as %s %s of %s", line, got.Method, got.RequestURI, got.Host)
		}
	})
}

// What a sandbox is told of a connection that failed has no address of this machine.
func TestReasonsHaveNoAddresses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = net.Dial("tcp", l.Addr().String())
	if why := Reason(fmt.Errorf("sending: %w", err)); why != "dial: connection refused" {
		t.Errorf("%v becomes %q", err, why)
	}
	if why := Reason(ErrSecretChanged); why != ErrSecretChanged.Error() {
		t.Error(why)
	}
}

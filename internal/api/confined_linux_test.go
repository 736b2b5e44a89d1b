package api_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// mirror answers with the head of the request; what comes before and after it is
// what its path says.
const mirror = `
import socket, threading
def serve(c):
    head = b""
    while b"\r\n\r\n" not in head:
        more = c.recv(1)
        if not more: return
        head += more
    bad = b"Set-Cookie: sandbox=1\r\nStrict-Transport-Security: max-age=9\r\nClear-Site-Data: *\r\nAlt-Svc: x\r\nNel: x\r\nReport-To: x\r\nAccept-Ch: x\r\nSet-Cookie2: x\r\nX-Request-Id: theirs\r\n"
    path = head.split()[1]
    if b"hints" in path:
        for status in (b"103 Early Hints", b"102 Processing", b"199 Odd"):
            c.sendall(b"HTTP/1.1 " + status + b"\r\nLink: </style.css>\r\nAccess-Control-Allow-Origin: *\r\n" + bad + b"\r\n")
    if b"upgrade" in path:
        c.sendall(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: talk\r\n" + bad + b"\r\n" + head)
    elif b"trailers" in path:
        announced = b"Trailer: Set-Cookie2, Nel, Checksum\r\n" if b"announced" in path else b""
        c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + announced + b"\r\n%x\r\n%s\r\n0\r\nChecksum: good\r\n%s\r\n" % (len(head), head, bad))
    else:
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(head) + bad + b"\r\n" + head)
    c.close()
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", 8080)); l.listen(100)
while True:
    c, _ = l.accept()
    threading.Thread(target=serve, args=(c,)).start()
`

// heads sends a request by hand and returns the heads of all its answers, the body
// of the last, and its trailers.
func (s *service) heads(text string) (heads []string, body string, trailer http.Header) {
	s.t.Helper()
	conn := s.dial()
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		s.t.Fatal(err)
	}
	var seen strings.Builder
	br := bufio.NewReader(io.TeeReader(conn, &seen))
	for {
		before := seen.Len() - br.Buffered()
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			s.t.Fatalf("%v after %q", err, seen.String())
		}
		heads = append(heads, seen.String()[before:seen.Len()-br.Buffered()])
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		var all []byte
		if resp.StatusCode == http.StatusSwitchingProtocols {
			all, err = io.ReadAll(br)
		} else {
			all, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err != nil {
			s.t.Fatal(err)
		}
		return heads, string(all), resp.Trailer
	}
}

// What a sandbox answers before the answer and behind it is held to the rules of
// the answer, and takes away nothing that the server says.
func TestNothingPassesBesideTheAnswer(t *testing.T) {
	s := serve(t, func(o *options) { o.Origins = []string{"https://ui.example"} })
	sb := s.create("", v1.Spec{})
	s.python(sb, "", mirror, 1)
	byHeader := "Host: sandpit\r\nX-Sandpit-Sandbox: " + sb.ID + "\r\nX-Sandpit-Port: 8080\r\n"
	byName := "Host: 8080-" + sb.ID + ".localhost\r\n"
	bad := []string{"Set-Cookie", "Set-Cookie2", "Strict-Transport-Security", "Clear-Site-Data", "Alt-Svc", "Nel", "Report-To", "Accept-Ch"}
	for name, to := range map[string]string{"by header": byHeader, "by name": byName} {
		for path, more := range map[string]string{"/hints": "", "/trailers": "", "/trailers-announced": "", "/hints-upgrade": "Upgrade: talk\r\nConnection: Upgrade\r\n"} {
			t.Run(name+path, func(t *testing.T) {
				inner := *s
				inner.t = t
				if more == "" {
					more = "Connection: close\r\n"
				}
				heads, body, trailer := inner.heads("GET " + path + " HTTP/1.1\r\n" + to + "Origin: https://ui.example\r\n" + more + "\r\n")
				if len(heads) != 1 {
					t.Errorf("answers before the answer: %q", heads[:len(heads)-1])
				}
				head := heads[len(heads)-1]
				parsed, err := textproto.NewReader(bufio.NewReader(strings.NewReader(head[strings.Index(head, "\n")+1:]))).ReadMIMEHeader()
				if err != nil {
					t.Fatal(err)
				}
				if ids := parsed["X-Request-Id"]; len(ids) != 1 || ids[0] == "theirs" {
					t.Errorf("its request id is %q", ids)
				}
				if origins := parsed["Access-Control-Allow-Origin"]; len(origins) != 1 || origins[0] != "https://ui.example" {
					t.Errorf("it may be read by %q", origins)
				}
				if !strings.Contains(body, "GET "+path) {
					t.Errorf("the body is %q", body)
				}
				if strings.Contains(path, "trailers") && trailer.Get("Checksum") != "good" {
					t.Errorf("the trailers are %v", trailer)
				}
				if trailer.Get("X-Request-Id") != "" {
					t.Errorf("a request id follows: %v", trailer)
				}
				for _, name := range bad {
					if to == byHeader && (parsed.Get(name) != "" || trailer.Get(name) != "") {
						t.Errorf("%s under the server's own name: %q, then %v", name, head, trailer)
					}
				}
			})
		}
	}
}

// What a sandbox says under the name of its port does not reach other names of the domain, or the
// server's own cookie.
func TestSitesAreKeptApart(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	cookies := `Set-Cookie: a=1; Path=/; domain = localhost;HttpOnly\r\nSet-Cookie: sandpit-preview=x\r\nSet-Cookie:  __host-Sandpit-Preview =x; Secure\r\nSet-Cookie: b=domain; DOMAIN=x; Domain\r\nSet-Cookie: =sandpit-preview\r\nReporting-Endpoints: x\r\nCache-Control: public, max-age=9\r\nCache-Control: S-MaxAge=9, no-transform\r\nCDN-Cache-Control: public\r\n`
	s.python(sb, "", strings.Replace(mirror, `bad = b"`, `bad = b"`+cookies, 1), 1)
	heads, _, trailer := s.heads("GET /trailers HTTP/1.1\r\nHost: 8080-" + sb.ID + ".localhost\r\nConnection: close\r\n\r\n")
	if len(heads) != 1 || trailer.Get("Set-Cookie") == "" {
		t.Errorf("%q %v", heads, trailer)
	}
	heads, _, _ = s.heads("GET / HTTP/1.1\r\nHost: 8080-" + sb.ID + ".localhost\r\nConnection: close\r\n\r\n")
	if h := header(t, heads[0]); h.Get("Cache-Control") != "private, max-age=9, no-transform" || h.Get("CDN-Cache-Control") != "" {
		t.Errorf("shared caches may keep it: %v", h)
	}
	for _, h := range []http.Header{trailer, header(t, heads[0])} {
		if got, want := fmt.Sprintf("%q", h["Set-Cookie"]), `["a=1; Path=/;HttpOnly" "b=domain" "=sandpit-preview" "sandbox=1"]`; got != want || h.Get("Clear-Site-Data")+h.Get("Nel")+h.Get("Report-To")+h.Get("Reporting-Endpoints")+h.Get("Alt-Svc") != "" {
			t.Errorf("%s, want %s: %v", got, want, h)
		}
	}
}

// header returns the header of an answer.
func header(t *testing.T, head string) http.Header {
	t.Helper()
	h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(head[strings.Index(head, "\n")+1:]))).ReadMIMEHeader()
	if err != nil {
		t.Fatal(err)
	}
	return http.Header(h)
}

// No key of ours gets into a sandbox, wherever in a request it stands.
func TestKeysStayOutside(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	s.python(sb, "", mirror, 1)
	by := func(key string) string {
		return "Host: sandpit\r\nX-Sandpit-Sandbox: " + sb.ID + "\r\nX-Sandpit-Port: 8080\r\n" + key
	}
	basic := base64.StdEncoding.EncodeToString([]byte("user:" + aliceKey))
	own, bearer := "X-Sandpit-Key: "+adminKey+"\r\n", "Authorization: Bearer "+adminKey+"\r\n"
	for name, c := range map[string]struct {
		target, head string
		refused      bool
	}{
		"in its own header":                {"/", own, false},
		"in Authorization":                 {"/", bearer, false},
		"the same one in both":             {"/", own + bearer, false},
		"another one beside it":            {"/", own + "Authorization: Bearer " + aliceKey + "\r\n", false},
		"in a second Authorization":        {"/", own + "Authorization: Bearer mine\r\nAuthorization: bearer   " + aliceKey + "\r\n", false},
		"as the password of Basic":         {"/", own + "Authorization: Basic " + basic + "\r\n", false},
		"without a scheme":                 {"/", own + "Authorization: " + aliceKey + "\r\n", false},
		"in its own header, twice":         {"/", own + own + "x-sandpit-key: " + aliceKey + "\r\n", false},
		"in a header of one connection":    {"/", own + "Connection: X-Sandpit-Key, Authorization\r\n" + bearer, false},
		"in a header for proxies":          {"/", own + "Proxy-Authorization: Bearer " + aliceKey + "\r\n", true},
		"in a cookie":                      {"/", own + "Cookie: a=b; key=" + aliceKey + "\r\n", true},
		"in a protocol of WebSockets":      {"/", own + "Sec-WebSocket-Protocol: chat, " + aliceKey + "\r\n", true},
		"in the name of a header":          {"/", own + aliceKey + ": x\r\n", true},
		"in the address":                   {"/a/" + aliceKey, own, true},
		"in the address, encoded":          {"/?key=secret%2Dalice", own, true},
		"beside an escape that is none":    {"/?bad=%zz&key=%73ecret%2Dalice", own, true},
		"beside half an escape":            {"/?key=%73ecret%2Dalice&bad=%7", own, true},
		"as Basic with more behind it":     {"/", own + "Authorization: Basic  " + basic + ",realm\r\n", false},
		"as a token in base64":             {"/", own + "Authorization: token " + basic + "\r\n", false},
		"in base64 in another header":      {"/", own + "X-Y: Bearer " + basic + "\r\n", true},
		"in base64 behind other text":      {"/", own + "Cookie: a=b+" + basic + "; c=d\r\n", true},
		"in base64 in the address":         {"/?key=" + url.QueryEscape(basic), own, true},
		"in base64 for URLs":               {"/", own + "X-Y: " + base64.RawURLEncoding.EncodeToString([]byte("\xff\xfe\xfd"+aliceKey)) + "\r\n", true},
		"in the user of the whole address": {"http://" + aliceKey + "@sandpit/", own, true},
		"in what follows the body":         {"/", own + "Transfer-Encoding: chunked\r\nTrailer: Late\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, more := range []string{"Connection: close\r\n", "Connection: Upgrade\r\nUpgrade: talk\r\n"} {
				inner := *s
				inner.t = t
				target, body := c.target, ""
				if strings.Contains(more, "Upgrade") && target == "/" {
					target = "/upgrade"
				}
				if strings.Contains(c.head, "chunked") {
					body = "1\r\na\r\n0\r\nLate: " + aliceKey + "\r\n\r\n"
				}
				_, seen, _ := inner.heads(fmt.Sprintf("POST %s HTTP/1.1\r\n%s%s\r\n%s", target, by(c.head), more, body))
				if refused := strings.Contains(seen, `"code":"invalid"`); refused != c.refused {
					t.Errorf("it is refused: %v: %s", refused, seen)
				}
				lower := strings.ToLower(seen)
				if strings.Contains(lower, "secret-admin") || strings.Contains(lower, "secret-alice") || strings.Contains(seen, basic) {
					t.Errorf("the sandbox gets %s", seen)
				}
				if strings.Contains(c.head, "Bearer mine") && !strings.Contains(seen, "Authorization: Bearer mine\r\n") {
					t.Errorf("the sandbox's own key does not get there: %s", seen)
				}
			}
		})
	}
}

// A query gets to the sandbox as it came, also what is none for Go.
func TestQueriesArePassedOnAsTheyAre(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	s.python(sb, "", mirror, 1)
	const query = "/q?bad=%zz&a;b&c=%41+x&&=&%"
	_, seen, _ := s.heads("GET " + query + " HTTP/1.1\r\nHost: sandpit\r\nX-Sandpit-Sandbox: " + sb.ID + "\r\nX-Sandpit-Port: 8080\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(seen, "GET "+query+" HTTP/1.1\r\n") {
		t.Errorf("the sandbox gets %s", seen)
	}
}

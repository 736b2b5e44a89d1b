package server_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/authority"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// busy uses one connection, or looks one name up, again and again. It ends with 3 when that fails, and with 0 after
// SIGTERM and one more turn.
const busy = `
import http.client, signal, socket, sys, time
kind, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
stop = False
def end(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, end)

def stream():
    f = socket.create_connection((host, port), 60).makefile("rwb")
    def turn():
        f.write(host.encode() + b"\n")
        f.flush()
        if not f.readline():
            raise OSError("closed")
    return turn

def requests(c):
    c.connect()
    c.auto_open = 0
    def turn():
        c.request("GET", "/" + host)
        r = c.getresponse()
        r.read()
        if r.status != 200:
            raise OSError("status %d" % r.status)
    return turn

def datagrams():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((host, port))
    s.settimeout(1)
    def turn():
        while True:
            s.send(host.encode())
            try:
                return s.recv(100)
            except socket.timeout:
                pass
    return turn

def lookups():
    def turn():
        socket.getaddrinfo(host, port)
    return turn

try:
    turn = {
        "stream": stream, "datagrams": datagrams, "lookups": lookups,
        "http": lambda: requests(http.client.HTTPConnection(host, port, timeout=60)),
        "https": lambda: requests(http.client.HTTPSConnection(host, port, timeout=60)),
    }[kind]()
    turn()
    print("begun", flush=True)
    while True:
        last = stop
        turn()
        if last:
            break
        time.sleep(0.005)
except (OSError, http.client.HTTPException) as e:
    print("ended:", repr(e), flush=True)
    sys.exit(3)
`

// outside has the servers that programs use. What is sent to them says for which host.
type outside struct {
	ports map[string]int // by kind
	roots []byte

	mu   sync.Mutex
	seen map[string]map[string]bool // by host, addresses that it was used from, and whether that goes on; guarded by mu
}

func (o *outside) use(host, from string, goesOn bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen[host] == nil {
		o.seen[host] = map[string]bool{}
	}
	o.seen[host][from] = goesOn
}

// close notes that a connection has ended.
func (o *outside) close(from string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, all := range o.seen {
		if all[from] {
			all[from] = false
		}
	}
}

// count returns how many connections were made for a host, and how many of them are open.
func (o *outside) count(host string) (made, open int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, goesOn := range o.seen[host] {
		if made++; goesOn {
			open++
		}
	}
	return made, open
}

func serveOutside(t *testing.T) *outside {
	t.Helper()
	ca, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := authority.Read(ca)
	if err != nil {
		t.Fatal(err)
	}
	o := &outside{ports: map[string]int{"lookups": 1}, roots: authority.Certificate(ca), seen: map[string]map[string]bool{}}
	var work sync.WaitGroup
	listen := func(kind string) net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		o.ports[kind] = l.Addr().(*net.TCPAddr).Port
		return l
	}
	streams := listen("stream")
	work.Go(func() {
		for {
			c, err := streams.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				defer o.close(c.RemoteAddr().String())
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					o.use(strings.TrimSpace(line), c.RemoteAddr().String(), true)
					_, _ = io.WriteString(c, line)
				}
			})
		}
	})
	web := func() *http.Server {
		return &http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				o.use(strings.TrimPrefix(r.URL.Path, "/"), r.RemoteAddr, true)
				fmt.Fprint(w, "hello")
			}),
			ConnState: func(c net.Conn, s http.ConnState) {
				if s == http.StateClosed {
					o.close(c.RemoteAddr().String())
				}
			},
			TLSConfig: &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return issuer.Issue(h.ServerName) }},
			ErrorLog:  log.New(io.Discard, "", 0),
		}
	}
	plain, secure := web(), web()
	inPlain, inSecure := listen("http"), listen("https")
	work.Go(func() { _ = plain.Serve(inPlain) })
	work.Go(func() { _ = secure.ServeTLS(inSecure, "", "") })
	datagrams, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.ports["datagrams"] = datagrams.LocalAddr().(*net.UDPAddr).Port
	work.Go(func() {
		for buf := make([]byte, 1000); ; {
			n, from, err := datagrams.ReadFrom(buf)
			if err != nil {
				return
			}
			o.use(string(buf[:n]), from.String(), false)
			_, _ = datagrams.WriteTo(buf[:n], from)
		}
	})
	t.Cleanup(func() {
		streams.Close()
		datagrams.Close()
		plain.Close()
		secure.Close()
		work.Wait()
	})
	return o
}

// rule is the rule that a kind of use of a host needs.
func (o *outside) rule(kind, host string) string {
	to := fmt.Sprintf("%s:%d", host, o.ports[kind])
	switch kind {
	case "datagrams":
		return "udp:" + to
	case "https": // so that its TLS is intercepted
		return "GET:https://" + to + "/*"
	}
	return to
}

// Several clients change the rules of a sandbox whose programs use the network. What a rule still allows is never
// disturbed, what none allows any more ends and is in the log, no change is lost, and nothing is left behind.
func TestRulesChangeUnderLoad(t *testing.T) {
	if !linux.New(linux.Options{}).Probe(t.Context()).Features[feature.Egress] {
		testkit.Lacks(t, "egress")
	}
	testkit.NeedProgram(t, "python3")
	rounds := 2
	if os.Getenv("SANDPIT_TEST_LONG") != "" {
		rounds = 20
	}
	kinds := []string{"stream", "http", "https", "datagrams", "lookups"}
	kept := func(kind string) string { return "kept-" + kind + ".test" }
	flips := func(kind string) string { return "flips-" + kind + ".test" }
	o := serveOutside(t)
	way, err := upstream.New(upstream.Settings{Roots: o.roots})
	if err != nil {
		t.Fatal(err)
	}
	s := newServed(t)
	s.change = func(opt *server.Options) { opt.Network = network.InProcess{Way: way} }
	s.start()
	var e sandpit.Egress
	for _, kind := range kinds {
		e.Allow = append(e.Allow, o.rule(kind, kept(kind)))
		e.Resolve = append(e.Resolve, kept(kind)+":127.0.0.1", flips(kind)+":127.0.0.1")
	}
	c := s.unix()
	defer c.Close()
	if _, err := c.Create(t.Context(), sandpit.Spec{Name: "box", Egress: e}); err != nil {
		testkit.Made(t, err)
	}

	// start returns a program that has begun, and a channel with what it says when it ends.
	start := func(sb sandpit.Sandbox, kind, host string) (sandpit.Process, chan string) {
		r, w := io.Pipe()
		p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"python3", "-c", busy, kind, host, fmt.Sprint(o.ports[kind])}, Stdout: w, Stderr: w})
		if err != nil {
			t.Errorf("%s: %v", host, err)
			return nil, nil
		}
		lines, said := bufio.NewReader(r), make(chan string, 1)
		if line, _ := lines.ReadString('\n'); line != "begun\n" {
			t.Errorf("%s: %q", host, line)
		}
		go func() {
			all, _ := io.ReadAll(lines)
			said <- string(all)
		}()
		go func() {
			_, _ = p.Wait(t.Context())
			w.Close()
		}()
		return p, said
	}
	// turn lets a program use a host, and takes that away again.
	turn := func(sb sandpit.Sandbox, kind string, i int) {
		egresser := sb.(sandpit.Egresser)
		change := func(c sandpit.EgressChange) {
			if err := egresser.ChangeEgress(t.Context(), c); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		host := flips(kind)
		rule := o.rule(kind, host)
		allowed := sandpit.EgressRules{Allow: []string{rule}}
		change(sandpit.EgressChange{Add: sandpit.EgressRules{Allow: []string{rule, mark(kind, i)}}})
		p, said := start(sb, kind, host)
		if p == nil {
			return
		}
		if i%2 == 0 {
			change(sandpit.EgressChange{Remove: allowed})
		} else {
			denied := sandpit.EgressRules{Deny: []string{host, "udp:" + host}}
			change(sandpit.EgressChange{Add: denied})
			defer change(sandpit.EgressChange{Remove: sandpit.EgressRules{Allow: allowed.Allow, Deny: denied.Deny}})
		}
		if text := <-said; !strings.HasPrefix(text, "ended: ") {
			t.Errorf("round %d: what uses %s says %q", i, host, text)
		}
		if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != 3 {
			t.Errorf("round %d: what uses %s ends with %+v, %v", i, host, res, err)
		}
		testkit.Until(t, "the connection outside ends", func() bool { _, open := o.count(host); return open == 0 })
		testkit.Until(t, "its end is in the log", func() bool {
			log, err := egresser.EgressLog(t.Context())
			if err != nil {
				t.Error(err)
				return true
			}
			if kind == "lookups" {
				return slices.ContainsFunc(log.Denials, func(d sandpit.EgressDenial) bool { return d.Destination == host && d.Count > int64(i) })
			}
			ended := 0
			for _, f := range log.Flows {
				if f.Host == host && f.Sent > 0 && !f.Open && f.Error+f.Why != "" {
					ended++
				}
			}
			return ended > i
		})
	}
	// all runs what changes the rules, with a client each.
	all := func(first, end int) {
		var work sync.WaitGroup
		for _, kind := range kinds {
			work.Go(func() {
				c := s.unix()
				defer c.Close()
				sb, err := c.Get(t.Context(), "box")
				if err != nil {
					t.Error(err)
					return
				}
				for i := first; i < end; i++ {
					turn(sb, kind, i)
				}
			})
		}
		work.Wait()
	}

	sb, err := c.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	type program struct {
		sandpit.Process
		said chan string
	}
	programs := map[string]program{}
	for _, kind := range kinds {
		p, said := start(sb, kind, kept(kind))
		if p == nil {
			t.FailNow()
		}
		programs[kind] = program{p, said}
	}
	all(0, 1)
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	all(1, 1+rounds)
	testkit.Until(t, "no goroutine is left behind", func() bool { return runtime.NumGoroutine() <= goroutines+5 }) // less than one of each kind and round
	if now := heapInUse(); now > heap+(4<<20) {
		t.Errorf("%d bytes are used, %d before", now, heap)
	}

	for _, kind := range kinds {
		p := programs[kind]
		if err := p.Signal(t.Context(), syscall.SIGTERM); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
			t.Error(err)
		}
		text := <-p.said
		res, err := p.Wait(t.Context())
		made, _ := o.count(kept(kind))
		if err != nil || res.ExitCode != 0 || made > 1 {
			t.Errorf("what uses %s: %+v, %v: %q, %d connections", kept(kind), res, err, text, made)
		}
	}
	want := slices.Clone(e.Allow)
	for _, kind := range kinds {
		for i := range 1 + rounds {
			want = append(want, mark(kind, i))
		}
	}
	got, err := sb.(sandpit.Egresser).Egress(t.Context())
	slices.Sort(want)
	slices.Sort(got.Allow)
	if err != nil || !slices.Equal(got.Allow, want) || len(got.Deny) != 0 {
		t.Errorf("the rules are %+v, %v; want %v", got, err, want)
	}
}

// mark is a rule that a change leaves.
func mark(kind string, i int) string { return fmt.Sprintf("mark-%s-%d.test", kind, i) }

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

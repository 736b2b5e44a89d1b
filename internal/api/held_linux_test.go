package api_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Of JSON the values count, not the bytes alone: they become many times as large.
func TestBodiesOfManyValues(t *testing.T) {
	s := serve(t, nil)
	header := map[string]string{"Content-Type": "application/json"}
	s.refused(413, "too_large", ask{method: "POST", path: "/v1/sandboxes", body: `{"mounts":[` + strings.Repeat("{},", 3_000_000) + `{}]}`, header: header})
	s.refused(400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: `{"mounts":[` + strings.Repeat("{},", 300_000) + `{}]}`, header: header})
	// What is in a string is one value.
	s.refused(404, "not_found", ask{method: "POST", path: "/v1/sandboxes/x/exec", body: v1.Exec{Command: v1.Command{Script: strings.Repeat(`a,"[{\`, 1_000_000)}}})
}

// unread is how much the other end of a unix socket has not read yet, in bytes.
func unread(t *testing.T, conn net.Conn) int {
	t.Helper()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return n
}

// What large requests hold is bounded for each caller, and is free when they end.
func TestHeldBodiesAreBounded(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Memory, o.Limits.TotalMemory = 5<<20, 9<<20 })
	// Each holds 4 MiB, and does not come to an end.
	half := func(key string) io.Closer {
		conn := s.dial()
		fmt.Fprintf(conn, "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n%s", key, `{"name":"`+strings.Repeat("x", 2<<20))
		eventually(t, "the server has read it", func() bool { return unread(t, conn) == 0 })
		return conn
	}
	large := ask{method: "POST", path: "/v1/sandboxes", key: aliceKey, body: v1.Spec{Name: strings.Repeat("x", 2<<20)}}
	conns := []io.Closer{half(aliceKey)}
	s.refused(429, "rate_limited", large)
	s.refused(404, "not_found", ask{method: "GET", path: "/v1/sandboxes/none", key: aliceKey})
	large.key = bobKey
	s.refused(400, "invalid", large)
	conns = append(conns, half(bobKey))
	large.key = ""
	s.refused(503, "overloaded", large)
	for _, c := range conns {
		c.Close()
	}
	eventually(t, "nothing is held", func() bool {
		status, _, _ := s.get(large)
		return status == 400
	})
}

// A create that has succeeded says so, also if the caller holds too much for its answer. Repetitions
// find the sandbox.
func TestCreateIsAnswered(t *testing.T) {
	const held = 2 << 20
	s := serve(t, func(o *options) { o.Limits.Memory = 2*held + 120<<10 })
	conn := s.dial()
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n%s", aliceKey, strings.Repeat(" ", held))
	eventually(t, "the server has read it", func() bool { return unread(t, conn) == 0 })
	long := `"` + strings.Repeat("<", 4000) + `"` // six times as long in the answer
	a := keyed("k", ask{method: "POST", path: "/v1/sandboxes", key: aliceKey, header: asJSON(), body: `{"labels":{"a":` + long + `,"b":` + long + `,"c":` + long + `,"d":` + long + `}}`})
	var first, second v1.Sandbox
	s.want(201, &first, a)
	if h := s.want(201, &second, a); h.Get("Idempotent-Replayed") != "true" || second.ID != first.ID || len(second.Labels) != 4 {
		t.Errorf("repeated: %v %s, first %s", h, second.ID, first.ID)
	}
}

// Output that is answered as a whole is sent without being held as JSON, and a
// command of which the output can't be held is killed, and its caller told.
func TestHeldOutputIsBounded(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Memory = 24 << 20 })
	sb := s.create("", v1.Spec{})
	var out v1.Executed
	command := func(script string) ask {
		return ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: script}}}
	}
	s.want(200, &out, command(`head -c 3000000 /dev/zero; printf '\303\251"%1000000s\303\251' x; printf '\377\376%100000s' y >&2`))
	want := strings.Repeat("\x00", 3000000) + `é"` + strings.Repeat(" ", 999_999) + "xé"
	if stdout, stderr := outputOf(t, out); stdout != want || stderr != "\xff\xfe"+strings.Repeat(" ", 99_999)+"y" {
		t.Errorf("%d and %d bytes have come", len(stdout), len(stderr))
	}
	out = v1.Executed{}
	s.want(200, &out, command(`head -c 3000000 /dev/zero; printf '\303\251"%1000000s\303\251' x; echo é >&2`))
	if out.Encoding != "" || out.Stdout != want || out.Stderr != "é\n" {
		t.Errorf("%d and %d bytes have come, %q", len(out.Stdout), len(out.Stderr), out.Encoding)
	}
	s.want(200, &out, command(`head -c 70000 /dev/urandom; echo é >&2`))
	if stdout, stderr := outputOf(t, out); len(stdout) != 70000 || stderr != "é\n" {
		t.Errorf("%d bytes have come, and %q", len(stdout), stderr)
	}
	s.refused(422, "output_too_large", command(`head -c 15M /dev/zero; exec sleep 7999`))
	if s.running(sb, "", "7999") {
		t.Error("it goes on")
	}
	s.want(200, &out, command(`head -c 1M /dev/zero`))
}

// A countedConn counts the bytes that are written to it.
type countedConn struct {
	net.Conn
	written *atomic.Int64
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// Input that a process does not read is held in small pieces, however large the
// messages are.
func TestHeldInputIsBounded(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	var written atomic.Int64
	plain := s.unix
	s.unix = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return countedConn{s.dial(), &written}, nil
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	frame := append([]byte{v1.FrameStdin}, make([]byte, v1.MaxFrame)...)
	const sockets = 10
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range sockets {
		conn := s.socket(ctx, execPath(sb), "")
		if err := conn.Write(ctx, websocket.MessageText, []byte(`{"script":"head -c 1 >/dev/null; echo got; exec sleep 7999","stdin":true}`)); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for conn.Write(ctx, websocket.MessageBinary, frame) == nil {
			}
		})
		receive(t, conn, v1.FrameStdout, "got")
	}
	s.unix = plain
	// The server takes no more when nothing was sent during many requests.
	const most = sockets << 20
	for quiet := 0; quiet < 20 && written.Load() <= 2*most; quiet++ {
		was := written.Load()
		s.want(200, nil, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: ":"}}})
		if written.Load() != was {
			quiet = 0
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > most {
		t.Errorf("%d sockets hold %d bytes, and have sent %d", sockets, grown, written.Load())
	}
	s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/" + sb.ID})
}

// manyEntries is a zip archive whose table of contents has so many entries.
func manyEntries(n int) []byte {
	var b bytes.Buffer
	u16 := func(all ...uint16) { _ = binary.Write(&b, binary.LittleEndian, all) }
	u32 := func(all ...uint32) { _ = binary.Write(&b, binary.LittleEndian, all) }
	u32(0x04034b50)
	u16(20, 0, 0, 0, 0)
	u32(0, 0, 0)
	u16(1, 0)
	b.WriteByte('a')
	begin := b.Len()
	for range n {
		u32(0x02014b50)
		u16(20, 20, 0, 0, 0, 0)
		u32(0, 0, 0)
		u16(1, 0, 0, 0, 0)
		u32(0, 0)
		b.WriteByte('a')
	}
	size := b.Len() - begin
	u32(0x06054b50)
	u16(0, 0, uint16(n), uint16(n))
	u32(uint32(size), uint32(begin))
	u16(0)
	return b.Bytes()
}

// The table of contents of a zip archive is held, and therefore bounded, both ways;
// and an archive whose entries lie over each other is refused.
func TestHeldArchivesAreBounded(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Memory, o.Limits.Spool = 1<<20, 8<<20 })
	sb := s.create("", v1.Spec{})
	archive := "/v1/sandboxes/" + sb.ID + "/files/archive?format=zip&path=/tmp"
	upload := func(b []byte) ask { return ask{method: "PUT", path: archive, body: string(b)} }
	s.want(204, nil, upload(manyEntries(100)))
	if e := s.refused(413, "too_large", upload(manyEntries(10_000))); !strings.Contains(e.Hint, "tar") {
		t.Errorf("%+v", e)
	}
	var large bytes.Buffer
	zw := zip.NewWriter(&large)
	f, _ := zw.CreateHeader(&zip.FileHeader{Name: "large", Method: zip.Store})
	_, _ = f.Write(make([]byte, 4<<20))
	_ = zw.Close()
	s.want(204, nil, upload(large.Bytes())) // its content is not a part of the table
	// 20 entries of 4 GiB, all in the same place.
	over := manyEntries(20)
	for i := 31; i+46 < len(over); i += 47 {
		binary.LittleEndian.PutUint32(over[i+24:], 1<<32-2)
	}
	s.refused(400, "invalid", upload(over))

	var out v1.Executed
	s.want(200, &out, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: `rm -rf /tmp/*; mkdir /tmp/d; cd /tmp/d; i=0; while [ $i -lt 2500 ]; do : > $i; i=$((i+1)); done`}}})
	resp := s.do(ask{method: "GET", path: archive})
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("an archive with a table too long to be held is answered with %d bytes", len(body))
	}
	s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/files/archive?path=/tmp"})

	// What is on the disk is bounded for all uploads of a caller together.
	conn := s.dial()
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: sandpit\r\nContent-Length: 9000000\r\n\r\n", archive)
	if _, err := conn.Write(make([]byte, 6<<20)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server has read it", func() bool { return unread(t, conn) == 0 })
	s.refused(429, "rate_limited", upload(large.Bytes()))
}

// Calls that are under way with a key are bounded.
func TestCallsAreBounded(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Calls = 2 })
	for range 2 {
		defer s.do(ask{method: "GET", path: "/v1/events", key: aliceKey}).Body.Close()
	}
	s.refused(429, "rate_limited", ask{method: "GET", path: "/v1/version", key: aliceKey})
	s.want(200, nil, ask{method: "GET", path: "/v1/version", key: bobKey})
}

// A list of processes comes in pages, which are bounded in bytes, too. (The
// catalogue's L11e.)
func TestAttackL11Lists(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	const processes = 140
	for range processes {
		s.want(200, nil, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Argv: []string{"true", strings.Repeat("x", 10<<10)}}}})
	}
	path := "/v1/sandboxes/" + sb.ID + "/processes"
	for query, limit := range map[string]int{"": 130, "&limit=25": 25} {
		seen, after, pages := map[string]bool{}, "", 0
		for {
			var list v1.ProcessList
			s.want(200, &list, ask{method: "GET", path: path + "?after=" + after + query})
			for _, p := range list.Processes {
				if seen[p.ID] || !p.ArgvCut || len(p.Argv) != 2 || len(p.Argv[1]) > 8<<10 || p.Result == nil {
					t.Fatalf("the process %s is there, cut %v, with %d arguments", p.ID, p.ArgvCut, len(p.Argv))
				}
				seen[p.ID] = true
			}
			if pages++; list.Next == "" {
				break
			}
			if n := len(list.Processes); n == 0 || n > limit {
				t.Fatalf("%d processes are on a page", n)
			}
			after = list.Next
		}
		if len(seen) != processes || pages != (processes+limit-1)/limit {
			t.Errorf("%d processes are on %d pages of %d", len(seen), pages, limit)
		}
	}
	s.refused(400, "invalid", ask{method: "GET", path: path + "?limit=1001"})
}

// What is not the id of a process begins no page of processes.
func TestPagesOfProcessesBeginAtOne(t *testing.T) {
	s := serve(t, nil)
	one := "/v1/sandboxes/" + s.create("", v1.Spec{}).ID + "/processes"
	for _, after := range []string{"zzz", "1", "p", "p-1", "p1x"} {
		s.refused(400, "invalid", ask{method: "GET", path: one + "?after=" + after})
	}
	s.want(200, nil, ask{method: "GET", path: one + "?after=p99"})
}

// outputOf decodes output that must be in base64.
func outputOf(t *testing.T, out v1.Executed) (stdout, stderr string) {
	t.Helper()
	o, oerr := base64.StdEncoding.DecodeString(out.Stdout)
	e, eerr := base64.StdEncoding.DecodeString(out.Stderr)
	if out.Encoding != v1.Base64 || oerr != nil || eerr != nil {
		t.Fatalf("the encoding is %q: %v, %v", out.Encoding, oerr, eerr)
	}
	return string(o), string(e)
}

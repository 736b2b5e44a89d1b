package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/fxamacker/cbor/v2"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// agentClient is a client of microsandbox's agent channel.
type agentClient struct {
	t    testing.TB
	conn net.Conn
	id   uint32
	v    uint64 // its generation
	raw  net.Conn
}

// agentFrame is a frame from the server, with the values of its payload.
type agentFrame struct {
	id   uint32
	flag byte
	kind string
	p    map[string]any
}

// agent opens the agent channel of a sandbox.
func agent(t testing.TB, url, key, sandbox string) *agentClient {
	t.Helper()
	var raw net.Conn
	via := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (_ net.Conn, err error) {
		raw, err = new(net.Dialer).DialContext(ctx, network, address)
		return raw, err
	}}}
	conn, _, err := websocket.Dial(t.Context(), url+"/v1/sandboxes/"+sandbox+"/agent", &websocket.DialOptions{HTTPClient: via, HTTPHeader: http.Header{"Authorization": {"Bearer " + key}}})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(-1)
	a := &agentClient{t: t, v: 9, raw: raw, conn: websocket.NetConn(t.Context(), conn, websocket.MessageBinary)}
	t.Cleanup(func() { _ = a.conn.Close() })
	var ids [8]byte
	if _, err := io.ReadFull(a.conn, ids[:]); err != nil {
		t.Fatal(err)
	}
	first, end := binary.BigEndian.Uint32(ids[:]), binary.BigEndian.Uint32(ids[4:])
	if first == 0 || first >= end || end <= 4<<20 {
		t.Errorf("the IDs are %d to %d, which clients take for those of an old server", first, end)
	}
	if f := a.next(); f.kind != "core.ready" || f.id != 0 {
		t.Errorf("the first frame is %+v", f)
	}
	return a
}

// next returns the next frame.
func (a *agentClient) next() agentFrame {
	a.t.Helper()
	f, err := a.read()
	if err != nil {
		a.t.Fatal(err)
	}
	return f
}

func (a *agentClient) read() (agentFrame, error) {
	var head [9]byte
	if _, err := io.ReadFull(a.conn, head[:]); err != nil {
		return agentFrame{}, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:])-5)
	if _, err := io.ReadFull(a.conn, body); err != nil {
		return agentFrame{}, err
	}
	var e struct {
		V uint64 `cbor:"v"`
		T string `cbor:"t"`
		P []byte `cbor:"p"`
	}
	f := agentFrame{id: binary.BigEndian.Uint32(head[4:]), flag: head[8]}
	if f.flag == 8 {
		f.kind, f.p = fmt.Sprintf("record %v", body[:4]), msi{"data": body[12:], "offset": binary.BigEndian.Uint64(body[4:])}
		return f, nil
	}
	err := cbor.Unmarshal(body, &e)
	if e.V != 9 {
		err = fmt.Errorf("a frame of generation %d", e.V)
	}
	if f.kind = e.T; err == nil {
		var m map[any]any
		err = cbor.Unmarshal(e.P, &m)
		f.p, _ = plain(m).(map[string]any)
	}
	return f, err
}

// plain turns maps with any keys into those with texts.
func plain(v any) any {
	switch v := v.(type) {
	case map[any]any:
		m := map[string]any{}
		for k, x := range v {
			m[fmt.Sprint(k)] = plain(x)
		}
		return m
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return v
}

// send sends a frame.
func (a *agentClient) send(id uint32, kind string, payload any) {
	a.t.Helper()
	p, err := cbor.Marshal(payload)
	if err != nil {
		a.t.Fatal(err)
	}
	body, err := cbor.Marshal(map[string]any{"v": a.v, "t": kind, "p": p})
	if err != nil {
		a.t.Fatal(err)
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(5+len(body)))
	head = append(binary.BigEndian.AppendUint32(head, id), 0)
	if _, err := a.conn.Write(append(head, body...)); err != nil {
		a.t.Fatal(err)
	}
}

// start sends a request and returns its ID.
func (a *agentClient) start(kind string, payload any) uint32 {
	a.t.Helper()
	a.id++
	a.send(a.id, kind, payload)
	return a.id
}

// rest returns what comes to the end of an operation: all data of each kind, and the last frame.
func (a *agentClient) rest(id uint32) (data map[string]string, last agentFrame) {
	a.t.Helper()
	data = map[string]string{}
	for {
		f := a.next()
		if f.id != id {
			a.t.Fatalf("a frame of %d, not %d: %+v", f.id, id, f)
		}
		if b, ok := f.p["data"].([]byte); ok {
			data[f.kind] += string(b)
		} else if f.kind == "core.exec.started" {
			data[f.kind] = fmt.Sprint(f.p["pid"])
		}
		if f.flag&1 != 0 {
			return data, f
		}
	}
}

// msi is a map of a message.
type msi = map[string]any

// shell runs a script, whose standard input is empty.
func (a *agentClient) shell(script string, more msi) (out, errs string, last agentFrame) {
	a.t.Helper()
	req := msi{"cmd": "/bin/sh", "args": []string{"-c", script}}
	for k, v := range more {
		req[k] = v
	}
	data, last := a.rest(a.start("core.exec.request", req))
	return data["core.exec.stdout"], data["core.exec.stderr"], last
}

// openToWrite opens /tmp/f, which it creates, and returns the handle.
func (a *agentClient) openToWrite() (handle any) {
	a.t.Helper()
	handle, failed := a.fs("OpenFile", msi{"path": "/tmp/f", "options": msi{"write": true, "create": true}})
	if failed != "" {
		a.t.Fatal(failed)
	}
	return handle
}

// fs carries out an operation on files, and returns its result.
func (a *agentClient) fs(op string, args msi) (data any, failed string) {
	a.t.Helper()
	_, last := a.rest(a.start("core.fs.request", msi{"op": msi{op: args}}))
	if last.kind != "core.fs.response" {
		a.t.Fatalf("%s: %+v", op, last)
	}
	if last.p["ok"] != true {
		return nil, fmt.Sprint(last.p["error"])
	}
	if m, ok := last.p["data"].(map[string]any); ok {
		for _, v := range m {
			return v, ""
		}
	}
	return nil, ""
}

// agentBox makes a sandbox for a key, and opens its agent channel.
func (s *served) agentBox(url, key string) (sandpit.Sandbox, *agentClient) {
	s.t.Helper()
	c := s.with(key)
	s.t.Cleanup(func() { _ = c.Close() })
	sb := create(s.t, c, "one")
	return sb, agent(s.t, url, key, sb.ID())
}

// What clients send on the channel is acknowledged before it is answered. They do not set TCP_NODELAY, so that the last frame of
// an upload, which is small, waits for the acknowledgement of those before.
func TestAgentAcknowledges(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	c := s.with(key)
	defer c.Close()
	sb := create(t, c, "one")
	var tcp *net.TCPConn
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			tcp = conn.(*net.TCPConn)
		}
		return conn, err
	}
	conn, _, err := websocket.Dial(t.Context(), url+"/v1/sandboxes/"+sb.ID()+"/agent", &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + key}}, HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial}},
	})
	if err != nil {
		t.Fatal(err)
	}
	a := &agentClient{t: t, v: 9, conn: websocket.NetConn(t.Context(), conn, websocket.MessageBinary)}
	defer a.conn.Close()
	if _, err := io.ReadFull(a.conn, make([]byte, 8)); err != nil { // the range of IDs
		t.Fatal(err)
	}
	a.next()
	acknowledgements := func() (n uint32) {
		raw, err := tcp.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			if err != nil {
				t.Error(err)
				return
			}
			n = info.Segs_in - info.Data_segs_in
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const pings = 50
	before := acknowledgements()
	for range pings {
		id := a.start("core.ping", msi{})
		if f := a.next(); f.id != id {
			t.Fatalf("%+v", f)
		}
	}
	testkit.Until(t, "each ping was acknowledged apart from its answer", func() bool { return acknowledgements()-before >= pings })
}

// Programs run on the agent channel: with arguments, environment, directory and input, as foreground programs that are signaled
// as a group, with terminals, and those that can't be started say why.
func TestAgentPrograms(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)

	out, errs, last := a.shell(`echo "$A $PWD"; echo oops >&2; exit 3`, msi{"env": []string{"A=b"}, "cwd": "/tmp"})
	if out != "b /tmp\n" || errs != "oops\n" || last.kind != "core.exec.exited" || last.p["code"] != uint64(3) {
		t.Errorf("%q %q %+v", out, errs, last)
	}
	if out, _, last := a.shell("head -c 3000000 /dev/zero; ulimit -n", msi{"rlimits": []msi{{"resource": "nofile", "soft": 64, "hard": 64}}}); len(out) != 3000003 || !strings.HasSuffix(out, "\x0064\n") {
		t.Errorf("%d bytes, %+v", len(out), last)
	}
	for name, x := range map[string]struct {
		req        msi
		kind, text string
	}{
		"missing":          {msi{"cmd": "nonesuch"}, "not_found", `"nonesuch" was not found in PATH`},
		"not executable":   {msi{"cmd": "/etc/passwd"}, "permission_denied", "permission denied"},
		"no directory":     {msi{"cmd": "true", "cwd": "/nonesuch"}, "bad_cwd", "no such file"},
		"no user":          {msi{"cmd": "true", "user": "nonesuch"}, "user_setup_failed", ""},
		"a NUL":            {msi{"cmd": "true", "args": []string{"a\x00b"}}, "bad_args", "NUL"},
		"unknown limit":    {msi{"cmd": "true", "rlimits": []msi{{"resource": "x", "soft": 1, "hard": 1}}}, "resource_limit", `"x"`},
		"soft above hard":  {msi{"cmd": "true", "rlimits": []msi{{"resource": "nofile", "soft": 9, "hard": 1}}}, "resource_limit", "nofile"},
		"too high a limit": {msi{"cmd": "true", "rlimits": []msi{{"resource": "memlock", "soft": 9, "hard": uint64(math.MaxUint64)}}}, "resource_limit", "the rlimit memlock is too high"},
	} {
		data, last := a.rest(a.start("core.exec.request", x.req))
		if last.kind != "core.exec.failed" || last.p["kind"] != x.kind || !strings.Contains(fmt.Sprint(last.p["message"]), x.text) || len(data) > 0 {
			t.Errorf("%s: %+v, want %s: %s", name, last, x.kind, x.text)
		}
	}

	// Input, in pieces, to its end.
	id := a.start("core.exec.request", msi{"cmd": "cat"})
	a.send(id, "core.exec.stdin", msi{"data": []byte("one ")})
	a.send(id, "core.exec.stdin", msi{"data": cbor.Tag{Number: 64, Content: []byte("two")}}) // as cbor-x does
	a.send(id, "core.exec.stdin", msi{"data": []byte{}})
	if data, last := a.rest(id); data["core.exec.stdout"] != "one two" || last.p["code"] != uint64(0) || data["core.exec.started"] == "0" {
		t.Errorf("%q %+v", data, last)
	}
	id = a.start("core.exec.request", msi{"cmd": "/bin/sh", "args": []string{"-c", "exec <&-; echo closed; sleep 1000"}})
	a.next() // started
	if f := a.next(); string(f.p["data"].([]byte)) != "closed\n" {
		t.Errorf("%+v", f)
	}
	for refused := false; !refused; { // the first input is only then on its way
		a.send(id, "core.exec.stdin", msi{"data": []byte("x")})
		ping := a.start("core.ping", msi{})
		for f := a.next(); f.id != ping; f = a.next() {
			if refused = f.kind == "core.exec.stdin.error" && f.p["errno_name"] == "EPIPE"; !refused {
				t.Fatalf("input that is closed: %+v", f)
			}
		}
	}
	// A signal overtakes input, reaches the group, and kills the tree.
	a.send(id, "core.exec.signal", msi{"signal": 15})
	if _, last := a.rest(id); last.p["code"] != uint64(128+15) {
		t.Errorf("after SIGTERM: %+v", last)
	}
	id = a.start("core.exec.request", msi{"cmd": "sleep", "args": []string{"1000"}})
	a.next()
	for range 20 {
		a.send(id, "core.exec.stdin", msi{"data": make([]byte, 32<<10)}) // which nobody reads
	}
	a.send(id, "core.exec.signal", msi{"signal": 9})
	if _, last := a.rest(id); last.p["code"] != uint64(128+9) {
		t.Errorf("after SIGKILL: %+v", last)
	}

	// A terminal.
	id = a.start("core.exec.request", msi{"cmd": "/bin/sh", "args": []string{"-c", "stty size; read x; stty size; echo $TERM"}, "tty": true, "rows": 10, "cols": 20, "env": []string{"TERM=vt100"}})
	var got string
	for !strings.Contains(got, "\n") {
		if f := a.next(); f.kind == "core.exec.stdout" {
			got += string(f.p["data"].([]byte))
		}
	}
	a.send(id, "core.exec.resize", msi{"rows": 30, "cols": 40})
	a.send(a.start("core.ping", msi{}), "core.touch", msi{})
	if f := a.next(); f.kind != "core.pong" {
		t.Errorf("%+v", f)
	}
	if f := a.next(); f.kind != "core.touched" || f.p["activity_seq"] != uint64(1) {
		t.Errorf("%+v", f)
	}
	a.send(id, "core.exec.stdin", msi{"data": []byte("\n")})
	data, _ := a.rest(id)
	if got += data["core.exec.stdout"]; !strings.HasPrefix(got, "10 20\r\n") || !strings.HasSuffix(got, "30 40\r\nvt100\r\n") {
		t.Errorf("the terminal: %q", got)
	}
}

// What waits for the standard input of a program holds up neither signals, nor other operations. A program that is slow gets all.
// One that reads nothing gets no more, and the client is told.
func TestAgentInput(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)
	sleep := func() uint32 {
		id := a.start("core.exec.request", msi{"cmd": "sleep", "args": []string{"1000"}})
		a.next() // started
		return id
	}
	killed := func(id uint32) { // its input breaks with it
		t.Helper()
		a.send(id, "core.exec.signal", msi{"signal": 9})
		if _, last := a.rest(id); last.p["code"] != uint64(128+9) {
			t.Errorf("after SIGKILL: %+v", last)
		}
	}
	one, two := sleep(), sleep()
	for range 1000 {
		a.send(one, "core.exec.stdin", msi{"data": make([]byte, 2<<10)})
	}
	a.send(two, "core.exec.stdin", msi{"data": make([]byte, 2<<20)})
	killed(two)
	killed(one)

	id := a.start("core.exec.request", msi{"cmd": "/bin/sh", "args": []string{"-c", "read x; sleep 1; echo $(wc -c)"}})
	a.send(id, "core.exec.stdin", msi{"data": []byte("x\n")})
	const size, frames = 1 << 20, 12
	for range frames {
		a.send(id, "core.exec.stdin", msi{"data": make([]byte, size)})
	}
	a.send(id, "core.exec.stdin", msi{"data": []byte{}})
	if data, last := a.rest(id); data["core.exec.stdout"] != fmt.Sprintln(size*frames) || last.p["code"] != uint64(0) {
		t.Errorf("of %d bytes, %q were read: %+v", size*frames, data["core.exec.stdout"], last)
	}

	// A signal overtakes what a program does not read.
	id = sleep()
	for range 10 {
		a.send(id, "core.exec.stdin", msi{"data": make([]byte, 1<<20)})
	}
	killed(id)

	// All inputs of a channel have a bound, behind which the client waits. No program that reads, late or all the time, loses any.
	for _, script := range []string{"wc -c", "sleep 1; wc -c"} {
		all := map[uint32]string{}
		for range 6 {
			all[a.start("core.exec.request", msi{"cmd": "/bin/sh", "args": []string{"-c", script}})] = ""
		}
		for range frames {
			for id := range all {
				a.send(id, "core.exec.stdin", msi{"data": make([]byte, size)})
			}
		}
		for id := range all {
			a.send(id, "core.exec.stdin", msi{"data": []byte{}})
		}
		for left := len(all); left > 0; {
			f := a.next()
			if data, ok := f.p["data"].([]byte); ok {
				all[f.id] += string(data)
			}
			if f.flag&1 != 0 {
				left--
			}
		}
		for id, got := range all {
			if got != fmt.Sprintln(size*frames) {
				t.Errorf("%q: of %d bytes, program %d has read %q", script, size*frames, id, got)
			}
		}
	}
	if out, _, _ := a.shell("echo alive", nil); out != "alive\n" {
		t.Errorf("after all that: %q", out)
	}
}

// Every operation on files does what it does in the real agent, and its errors have the texts that clients read.
func TestAgentFiles(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)
	do := func(want any, failed, op string, args msi) any {
		t.Helper()
		got, err := a.fs(op, args)
		if want != nil && fmt.Sprint(got) != fmt.Sprint(want) || err != failed {
			t.Errorf("%s %v: %v %q, want %v %q", op, args, got, err, want, failed)
		}
		return got
	}
	const missing = "No such file or directory (os error 2)"
	do(nil, "", "Mkdir", msi{"path": "/tmp/d/e", "mode": 0o750})
	do(nil, "", "Mkdir", msi{"path": "/tmp/d/e"})
	do("/x", "", "RealPath", msi{"path": strings.Repeat("../", 1000) + "x"})
	do(nil, "realpath: File name too long (os error 36)", "RealPath", msi{"path": strings.Repeat("../", 2000)})
	do(nil, "copy: File name too long (os error 36)", "Copy", msi{"src": strings.Repeat("../", 2000), "dst": "/tmp/x"})
	write := func(path, content string, options msi) string {
		t.Helper()
		h, err := a.fs("OpenFile", msi{"path": path, "options": options})
		if err != "" {
			return err
		}
		id := a.start("core.fs.request", msi{"op": msi{"Write": msi{"handle": h, "offset": 0, "len": len(content)}}})
		for _, part := range []string{content[:len(content)/2], content[len(content)/2:]} {
			if part != "" {
				a.send(id, "core.fs.data", msi{"data": []byte(part)})
			}
		}
		a.send(id, "core.fs.data", msi{"data": []byte{}})
		_, last := a.rest(id)
		do(nil, "", "CloseHandle", msi{"handle": h})
		if last.p["ok"] != true {
			return fmt.Sprint(last.p["error"])
		}
		return ""
	}
	read := func(path string, offset int, length any) string {
		t.Helper()
		h := do(nil, "", "OpenFile", msi{"path": path, "options": msi{"read": true}})
		data, last := a.rest(a.start("core.fs.request", msi{"op": msi{"Read": msi{"handle": h, "offset": offset, "len": length}}}))
		if last.p["ok"] != true {
			t.Errorf("reading %s: %+v", path, last)
		}
		do(nil, "", "CloseHandle", msi{"handle": h})
		do(nil, fmt.Sprintf("close: invalid handle: %v", h), "CloseHandle", msi{"handle": h})
		return data["core.fs.data"]
	}
	create := msi{"write": true, "create": true, "truncate": true}
	large := strings.Repeat("0123456789", 500_000)
	for _, content := range []string{"", "short", large, "less"} {
		if err := write("/tmp/d/f", content, create); err != "" {
			t.Errorf("writing %d bytes: %s", len(content), err)
		}
		if got := read("/tmp/d/f", 0, nil); got != content {
			t.Errorf("wrote %d bytes, read %d", len(content), len(got))
		}
	}
	if got := read("/tmp/d/f", 1, 2); got != "es" {
		t.Errorf("a part: %q", got)
	}
	if err := write("/tmp/d/f", "+", msi{"append": true}); err != "" || read("/tmp/d/f", 0, nil) != "less+" {
		t.Errorf("appending: %s", err)
	}
	for options, want := range map[string]string{"create_new": "open: File exists (os error 17)", "read": "open: " + missing, "write": "open: " + missing} {
		path := "/tmp/d/none"
		if options == "create_new" {
			path = "/tmp/d/f"
		}
		if _, err := a.fs("OpenFile", msi{"path": path, "options": msi{options: true, "write": true}}); err != want {
			t.Errorf("%s: %q, want %q", options, err, want)
		}
	}
	do(nil, "open: Is a directory (os error 21)", "OpenFile", msi{"path": "/tmp/d", "options": create})
	do(nil, "open: "+missing, "OpenFile", msi{"path": "/tmp/none/x", "options": create})

	do(nil, "", "Symlink", msi{"target": "f", "link_path": "/tmp/d/l"})
	do("f", "", "ReadLink", msi{"path": "/tmp/d/l"})
	do("/tmp/d/f", "", "RealPath", msi{"path": "/tmp/../tmp/d/e/.././l"})
	do("/tmp/d/new", "", "RealPath", msi{"path": "tmp/d/new"})
	do(nil, "realpath: "+missing, "RealPath", msi{"path": "/tmp/none/new"})
	do(nil, "", "Symlink", msi{"target": "loop", "link_path": "/tmp/d/loop"})
	do(nil, "realpath: Too many levels of symbolic links (os error 40)", "RealPath", msi{"path": "/tmp/d/loop"})
	do(nil, "", "Remove", msi{"path": "/tmp/d/loop"})
	i := do(nil, "", "Stat", msi{"path": "/tmp/d/l", "follow_symlink": true}).(map[string]any)
	if i["kind"] != "file" || i["size"] != uint64(5) || i["path"] != "/tmp/d/l" || i["mode"] != uint64(0o100644) {
		t.Errorf("%v", i)
	}
	if i := do(nil, "", "Stat", msi{"path": "/tmp/d/l", "follow_symlink": false}).(map[string]any); i["kind"] != "symlink" {
		t.Errorf("%v", i)
	}
	do(nil, "stat: "+missing, "Stat", msi{"path": "/tmp/none", "follow_symlink": true})
	do(nil, "", "SetStat", msi{"path": "/tmp/d/f", "follow_symlink": true, "attrs": msi{"mode": 0o600}})
	if i := do(nil, "", "Stat", msi{"path": "/tmp/d/f", "follow_symlink": true}).(map[string]any); i["mode"] != uint64(0o100600) {
		t.Errorf("%v", i)
	}
	for _, part := range []struct {
		at   uint64
		text string
		want string
	}{{1, "E", "lEss+"}, {7, "end", "lEss+\x00\x00end"}, {0, "L", "LEss+\x00\x00end"}} {
		h := do(nil, "", "OpenFile", msi{"path": "/tmp/d/f", "options": msi{"write": true}})
		id := a.start("core.fs.request", msi{"op": msi{"Write": msi{"handle": h, "offset": part.at, "len": len(part.text)}}})
		a.send(id, "core.fs.data", msi{"data": []byte(part.text)})
		a.send(id, "core.fs.data", msi{"data": []byte{}})
		if _, last := a.rest(id); last.p["ok"] != true || read("/tmp/d/f", 0, nil) != part.want {
			t.Errorf("writing at %d: %v, and the file is %q", part.at, last.p, read("/tmp/d/f", 0, nil))
		}
		do(nil, "", "CloseHandle", msi{"handle": h})
	}
	h := do(nil, "", "OpenFile", msi{"path": "/tmp/d/f", "options": msi{"write": true}})
	do(nil, "", "FSetStat", msi{"handle": h, "attrs": msi{"size": 5, "mtime": -2, "atime": 3}})
	do(nil, "", "SetStat", msi{"path": "/tmp/d/l", "follow_symlink": false, "attrs": msi{"mtime": 77}})
	do(nil, "setstat: setattr /tmp/d/l: operation not supported", "SetStat", msi{"path": "/tmp/d/l", "follow_symlink": false, "attrs": msi{"size": 0}})
	do(nil, "setstat: setattr /tmp/d/f: the ids of a sandbox end at 65534", "SetStat", msi{"path": "/tmp/d/f", "follow_symlink": true, "attrs": msi{"uid": 65535}})
	do(nil, "setstat: Permission denied (os error 13)", "SetStat", msi{"path": "/tmp/d/f", "follow_symlink": true, "attrs": msi{"uid": 1234}})
	do(nil, "", "SetStat", msi{"path": "/tmp/d/f", "follow_symlink": true, "attrs": msi{"mode": 0o640, "uid": 1000, "gid": 1000, "mtime": -2}})
	if i := do(nil, "", "FStat", msi{"handle": h}).(map[string]any); i["size"] != uint64(5) || i["mtime"] != int64(-2) || i["mode"] != uint64(0o100640) {
		t.Errorf("%v", i)
	}
	if i := do(nil, "", "Stat", msi{"path": "/tmp/d/l", "follow_symlink": false}).(map[string]any); i["mtime"] != uint64(77) {
		t.Errorf("%v", i)
	}
	names := func(list any) (all string) {
		for _, e := range list.([]any) {
			all += e.(map[string]any)["path"].(string) + " " + e.(map[string]any)["kind"].(string) + "\n"
		}
		return all
	}
	const all = "/tmp/d/e dir\n/tmp/d/f file\n/tmp/d/l symlink\n"
	if got := names(do(nil, "", "List", msi{"path": "/tmp/d"})); got != all {
		t.Error(got)
	}
	h = do(nil, "", "OpenDir", msi{"path": "/tmp/d"})
	var got string
	for n := 1; n > 0; {
		part := do(nil, "", "ReadDir", msi{"handle": h, "limit": 2})
		got, n = got+names(part), len(part.([]any))
	}
	if got != all {
		t.Error(got)
	}
	do(nil, fmt.Sprintf("read: handle %v is a directory", h), "Read", msi{"handle": h, "offset": 0})
	do(nil, "readdir: Not a directory (os error 20)", "List", msi{"path": "/tmp/d/f"})

	do(nil, "", "Copy", msi{"src": "/tmp/d/l", "dst": "/tmp/d/c"})
	do(nil, "", "Rename", msi{"src": "/tmp/d/c", "dst": "/tmp/d/r"})
	if got := read("/tmp/d/r", 0, nil); got != "LEss+" {
		t.Errorf("the copy: %q", got)
	}
	do(nil, "remove: Is a directory (os error 21)", "Remove", msi{"path": "/tmp/d"})
	do(nil, "remove: "+missing, "Remove", msi{"path": "/tmp/none"})
	do(nil, "remove_dir: Not a directory (os error 20)", "RemoveDir", msi{"path": "/tmp/d/f", "recursive": true})
	do(nil, "remove_dir: Directory not empty (os error 39)", "RemoveDir", msi{"path": "/tmp/d", "recursive": false})
	do(nil, "", "Remove", msi{"path": "/tmp/d/l"})
	do(nil, "", "RemoveDir", msi{"path": "/tmp/d", "recursive": true})
	do(nil, "remove_dir: "+missing, "RemoveDir", msi{"path": "/tmp/d", "recursive": true})
	do(nil, `the operation "Mount" is not supported`, "Mount", msi{})
}

// Ports of the sandbox can be connected to on the agent channel; others can't.
func TestAgentPorts(t *testing.T) {
	testkit.NeedProgram(t, "python3")
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)
	id := a.start("core.exec.request", msi{"cmd": "python3", "args": []string{"-c", `
import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
c = s.accept()[0]
data = b""
while part := c.recv(1 << 16): data += part
c.sendall(data[::-1])
`}})
	a.next() // started
	f := a.next()
	if f.kind != "core.exec.stdout" {
		t.Fatalf("%+v", f)
	}
	var port int
	if _, err := fmt.Sscan(string(f.p["data"].([]byte)), &port); err != nil {
		t.Fatal(err)
	}
	tcp := a.start("core.tcp.connect", msi{"host": "localhost", "port": port})
	if f := a.next(); f.kind != "core.tcp.connected" {
		t.Fatalf("%+v", f)
	}
	a.send(tcp, "core.tcp.data", msi{"data": []byte("abc")})
	a.send(tcp, "core.tcp.eof", msi{})
	seen := map[string]string{}
	for range 4 { // data, eof, closed and the end of the program
		f := a.next()
		data, _ := f.p["data"].([]byte)
		seen[f.kind] += string(data)
	}
	if seen["core.tcp.data"] != "cba" || len(seen) != 4 {
		t.Errorf("%q, and the program %d", seen, id)
	}
	for host, want := range map[string]string{"127.0.0.1": "", "example.com": "only ports of the sandbox itself"} {
		if _, last := a.rest(a.start("core.tcp.connect", msi{"host": host, "port": 1})); last.kind != "core.tcp.failed" || !strings.Contains(fmt.Sprint(last.p["error"]), want) {
			t.Errorf("%s: %+v", host, last)
		}
	}
	if _, last := a.rest(a.start("core.tcp.connect", msi{"host": "localhost", "port": 0})); last.kind != "core.tcp.failed" {
		t.Errorf("%+v", last)
	}

	// A port that says and reads nothing holds nothing up when the client leaves.
	a.start("core.exec.request", msi{"cmd": "python3", "args": []string{"-c", `
import socket, time
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
time.sleep(1000)
`}})
	a.next()
	if _, err := fmt.Sscan(string(a.next().p["data"].([]byte)), &port); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		tcp = a.start("core.tcp.connect", msi{"host": "localhost", "port": port})
		if f := a.next(); f.kind != "core.tcp.connected" {
			t.Fatalf("%+v", f)
		}
	}
	if n := s.figure("sandpit_open_streams"); n != 3 {
		t.Errorf("a channel with two connections is %d streams", n)
	}
	for range 8 {
		a.send(tcp, "core.tcp.data", msi{"data": make([]byte, 1<<20)})
	}
	_ = a.conn.Close()
	testkit.Until(t, "the channel has ended", func() bool { return s.figure("sandpit_open_streams") == 0 })
}

// record sends a record of a bulk transfer.
func (a *agentClient) record(id uint32, kind byte, offset int, data string) {
	a.t.Helper()
	b := binary.BigEndian.AppendUint32(nil, uint32(5+12+len(data)))
	b = append(binary.BigEndian.AppendUint32(b, id), 8, kind, 1, 0, 0)
	if _, err := a.conn.Write(append(binary.BigEndian.AppendUint64(b, uint64(offset)), data...)); err != nil {
		a.t.Fatal(err)
	}
}

// offer is that of a bulk transfer.
func offer(record, credit int) msi {
	return msi{"format": 1, "max_record_payload": record, "guest_to_host_credit_limit": credit}
}

// Clients of generation 8 and later transfer files and the bytes of connections as records, as far as the receiver gives credit.
func TestAgentBulk(t *testing.T) {
	testkit.NeedProgram(t, "python3")
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)
	open := func(options msi) any {
		t.Helper()
		h, err := a.fs("OpenFile", msi{"path": "/tmp/f", "options": options})
		if err != "" {
			t.Fatal(err)
		}
		return h
	}
	write := func(length any, bulk msi) uint32 {
		t.Helper()
		h := open(msi{"write": true, "create": true, "truncate": true})
		return a.start("core.fs.request", msi{"op": msi{"Write": msi{"handle": h, "offset": 0, "len": length}}, "bulk": bulk})
	}
	content := strings.Repeat("0123456789", 300_000)
	id := write(len(content), offer(3<<20, 0))
	f := a.next()
	if f.kind != "core.bulk.accepted" || fmt.Sprint(f.p) != "map[flows:1 format:1 guest_to_host_credit_limit:0 host_to_guest_credit_limit:1048576 kind:1 max_record_payload:262144]" {
		t.Fatalf("the offer is answered with %+v", f)
	}
	for at, credit := 0, 1<<20; at < len(content); {
		if n := min(credit-at, 256<<10, len(content)-at); n > 0 {
			a.record(id, 1, at, content[at:at+n])
			at += n
			continue
		}
		if f := a.next(); f.kind != "core.bulk.credit" || f.p["kind"] != uint64(1) || f.p["flow"] != uint64(1) {
			t.Fatalf("%+v", f)
		} else {
			credit = int(f.p["credit_limit"].(uint64))
		}
	}
	a.send(id, "core.bulk.finish", msi{"kind": 1, "flow": 1, "final_offset": len(content)})
	if _, last := a.rest(id); last.p["ok"] != true {
		t.Errorf("%+v", last)
	}

	// Reading stops where the credit ends.
	id = a.start("core.fs.request", msi{"op": msi{"Read": msi{"handle": open(msi{"read": true}), "offset": 0}}, "bulk": offer(100_000, 1<<20)})
	if f := a.next(); f.kind != "core.bulk.accepted" || f.p["max_record_payload"] != uint64(100_000) || f.p["flows"] != uint64(2) {
		t.Fatalf("%+v", f)
	}
	var got strings.Builder
	for credit := 1 << 20; got.Len() < len(content); {
		f := a.next()
		data, _ := f.p["data"].([]byte)
		if f.kind != "record [1 2 0 0]" || f.p["offset"] != uint64(got.Len()) || len(data) > 100_000 || got.Len()+len(data) > credit {
			t.Fatalf("%s at %v of %d bytes", f.kind, f.p["offset"], len(data))
		}
		if got.Write(data); got.Len() == credit {
			ping := a.start("core.ping", msi{})
			if f := a.next(); f.id != ping {
				t.Errorf("without credit comes %+v", f)
			}
			credit += 1 << 20
			a.send(id, "core.bulk.credit", msi{"kind": 1, "flow": 2, "consumed_offset": got.Len(), "credit_limit": credit})
		}
	}
	if f := a.next(); f.kind != "core.bulk.finish" || f.p["final_offset"] != uint64(len(content)) || f.p["flow"] != uint64(2) {
		t.Errorf("%+v", f)
	}
	if _, last := a.rest(id); last.p["ok"] != true || got.String() != content {
		t.Errorf("%+v, and %d bytes", last, got.Len())
	}

	// What breaks the rules, or is not wanted any more, ends the transfer alone.
	fails := func(what, want string, id uint32) {
		t.Helper()
		if _, last := a.rest(id); last.p["ok"] != false || !strings.Contains(fmt.Sprint(last.p["error"]), want) {
			t.Errorf("%s: %+v", what, last)
		}
	}
	for name, bad := range map[string]msi{"format": {"format": 2, "max_record_payload": 1 << 20, "guest_to_host_credit_limit": 0}, "records": offer(1, 0), "credit": offer(1<<20, 1), "too much credit": offer(1<<20, 1<<30)} {
		fails(name, "offer of a bulk transfer is not valid", write(nil, bad))
	}
	for name, send := range map[string]func(id uint32){
		"a gap":        func(id uint32) { a.record(id, 1, 1, "x") },
		"another kind": func(id uint32) { a.record(id, 2, 0, "x") },
		"too large":    func(id uint32) { a.record(id, 1, 0, strings.Repeat("x", 1<<20)) },
		"another end":  func(id uint32) { a.send(id, "core.bulk.finish", msi{"kind": 1, "flow": 1, "final_offset": 7}) },
		"credit unasked": func(id uint32) {
			a.send(id, "core.bulk.credit", msi{"kind": 1, "flow": 2, "consumed_offset": 1, "credit_limit": 9})
		},
	} {
		id := write(nil, offer(1<<20, 0))
		a.next()
		send(id)
		fails(name, "the bulk transfer is not valid", id)
	}
	id = write(nil, offer(1<<20, 0))
	a.next()
	a.send(id, "core.bulk.cancel", msi{"kind": 1, "reason": 1, "message": "x"})
	fails("a cancellation", "the client has ended the transfer", id)
	id = write(5, offer(1<<20, 0))
	a.next()
	a.record(id, 1, 0, "four")
	a.send(id, "core.bulk.finish", msi{"kind": 1, "flow": 1, "final_offset": 4})
	fails("less than was said", "write length mismatch: expected 5, received 4", id)

	// A connection to a port.
	a.start("core.exec.request", msi{"cmd": "python3", "args": []string{"-c", `
import signal, socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
c = s.accept()[0]
data = b""
while part := c.recv(1 << 16): data += part
c.sendall(data[::-1])
c.close()
c = s.accept()[0]
signal.pause()
`}})
	a.next() // started
	var port int
	if _, err := fmt.Sscan(string(a.next().p["data"].([]byte)), &port); err != nil {
		t.Fatal(err)
	}
	id = a.start("core.tcp.connect", msi{"host": "localhost", "port": port, "bulk": offer(256<<10, 1<<20)})
	for _, want := range []string{"core.tcp.connected", "core.bulk.accepted"} {
		if f := a.next(); f.kind != want {
			t.Fatalf("%+v, want %s", f, want)
		}
	}
	a.record(id, 2, 0, "ab")
	a.record(id, 2, 2, "c")
	a.send(id, "core.bulk.finish", msi{"kind": 2, "flow": 1, "final_offset": 3})
	for _, want := range []string{"record [2 2 0 0]", "core.bulk.finish", "core.tcp.closed"} {
		if f := a.next(); f.kind != want || f.p["data"] != nil && string(f.p["data"].([]byte)) != "cba" {
			t.Errorf("%+v, want %s", f, want)
		}
	}
	id = a.start("core.tcp.connect", msi{"host": "localhost", "port": port, "bulk": offer(256<<10, 1<<20)})
	a.next()
	a.next()
	a.send(id, "core.tcp.close", msi{})
	if _, last := a.rest(id); last.kind != "core.tcp.closed" {
		t.Errorf("%+v", last)
	}
	if log := s.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("what clients send is an error of the server:\n%s", log)
	}
}

// What may wait of files is charged to the key, also where no credit is given. It takes no room of frames: the channel goes on, and what
// has no room is refused.
func TestAgentTransfersAreCharged(t *testing.T) {
	const all = 250 // at once
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)
	a.shell("truncate -s 3M /tmp/f", nil)
	h, err := a.fs("OpenFile", msi{"path": "/tmp/f", "options": msi{"read": true, "write": true}})
	if err != "" {
		t.Fatal(err)
	}
	pad := make([]byte, 4<<20-1024)
	for name, x := range map[string]struct {
		offer  msi
		fewest int // that have room
		most   int
		end    func(id uint32) // what ends a transfer
	}{
		"Read": {offer: offer(3<<20, 1), fewest: 150, most: 256 << 20 / (1<<20 + 256<<10), end: func(id uint32) {
			a.send(id, "core.bulk.cancel", msi{"kind": 1, "reason": 1, "message": "x"})
		}},
		"Write": {offer: offer(3<<20, 0), fewest: 100, most: 256 << 20 / (2 << 20), end: func(id uint32) {
			a.record(id, 1, 0, "x")
			a.send(id, "core.bulk.finish", msi{"kind": 1, "flow": 1, "final_offset": 1})
		}},
	} {
		for range 2 { // all comes back
			for range all {
				a.start("core.fs.request", msi{"op": msi{name: msi{"handle": h, "offset": 0}}, "bulk": x.offer})
			}
			var open []uint32
			for refused := 0; len(open)+refused < all; {
				switch f := a.next(); f.kind {
				case "core.bulk.accepted":
					open = append(open, f.id)
				case "core.fs.response":
					if refused++; !strings.Contains(fmt.Sprint(f.p["error"]), "too many files and connections are being transferred") {
						t.Errorf("%s: %+v", name, f)
					}
				case "record [1 2 0 0]":
				default:
					t.Errorf("%s: %+v", name, f)
				}
			}
			if len(open) < x.fewest || len(open) > x.most {
				t.Errorf("%s: %d at once, want %d to %d", name, len(open), x.fewest, x.most)
			}
			ping := a.start("core.ping", msi{"x": pad})
			for f := a.next(); f.id != ping; f = a.next() {
				if f.kind != "record [1 2 0 0]" {
					t.Errorf("%s: %+v", name, f)
				}
			}
			for _, id := range open {
				x.end(id)
			}
			for range open {
				f := a.next()
				for f.flag&1 == 0 {
					f = a.next()
				}
				if ok := name == "Write"; f.p["ok"] != ok {
					t.Errorf("%s: %+v", name, f)
				}
			}
		}
	}
	if log := s.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("what clients send is an error of the server:\n%s", log)
	}
}

// When a client resets its connection, the log of the server has no error.
func TestAgentReset(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)
	a.shell("truncate -s 1G /tmp/f", nil)
	h, failed := a.fs("OpenFile", msi{"path": "/tmp/f", "options": msi{"read": true}})
	if failed != "" {
		t.Fatal(failed)
	}
	a.start("core.fs.request", msi{"op": msi{"Read": msi{"handle": h, "offset": 0}}})
	if f := a.next(); f.kind != "core.fs.data" {
		t.Fatalf("%+v", f)
	}
	if err := a.raw.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	_ = a.raw.Close()
	testkit.Until(t, "the channel has ended", func() bool { return s.figure("sandpit_open_streams") == 0 })
	if log := s.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("a client that goes is an error of the server:\n%s", log)
	}
}

// The server says that it speaks generation 9. Clients of each generation from 5 on get what their generation has; what generation 9
// has between a virtual machine and its host is refused by name.
func TestAgentGenerations(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	sb, _ := s.agentBox(url, key)
	for v := uint64(5); v <= 9; v++ {
		a := agent(t, url, key, sb.ID())
		a.v = v
		if out, _, last := a.shell("echo $0", nil); out != "/bin/sh\n" || last.p["code"] != uint64(0) {
			t.Errorf("generation %d: %q %+v", v, out, last)
		}
		if _, err := a.fs("Stat", msi{"path": "/", "follow_symlink": true}); err != "" {
			t.Errorf("generation %d: %s", v, err)
		}
		for _, kind := range []string{"core.workload.freeze", "core.root_disk.grow", "core.of.the.future"} {
			if f, last := a.rest(a.start(kind, msi{})); last.kind != "core.error" || last.p["kind"] != "unsupported_message_type" || last.p["offending_type"] != kind {
				t.Errorf("generation %d: %v %+v", v, f, last)
			}
		}
		_ = a.conn.Close()
	}
}

// What is done on an agent channel is recorded as requests are, before it is done, and needs the sandbox's own key.
func TestAgentIsAudited(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	sb, a := s.agentBox(url, key)
	a.shell("true", nil)
	a.fs("Remove", msi{"path": "/tmp/none"})
	a.fs("List", msi{"path": "/"})
	a.rest(a.start("core.tcp.connect", msi{"host": "localhost", "port": 1}))
	_ = a.conn.Close()
	admin := s.unix()
	defer admin.Close()
	for action, want := range map[string]string{
		"exec": `program "/bin/sh" with 2 arguments`, "changeFiles": "Remove /tmp/none", "readFiles": "List /", "connectPort": "localhost:1", "agent": "",
	} {
		var list v1.AuditList
		testkit.Until(t, action+" is recorded", func() bool {
			list = v1.AuditList{}
			err := admin.Call(t.Context(), "GET", "/v1/audit?action=microsandbox."+action, nil, &list)
			return err == nil && slices.ContainsFunc(list.Entries, func(e v1.Audit) bool { return e.Phase == "end" })
		})
		e := list.Entries[0]
		if wantEntries := map[bool]int{true: 2, false: 1}[action == "exec" || action == "changeFiles" || action == "connectPort"]; len(list.Entries) != wantEntries || e.Detail != want || e.Sandbox != sb.ID() || e.Namespace != "microsandbox" {
			t.Errorf("%s: %+v", action, list.Entries)
		}
	}
	for name, x := range map[string]struct {
		key, sandbox string
		want         int
	}{
		"another key": {s.keyOf("other", ""), sb.ID(), 404}, "no key": {"", sb.ID(), 401}, "its name": {key, sb.Name(), 404}, "none": {key, "nonesuch", 404},
	} {
		_, resp, err := websocket.Dial(t.Context(), url+"/v1/sandboxes/"+x.sandbox+"/agent", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + x.key}}})
		if err == nil || resp.StatusCode != x.want {
			t.Errorf("%s: %v %v", name, resp, err)
		}
	}
	if status, got, _ := s.get("GET", url+"/v1/sandboxes/"+sb.ID()+"/agent", key, ""); status != 426 {
		t.Errorf("without a WebSocket: %d %s", status, got)
	}
}

// A program is killed with all that it started when its client goes, or its key ends.
func TestAgentEnds(t *testing.T) {
	s := newServed(t)
	url, _ := s.withMicrosandbox()
	sb, a := s.agentBox(url, s.makeKey(v1.NewKey{Namespace: "microsandbox", Format: "microsandbox"}).Secret)
	made := s.makeKey(v1.NewKey{Namespace: "microsandbox", Format: "microsandbox"}) // that of the channels
	// begin runs a program with one in a session of its own, and returns what checks that both have ended.
	begin := func(a *agentClient, name string) (ended func(t *testing.T, cause string)) {
		t.Helper()
		a.start("core.exec.request", msi{"cmd": "/bin/sh", "args": []string{"-c", "setsid sleep 9" + name + " & echo ready; sleep 8" + name}})
		a.next()
		if f := a.next(); f.kind != "core.exec.stdout" {
			t.Fatalf("%+v", f)
		}
		count := func() string {
			out, err := sandpit.Shell(t.Context(), sb, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep [89]"+name+" ' | sort -u | wc -l")
			return fmt.Sprint(strings.TrimSpace(string(out.Stdout)), err)
		}
		testkit.Until(t, "both run", func() bool { return count() == "2<nil>" }, count)
		return func(t *testing.T, cause string) {
			t.Helper()
			testkit.Until(t, "both have ended with "+cause, func() bool { return count() == "0<nil>" }, count)
			testkit.Until(t, "the program is not in the background", func() bool {
				all, err := sb.Processes(t.Context())
				return err == nil && !slices.ContainsFunc(all, func(i sandpit.ProcessInfo) bool {
					return i.Background || i.Result == nil && slices.Contains(i.Argv, "/bin/sh")
				})
			})
		}
	}

	ended := begin(a, "001")
	_ = a.conn.Close()
	ended(t, "the closed channel")
	a = agent(t, url, made.Secret, sb.ID())
	ended = begin(a, "002")
	_ = a.raw.(*net.TCPConn).SetLinger(0)
	_ = a.raw.Close()
	ended(t, "the connection")

	b := agent(t, url, made.Secret, sb.ID())
	ended = begin(b, "003")
	admin := s.unix()
	defer admin.Close()
	if err := admin.Call(t.Context(), "DELETE", "/v1/keys/"+made.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	_ = b.conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	if f, err := b.read(); err == nil {
		t.Errorf("after its key was revoked: %+v", f)
	}
	ended(t, "its key")
}

// A program goes on when the server ends, or is followed by another one.
func TestAgentProgramsOutliveTheServer(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	sb, a := s.agentBox(url, key)
	a.start("core.exec.request", msi{"cmd": "/bin/sh", "args": []string{"-c", "echo ready; until [ -e /tmp/go ]; do sleep 0.05; done; touch /tmp/done"}})
	a.next()
	a.next()
	id := sb.ID()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s.start()
	c := s.with(key)
	defer c.Close()
	again, err := c.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := again.Processes(t.Context()); err != nil || len(all) != 1 || !all[0].Background || all[0].Result != nil {
		t.Errorf("after the restart: %+v, %v", all, err)
	}
	if err := sandpit.WriteFile(t.Context(), again, "/tmp/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "it goes on", func() bool {
		_, err := again.Files().Stat(context.Background(), "/tmp/done")
		return err == nil
	})
}

// Frames of any bytes, in any order, harm nobody: what can't be understood is answered with an error, or ends the channel.
func TestAgentHostile(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	sb, a := s.agentBox(url, key)
	random := rand.New(rand.NewPCG(1, 2))
	kinds := []string{
		"core.exec.request", "core.exec.stdin", "core.exec.signal", "core.exec.resize", "core.fs.request", "core.fs.data", "core.tcp.connect", "core.tcp.data", "core.tcp.eof", "core.tcp.close",
		"core.ping", "core.touch", "core.error", "core.bulk.credit", "core.bulk.finish", "core.bulk.cancel", "core.bulk.accepted", "core.exec.exited", "x", "",
	}
	payloads := []any{
		nil, 7, "text", []byte("bytes"),
		msi{},
		msi{"data": "text"},
		msi{"data": []byte("x")},
		msi{"cmd": 7},
		msi{"cmd": "true"},
		msi{"cmd": "true", "tty": true, "rows": 0},
		msi{"signal": -1},
		msi{"op": msi{}},
		msi{"op": msi{"Stat": msi{}, "List": msi{}}},
		msi{"op": msi{"Write": msi{"handle": 9}}},
		msi{"op": msi{"OpenFile": msi{"path": "/tmp/x", "options": msi{"write": true, "create": true}}}},
		msi{"op": msi{"Write": msi{"handle": 1, "offset": 0}}},
		msi{"op": msi{"Read": msi{"handle": 1, "offset": uint64(1) << 63}}},
		msi{"op": 7},
		msi{"host": "localhost", "port": 1},
		msi{"host": "x", "port": 70000},
	}
	go func() { // so that the server is not held up
		for {
			if _, err := a.read(); err != nil {
				return
			}
		}
	}()
	for range 300 {
		a.send(random.Uint32N(8), kinds[random.IntN(len(kinds))], payloads[random.IntN(len(payloads))])
	}
	_ = a.conn.Close()
	for name, raw := range map[string][]byte{
		"too long":    {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0},
		"too short":   {0, 0, 0, 4, 0, 0, 0, 1, 0},
		"HTTP":        []byte("GET / HTTP/1.1\r\n\r\n"),
		"half a head": {0, 0},
	} {
		b := agent(t, url, key, sb.ID())
		if _, err := b.conn.Write(raw); err != nil {
			t.Fatal(err)
		}
		if name != "half a head" {
			f, err := b.read()
			if ended := (websocket.CloseError{}); !errors.As(err, &ended) || ended.Code != websocket.StatusProtocolError || ended.Reason != "invalid" {
				t.Errorf("%s: %+v, %v", name, f, err)
			}
		}
		_ = b.conn.Close()
	}
	b := agent(t, url, key, sb.ID())
	for name, x := range map[string]struct {
		frame []byte
		want  string
	}{
		"not CBOR":          {[]byte{0, 0, 0, 6, 0, 0, 0, 1, 0, 0xff}, "malformed_message"},
		"half a record":     {[]byte{0, 0, 0, 6, 0, 0, 0, 1, 8, 1}, "malformed_message"},
		"a last record":     {[]byte{0, 0, 0, 6, 0, 0, 0, 1, 9, 1}, "invalid_flags"},
		"a field twice":     {[]byte("\x00\x00\x00\x0c\x00\x00\x00\x01\x00\xa2\x61v\x01\x61v\x01"), "malformed_message"},
		"without a type":    {[]byte("\x00\x00\x00\x09\x00\x00\x00\x01\x00\xa1\x61v\x01"), "malformed_message"},
		"of unknown length": {[]byte("\x00\x00\x00\x0a\x00\x00\x00\x01\x00\xbf\x61v\x01\xff"), "malformed_message"},
	} {
		if _, err := b.conn.Write(x.frame); err != nil {
			t.Fatal(err)
		}
		if f := b.next(); f.kind != "core.error" || f.p["kind"] != x.want {
			t.Errorf("%s: %+v, want %s", name, f, x.want)
		}
	}
	if out, _, _ := b.shell("echo alive", nil); out != "alive\n" {
		t.Errorf("after all that: %q", out)
	}
	testkit.Until(t, "the other channels have ended", func() bool { return s.figure("sandpit_open_streams") == 1 })
	if log := s.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("what clients send is an error of the server:\n%s", log)
	}
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/fxamacker/cbor/v2"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// anyKey is the only caller, whatever its key is.
type anyKey struct{}

func (anyKey) Verify(context.Context, string) (gate.Caller, error) {
	return gate.Caller{Key: "k", Namespace: "n"}, nil
}

// journal is an audit in memory.
type journal struct {
	mu  sync.Mutex
	all []string // phases and actions
}

func (j *journal) Append(_ context.Context, e audit.Record) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, e.Phase+" "+e.Action+" "+e.Code)
	return audit.MaxEntry, nil
}

func (j *journal) count(line string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, one := range j.all {
		if one == line {
			n++
		}
	}
	return n
}

// serve serves channels, each by handle, until the test ends.
func serve(t *testing.T, opt gate.Options, s dialect.Server, handle func(*channel)) (*gate.Gate, string) {
	t.Helper()
	routes := Routes(s, "m")
	for i := range routes {
		routes[i].ID = "m." + routes[i].ID
	}
	at := slices.IndexFunc(routes, func(r gate.Route) bool { return r.Path != "" })
	routes[at].Handle = func(c *gate.Call) error {
		conn, err := stream.Upgrade(c, "")
		if err != nil {
			return err
		}
		handle(newChannel(c, s, nil, conn, "m.")) // it has no sandbox, so operations on it panic
		return nil
	}
	opt.Keys = anyKey{}
	g := gate.New(opt)
	server := httptest.NewUnstartedServer(nil)
	g.Configure(server.Config, g.Handler(gate.Dialect{Routes: routes, Credential: func(*http.Request) (string, bool) { return "k", false }, Fail: func(*gate.Call, gate.Failure) {}}))
	server.Start()
	t.Cleanup(server.Close)
	return g, server.URL + "/v1/sandboxes/s/agent"
}

// A transfer whose client gives no credit for the rest ends.
func TestBulkEndsWithoutCredit(t *testing.T) {
	ended := make(chan error, 1)
	_, url := serve(t, gate.Options{Audit: new(journal), Limits: gate.Limits{Stall: time.Second}}, dialect.Server{}, func(ch *channel) {
		op := &operation{ch: ch, id: firstID}
		b, err := op.accept(&bulkOffer{Format: bulkFormat, Record: minBulkRecord, Credit: 1}, bulkFiles, bulkOut, 0)
		if err == nil {
			var n int
			if n, err = b.Write([]byte("more than one byte")); n != 1 {
				t.Errorf("%d bytes are sent for a credit of one", n)
			}
		}
		ended <- err
	})
	conn, _, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	if err := <-ended; !errors.Is(err, errNoCredit) {
		t.Errorf("the transfer ends with %v", err)
	}
}

// A panic in an operation ends its channel, with a reason, and the operation. The server goes on.
func TestOperationsPanic(t *testing.T) {
	log, record := new(testkit.Buffer), new(journal)
	s := dialect.Server{Log: slog.New(slog.NewTextHandler(log, nil))}
	g, url := serve(t, gate.Options{Audit: record}, s, (*channel).serve)
	for n := range 2 {
		conn, resp, err := websocket.Dial(t.Context(), url, nil)
		if err != nil {
			t.Fatal(err, resp)
		}
		payload, err := cbor.Marshal(map[string]any{"cmd": "true"})
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Write(t.Context(), websocket.MessageBinary, appendFrame(nil, firstID, 0, kindExec, payload)); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			var r io.Reader
			if _, r, err = conn.Reader(t.Context()); err == nil {
				_, err = io.Copy(io.Discard, r)
			}
		}
		var end websocket.CloseError
		if !errors.As(err, &end) || end.Code != websocket.StatusInternalError || end.Reason != "internal" {
			t.Errorf("the channel ends with %v", err)
		}
		testkit.Until(t, "the end of the operation is recorded", func() bool { return record.count("end m.exec internal") == n+1 })
	}
	if err := g.Close(t.Context()); err != nil {
		t.Errorf("closing: %v", err)
	}
	if n := strings.Count(log.String(), "an operation on an agent channel panicked"); n != 2 {
		t.Errorf("the log has %d panics: %s", n, log)
	}
}

// crowded is a directory with many files of long names.
type crowded struct {
	sandpit.Files
	files int
}

func (d crowded) ReadDir(_ context.Context, _, after string, limit int) (infos []sandpit.FileInfo, more bool, err error) {
	at, _ := strconv.Atoi(strings.TrimLeft(after, "x")) // 0 at the beginning
	for len(infos) < limit && at < d.files {
		at++
		infos = append(infos, sandpit.FileInfo{Name: fmt.Sprintf("%s%d", strings.Repeat("x", 200), at)})
	}
	return infos, at < d.files, nil
}

// The entries of directories have memory of their own until they are sent, so that frames which wait hold them up as little as
// they do those, and a list that does not fit into its answer ends before it has taken all.
func TestListsAreBounded(t *testing.T) {
	ended := make(chan struct{})
	_, url := serve(t, gate.Options{Audit: new(journal)}, dialect.Server{}, func(ch *channel) {
		defer close(ended)
		if err := ch.budget.take(t.Context(), frames, maxFrames); err != nil {
			t.Error(err)
		}
		for _, x := range []struct {
			files, want int
			err         error
		}{{0, 0, nil}, {1500, 1500, nil}, {1 << 20, 0, errEntries}} {
			op := &operation{ch: ch, id: firstID}
			all, err := (&handle{files: crowded{files: x.files}, path: "/d", dir: true}).list(t.Context(), op)
			if len(all) != x.want || !errors.Is(err, x.err) {
				t.Errorf("%d files: %d entries, %v", x.files, len(all), err)
			}
			if taken := ch.budget.taken; taken != [pools]int64{frames: maxFrames, windows: op.held} || op.held < int64(x.want)*entryCost || op.held > maxEntries*entryCost+maxFrame+1000*(entryCost+256) {
				t.Errorf("%d files: the operation holds %d, of %v", x.files, op.held, taken)
			}
			ch.budget.give(windows, op.held)
		}
	})
	conn, _, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	<-ended
}

// A record that the reader waits for is not copied.
func TestBulkTakesRecordsOver(t *testing.T) {
	content := make([]byte, 1000)
	b := &bulk{kind: bulkFiles, record: bulkRecord, window: filesWindow, limit: filesWindow}
	for at := range 2 {
		if err := b.take(record{bulkFiles, bulkIn, uint64(at * len(content)), content}); err != nil {
			t.Fatal(err)
		}
		if same := &b.buf[0] == &content[0]; same != (at == 0) || len(b.buf) != (at+1)*len(content) {
			t.Errorf("after record %d, %d bytes wait, which are those of the record: %v", at, len(b.buf), same)
		}
	}
}

// A file whose client sends nothing of its content ends, in either form of transfer.
func TestContentMustCome(t *testing.T) {
	for name, bulk := range map[string]*bulkOffer{"messages": nil, "bulk": {Format: bulkFormat, Record: minBulkRecord}} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			_, url := serve(t, gate.Options{Audit: new(journal), Limits: gate.Limits{Stall: 500 * time.Millisecond}}, dialect.Server{}, func(ch *channel) {
				op := &operation{ch: ch, id: firstID, kind: kindFiles, in: newInbox(maxWaiting, 0, time.Hour, nil)}
				b, err := op.accept(bulk, bulkFiles, bulkIn, filesWindow)
				if err == nil {
					_, err = (&contentReader{op: op, bulk: b}).Read(make([]byte, 1))
				}
				ended <- err
			})
			conn, _, err := websocket.Dial(t.Context(), url, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.CloseNow() }()
			select {
			case err := <-ended:
				if !errors.Is(err, errNoContent) {
					t.Errorf("the transfer ends with %v", err)
				}
			case <-time.After(testkit.Patience):
				t.Fatal("the transfer does not end")
			}
		})
	}
}

// The number of items of a list is known before it is decoded.
func TestLengths(t *testing.T) {
	for _, n := range []int{0, 1, 23, 24, 255, 256, 65535} {
		b, err := cbor.Marshal(map[string]any{"cmd": "x", "args": make([]string, n), "env": nil})
		if err != nil {
			t.Fatal(err)
		}
		var lists execLists
		if err := decoder().Unmarshal(b, &lists); err != nil {
			t.Fatal(err)
		}
		if got := lengthOf(lists.Args); got != n || lengthOf(lists.Env) != 0 || lengthOf(lists.Rlimits) != 0 {
			t.Errorf("%d items: %d, %d, %d", n, got, lengthOf(lists.Env), lengthOf(lists.Rlimits))
		}
	}
	for _, other := range []string{"\x01", "\xc1\x80", "\x9b\x00\x00\x00\x00\x00\x00\x00\x01", "\x9a\xff\xff\xff\xff"} {
		if got := lengthOf(cbor.RawMessage(other)); got != maxItems {
			t.Errorf("%x: %d items", other, got)
		}
	}
}

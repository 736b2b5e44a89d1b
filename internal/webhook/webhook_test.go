package webhook

import (
	"crypto/hmac"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// receiver is a server that checks what it gets.
type receiver struct {
	*httptest.Server
	secret string

	mu     sync.Mutex
	answer func(n int, w http.ResponseWriter) // of the n-th request, from 0
	ids    []string
	got    []message // that were answered with 2xx
	n      int
}

// errSignature is the error of a message that the holder of the secret did not
// send, or not at this time.
var errSignature = errors.New("the webhook is not signed with this secret, or is too old")

// tolerance is how far the clocks of both ends may be apart.
const tolerance = 5 * time.Minute

// verify checks what a receiver got, as a receiver does. errSignature unless it was signed with
// the secret in the last five minutes. What is the same in two messages with
// one webhook-id was meant once.
func verify(secret string, h http.Header, body []byte, now time.Time) error {
	key, err := secretBytes(secret)
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(h.Get(headerTime), 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return errSignature
	}
	want := sign(key, h.Get(headerID), h.Get(headerTime), body)
	for got := range strings.SplitSeq(h.Get(headerSignature), " ") {
		if hmac.Equal([]byte(got), []byte(want)) {
			return nil
		}
	}
	return errSignature
}

func receive(t *testing.T, answer func(n int, w http.ResponseWriter)) *receiver {
	t.Helper()
	r := &receiver{secret: NewSecret(), answer: answer}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the sender has left
		}
		if err := verify(r.secret, req.Header, body, time.Now()); err != nil || req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %v: %v", req.Method, req.Header, err)
		}
		if err := verify(NewSecret(), req.Header, body, time.Now()); !errors.Is(err, errSignature) {
			t.Errorf("with another secret: %v", err)
		}
		if err := verify(r.secret, req.Header, append(body, ' '), time.Now()); !errors.Is(err, errSignature) {
			t.Errorf("another body: %v", err)
		}
		if err := verify(r.secret, req.Header, body, time.Now().Add(6*time.Minute)); !errors.Is(err, errSignature) {
			t.Errorf("an old one: %v", err)
		}
		var m message
		if err := json.Unmarshal(body, &m); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ids = append(r.ids, req.Header.Get(headerID))
		rec := httptest.NewRecorder()
		r.answer(r.n, rec)
		r.n++
		if rec.Code < 300 {
			r.got = append(r.got, m)
		}
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) seqs() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []uint64
	for _, m := range r.got {
		all = append(all, m.Data.Seq)
	}
	return all
}

func sender(t *testing.T, r *receiver, opt Options) *Sender {
	t.Helper()
	opt.FirstDelay, opt.MaxDelay = time.Millisecond, 5*time.Millisecond
	if r != nil {
		opt.TLS = &tls.Config{RootCAs: r.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	}
	s := NewSender(opt)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func hookOf(r *receiver, kinds ...sandpit.EventKind) Hook {
	return Hook{ID: "hook", Namespace: "team", URL: r.URL, Secret: r.secret, Kinds: kinds}
}

func event(n int) sandpit.Event {
	return sandpit.Event{Seq: uint64(n), Time: time.Now(), Kind: sandpit.EventCreated, Sandbox: "id", Labels: map[string]string{"a": "b"}}
}

func ok(int, http.ResponseWriter) {}

// until waits for something, and says what the receiver has got when it does not
// come to be.
func (r *receiver) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	testkit.Until(t, what, is, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return fmt.Sprintf("of %d requests it took %+v", r.n, r.got)
	})
}

func TestAReceiverThatFailsAndRecovers(t *testing.T) {
	r := receive(t, func(n int, w http.ResponseWriter) {
		switch n % 4 {
		case 0:
			w.WriteHeader(http.StatusInternalServerError)
		case 1:
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusFound)
		case 2:
			w.Header().Set("Retry-After", "1000000") // no longer than the longest delay
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	s := sender(t, r, Options{Private: true})
	if err := s.Add(hookOf(r)); err != nil {
		t.Fatal(err)
	}
	var want []uint64
	for n := 1; n <= 20; n++ {
		s.Send("team", event(n))
		s.Send("other", event(1000+n))
		want = append(want, uint64(n))
	}
	r.until(t, "all have come", func() bool { return len(r.seqs()) == 20 })
	if got := r.seqs(); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if r.ids[0] != r.ids[3] || r.ids[3] == r.ids[4] {
		t.Errorf("the ids are %v", r.ids[:5])
	}
	r.until(t, "none waits", func() bool { return s.Status("hook") == Status{} })
}

func TestEventsThatAreGivenUp(t *testing.T) {
	r := receive(t, func(n int, w http.ResponseWriter) {
		if n < 6 {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	s := sender(t, r, Options{Private: true, Attempts: 3})
	if err := s.Add(hookOf(r)); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 4; n++ {
		s.Send("team", event(n))
	}
	r.until(t, "two have come", func() bool { return len(r.seqs()) == 2 })
	if got := r.seqs(); !slices.Equal(got, []uint64{3, 4}) || r.got[0].Lost != 2 || r.got[1].Lost != 0 {
		t.Errorf("got %v, %+v", got, r.got)
	}
	if st := s.Status("hook"); st.Dropped != 2 {
		t.Errorf("got %+v", st)
	}
}

func TestAReceiverThatWantsNoMore(t *testing.T) {
	r := receive(t, func(n int, w http.ResponseWriter) { w.WriteHeader(http.StatusGone) })
	s := sender(t, r, Options{Private: true})
	if err := s.Add(hookOf(r)); err != nil {
		t.Fatal(err)
	}
	s.Send("team", event(1))
	r.until(t, "it is dropped", func() bool { return s.Status("hook").Dropped == 1 })
	if st := s.Status("hook"); st.Failures != 1 || !strings.Contains(st.LastError, "410") {
		t.Errorf("got %+v", st)
	}
}

// receiveSlowly returns a receiver that closes first when the first event has come,
// and answers it when goOn is closed.
func receiveSlowly(t *testing.T) (r *receiver, first, goOn chan struct{}) {
	t.Helper()
	first, goOn = make(chan struct{}), make(chan struct{})
	return receive(t, func(n int, _ http.ResponseWriter) {
		if n == 0 {
			close(first)
			<-goOn
		}
	}), first, goOn
}

func TestWhatWaitsIsBounded(t *testing.T) {
	r, first, goOn := receiveSlowly(t)
	s := sender(t, r, Options{Private: true, Queue: 10})
	if err := s.Add(hookOf(r)); err != nil {
		t.Fatal(err)
	}
	s.Send("team", event(1))
	<-first
	for n := 2; n <= 100; n++ {
		s.Send("team", event(n))
	}
	if st := s.Status("hook"); st.Waiting != 10 || st.Dropped != 90 {
		t.Errorf("got %+v", st)
	}
	close(goOn)
	r.until(t, "ten have come", func() bool { return len(r.seqs()) == 10 })
	if got := r.seqs(); !slices.Equal(got, []uint64{1, 92, 93, 94, 95, 96, 97, 98, 99, 100}) || r.got[1].Lost != 90 {
		t.Errorf("got %v", got)
	}
}

func TestKindsAndRemoval(t *testing.T) {
	r := receive(t, ok)
	s := sender(t, r, Options{Private: true})
	if err := s.Add(hookOf(r, sandpit.EventRemoved)); err != nil {
		t.Fatal(err)
	}
	s.Send("team", event(1))
	e := event(2)
	e.Kind = sandpit.EventRemoved
	s.Send("team", e)
	r.until(t, "one has come", func() bool { return len(r.seqs()) == 1 })
	if got := r.seqs(); !slices.Equal(got, []uint64{2}) {
		t.Errorf("got %v", got)
	}
	s.Remove("hook")
	s.Send("team", e)
	if st := s.Status("hook"); st != (Status{}) {
		t.Errorf("got %+v", st)
	}
}

// A receiver that does not answer holds up neither the others nor the end.
func TestASlowReceiver(t *testing.T) {
	leave := make(chan struct{})
	slow := receive(t, func(int, http.ResponseWriter) { <-leave })
	defer close(leave)
	quick := receive(t, ok)
	pool := slow.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	pool.AddCert(quick.Certificate())
	s := sender(t, slow, Options{Private: true, Timeout: time.Hour})
	h := hookOf(slow)
	h.ID = "slow"
	for _, h := range []Hook{h, hookOf(quick)} {
		if err := s.Add(h); err != nil {
			t.Fatal(err)
		}
	}
	// Many of others don't answer, either.
	for i := range 300 {
		h.ID, h.Namespace = fmt.Sprint("other", i), fmt.Sprint("other", i/32)
		if err := s.Add(h); err != nil {
			t.Fatal(err)
		}
		s.Send(h.Namespace, event(1))
	}
	for n := 1; n <= 5; n++ {
		s.Send("team", event(n))
	}
	quick.until(t, "all have come", func() bool { return len(quick.seqs()) == 5 })
	if st := s.Status("slow"); st.Waiting != 5 {
		t.Errorf("got %+v", st)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.Send("team", event(6))
}

// F5, of webhooks: whatever a name resolves to, no private address is dialled.
func TestPrivateAddressesAreRefused(t *testing.T) {
	r := receive(t, ok)
	s := sender(t, r, Options{Attempts: 2})
	port := r.URL[strings.LastIndexByte(r.URL, ':'):]
	for i, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254"} {
		h := hookOf(r)
		h.ID, h.URL = fmt.Sprint("h", i), "https://"+host+port
		if err := s.Add(h); err != nil {
			t.Fatal(err)
		}
	}
	s.Send("team", event(1))
	for i := range 6 {
		id := fmt.Sprint("h", i)
		r.until(t, "it is dropped", func() bool { return s.Status(id).Dropped == 1 })
		if st := s.Status(id); !strings.Contains(st.LastError, "not public") {
			t.Errorf("%s: got %+v", id, st)
		}
	}
	if r.n != 0 {
		t.Errorf("%d requests came through", r.n)
	}
}

// Who owns a hook is told why it fails, but not what this machine's network is.
func TestErrorsTellNoAddresses(t *testing.T) {
	here, there := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 4444}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443}
	for want, err := range map[string]error{
		"read: connection reset by peer":        &net.OpError{Op: "read", Net: "tcp", Source: here, Addr: there, Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		"the name in its URL can't be resolved": &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "hooks.example", Server: "10.0.0.2:53"}},
		"tls: failed to verify the certificate": errors.New("tls: failed to verify the certificate"),
		errPrivate.Error():                      &net.OpError{Op: "dial", Net: "tcp", Addr: here, Err: errPrivate},
	} {
		if got := shorten(&url.Error{Op: "Post", URL: "https://hooks.example", Err: err}).Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	good := Hook{URL: "https://example.com/x?y", Secret: NewSecret()}
	if err := good.Check(false); err != nil {
		t.Error(err)
	}
	plain := good
	plain.URL = "http://example.com"
	if err := plain.Check(true); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Hook){
		func(h *Hook) { h.URL = "" },
		func(h *Hook) { h.URL = "http://example.com" },
		func(h *Hook) { h.URL = "ftp://example.com" },
		func(h *Hook) { h.URL = "https:///path" },
		func(h *Hook) { h.URL = "https://:80/" },
		func(h *Hook) { h.URL = "https://user:pw@example.com" },
		func(h *Hook) { h.URL = "https://example.com/#x" },
		func(h *Hook) { h.URL = "https:opaque" },
		func(h *Hook) { h.URL = "https://example.com/\x00" },
		func(h *Hook) { h.URL = "https://example.com/" + strings.Repeat("a", maxURL) },
		func(h *Hook) { h.Secret = "" },
		func(h *Hook) { h.Secret = "whsec_c2hvcnQ=" },
		func(h *Hook) { h.Kinds = []sandpit.EventKind{"sandbox.exploded"} },
		func(h *Hook) { h.Kinds = make([]sandpit.EventKind, maxKinds+1) },
	} {
		h := good
		change(&h)
		if err := h.Check(false); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%.80q %q: got %v", h.URL, h.Kinds, err)
		}
	}
}

// The example of the standard's own libraries.
func TestSignatureOfTheStandard(t *testing.T) {
	key, err := secretBytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What waits is bounded in bytes, too, and is not charged any more when it is sent,
// dropped or removed. (The catalogue's L11d.)
func TestWhatWaitsIsCharged(t *testing.T) {
	r, first, goOn := receiveSlowly(t)
	book := ledger.New(ledger.Bounds{})
	s := sender(t, r, Options{Private: true, Memory: book})
	if err := s.Add(hookOf(r)); err != nil {
		t.Fatal(err)
	}
	large := func(n int) sandpit.Event {
		e := event(n)
		e.Labels = map[string]string{"a": strings.Repeat("x", 64<<10)}
		return e
	}
	s.Send("team", large(1))
	<-first
	for n := 2; n <= 200; n++ {
		s.Send("team", large(n))
	}
	st := s.Status("hook")
	if n := book.UsedBy("team"); n > queueBytes || n < queueBytes/2 || st.Waiting > 32 || st.Dropped != uint64(200-st.Waiting) {
		t.Errorf("%d bytes are charged, and the status is %+v", n, st)
	}
	close(goOn)
	r.until(t, "all have come", func() bool { return len(r.seqs()) == st.Waiting })
	r.until(t, "nothing is charged", func() bool { return book.Used() == 0 })
	if got := r.seqs(); got[0] != 1 || got[len(got)-1] != 200 {
		t.Errorf("got %v", got)
	}
}

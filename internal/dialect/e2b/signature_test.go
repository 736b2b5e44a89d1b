package e2b

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// A signature is of one path, operation, user, token and time alone: texts in which the parts are divided
// in another way must not make another request valid.
func FuzzSign(f *testing.F) {
	f.Add("/tmp/x", "user", "1")
	f.Add("/a:read:", "", "")
	f.Fuzz(func(t *testing.T, path, user, expires string) {
		const token = "dt_k_s_m"
		read, write := newSignedText(path, "read", user, expires), newSignedText(path, "write", user, expires)
		got := bytes.Clone(read.sum(token))
		if bytes.Equal(got, write.sum(token)) || bytes.Equal(got, read.sum(token+"x")) {
			t.Errorf("%q %q %q: the signature %x is that of another request", path, user, expires, got)
		}
		whole := path + ":read:" + user + ":" + token
		if expires != "" {
			whole += ":" + expires
		}
		if want := sha256.Sum256([]byte(whole)); !bytes.Equal(read.sum(token), want[:]) || !bytes.Equal(got, want[:]) {
			t.Errorf("%q is signed with %x, want %x", whole, got, want)
		}
	})
}

// signedBox is a sandbox as far as signatures need it.
type signedBox struct {
	engine.Box
	id   string
	data json.RawMessage
}

func newSignedBox(id string, keys ...string) *signedBox {
	data, _ := json.Marshal(state{Keys: keys}) // of strings, which never fails
	return &signedBox{id: id, data: data}
}

func (b *signedBox) ID() string { return b.id }

func (b *signedBox) Dialect(string) json.RawMessage { return bytes.Clone(b.data) }

// signable returns sandboxes of a key each, and the tokens of all keys.
func signable(n int) ([]engine.Box, *dialect.Tokens) {
	var all []engine.Box
	for i := range n {
		all = append(all, newSignedBox(fmt.Sprintf("sandbox%09d", i), fmt.Sprintf("key%d", i)))
	}
	return all, dialect.NewTokens(Name, bytes.Repeat([]byte{7}, 32), func(_ context.Context, key string) (gate.Caller, error) { return gate.Caller{Key: key}, nil })
}

// Whoever sends wrong signatures without end is refused, and nobody at another address is. What is remembered of sandboxes and addresses is bounded.
func TestSearchesAreBounded(t *testing.T) {
	const boxes = 1000
	all, tokens := signable(boxes)
	last, lastKey := all[boxes-1].(*signedBox), fmt.Sprintf("key%d", boxes-1)
	text := newSignedText("/tmp/x", "read", "", "")
	token, _, err := tokens.Of(t.Context(), lastKey, last.id)
	if err != nil {
		t.Fatal(err)
	}
	valid, wrong := bytes.Clone(text.sum(token)), bytes.Repeat([]byte{1}, sha256.Size)
	now := time.Now()
	var s signers
	search := func(address string, at time.Time, all []engine.Box, given []byte) (string, error) {
		sb, key, err := s.search(t.Context(), tokens, clientOf(&http.Request{RemoteAddr: address}), at, all, text, given)
		if err == nil && sb != engine.Box(last) {
			t.Fatalf("%s was found", sb.ID())
		}
		return key, err
	}
	const stranger, neighbour, other = "[2001:db8::1]:1", "[2001:db8::2]:2", "[2001:db8:1::1]:1"
	for n := range searchBurst/boxes + 1 {
		want := errSignature
		if n == searchBurst/boxes {
			want = errSearches
		}
		if _, err := search(stranger, now, all, wrong); !errors.Is(err, want) {
			t.Fatalf("request %d: %v", n, err)
		}
	}
	if _, err := search(neighbour, now, all, valid); !errors.Is(err, errSearches) {
		t.Errorf("in the same network: %v", err)
	}
	for _, address := range []string{other, "192.0.2.1:1", "@", ""} {
		if key, err := search(address, now, all, valid); key != lastKey || err != nil {
			t.Errorf("%s: %q, %v", address, key, err)
		}
	}
	if key, err := search(stranger, now.Add(time.Second), all, valid); key != lastKey || err != nil {
		t.Errorf("later: %q, %v", key, err)
	}

	last.data = newSignedBox("", lastKey, "new").data
	if token, _, err = tokens.Of(t.Context(), "new", last.id); err != nil {
		t.Fatal(err)
	}
	if key, err := search(other, now, all, bytes.Clone(text.sum(token))); key != "new" || err != nil {
		t.Errorf("a new key of the sandbox: %q, %v", key, err)
	}
	if _, err := search(other, now, all[:1], wrong); !errors.Is(err, errSignature) || len(s.known) > 100 {
		t.Errorf("%v, and %d sandboxes are remembered", err, len(s.known))
	}
	for i := range maxClients + 10 {
		if _, err := search(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1).String(), now, all[:1], wrong); !errors.Is(err, errSignature) {
			t.Fatal(err)
		}
	}
	if len(s.clients) > maxClients {
		t.Errorf("%d addresses are remembered", len(s.clients))
	}
}

// BenchmarkSearch is a search for a wrong signature among those of 1,000 sandboxes.
func BenchmarkSearch(b *testing.B) {
	all, tokens := signable(1000)
	text := newSignedText("/tmp/x", "read", "", "")
	var s signers
	for i := 0; b.Loop(); i++ {
		_, _, _ = s.search(b.Context(), tokens, netip.Prefix{}, time.Unix(int64(i)*10, 0), all, text, make([]byte, sha256.Size))
	}
}

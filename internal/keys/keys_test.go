package keys_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/groupcommit"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/state"
)

// ring opens the keys of a directory on the real store.
func ring(t testing.TB, dir string) (*keys.Ring, *state.Store) {
	t.Helper()
	s, err := state.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	r, err := keys.Open(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

func team() keys.Key { return keys.Key{Namespace: "team", Policy: "default", Label: "ci"} }

func TestLifeOfAKey(t *testing.T) {
	dir := t.TempDir()
	r, s := ring(t, dir)
	token, made, err := r.Create(t.Context(), team())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(token, "sp_"+made.Prefix+"_") || len(token) != 52 {
		t.Errorf("the token of %s is %q", made.Prefix, token)
	}
	admin := team()
	admin.Admin, admin.Namespace = true, "ops"
	adminToken, _, err := r.Create(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}

	check := func() {
		t.Helper()
		got, err := r.Verify(token)
		if err != nil || got.UsedAt.IsZero() {
			t.Fatalf("got %+v, %v", got, err)
		}
		got.UsedAt = time.Time{}
		if diff := cmp.Diff(made, got); diff != "" {
			t.Error(diff)
		}
		if got, err := r.Verify(adminToken); err != nil || !got.Admin || got.Namespace != "ops" {
			t.Errorf("got %+v, %v", got, err)
		}
		if k, err := r.Get(made.Prefix); err != nil || k.Prefix != made.Prefix || k.UsedAt.IsZero() {
			t.Errorf("by its prefix: %+v, %v", k, err)
		}
		if _, err := r.Get("aaaaaaaa"); !errors.Is(err, sandpit.ErrNotFound) || sandpit.Hint(err) == "" {
			t.Errorf("one that is not there: %v", err)
		}
		if l := r.List(); len(l) != 2 {
			t.Errorf("of all: %+v", l)
		}
	}
	check()
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Close()
	r, s = ring(t, dir)
	if k, err := r.Get(made.Prefix); err != nil || k.UsedAt.IsZero() {
		t.Errorf("after a restart: %+v, %v", k, err)
	}
	check()

	if _, err := r.Revoke(t.Context(), made.Prefix); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Verify(token); !errors.Is(err, keys.ErrUnauthorized) || !strings.Contains(err.Error(), "was revoked") {
			t.Errorf("a revoked key: %v", err)
		}
		if k, err := r.Revoke(t.Context(), made.Prefix); err != nil || k.RevokedAt.IsZero() {
			t.Errorf("revoked again: %+v, %v", k, err)
		}
		s.Close()
		r, s = ring(t, dir)
	}
	if n, err := r.Prune(t.Context(), time.Now().Add(time.Minute)); n != 1 || err != nil {
		t.Errorf("pruned %d, %v", n, err)
	}
	if _, err := r.Verify(token); !errors.Is(err, keys.ErrUnauthorized) || strings.Contains(err.Error(), "revoked") {
		t.Errorf("a forgotten key: %v", err)
	}
}

func TestWhatProvesNothing(t *testing.T) {
	r, _ := ring(t, t.TempDir())
	token, made, err := r.Create(t.Context(), team())
	if err != nil {
		t.Fatal(err)
	}
	last := byte('a')
	if token[len(token)-1] == 'a' {
		last = 'b'
	}
	for _, bad := range []string{
		"", "sp_", made.Prefix, token[:len(token)-1], token + "a", strings.ToUpper(token), " " + token, token + "\n",
		token[:len(token)-1] + string(last), "sp_aaaaaaaa_" + token[12:], strings.Replace(token, "sp_", "xx_", 1),
		"sp_" + made.Prefix + "-" + token[12:], strings.Repeat("a", 1<<20), "sp_" + strings.Repeat("\x00", 49),
	} {
		_, err := r.Verify(bad)
		if !errors.Is(err, keys.ErrUnauthorized) || !errors.Is(err, sandpit.ErrForbidden) || err.Error() != keys.ErrUnauthorized.Error() || sandpit.Hint(err) == "" {
			t.Errorf("%.60q: got %v", bad, err)
		}
	}
	// An unknown key and a wrong one can't be told apart by what is said.
	_, unknown := r.Verify("sp_aaaaaaaa_" + token[12:])
	_, wrong := r.Verify(token[:len(token)-1] + string(last))
	if unknown.Error() != wrong.Error() || sandpit.Hint(unknown) != sandpit.Hint(wrong) {
		t.Errorf("%v and %v", unknown, wrong)
	}
	if _, err := r.Revoke(t.Context(), "aaaaaaaa"); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// TestIn looks for what has the form of a key in other text.
func TestIn(t *testing.T) {
	const key = "sp_abcdefgh_abcdefghijklmnopqrstuvwxyz234567abcdefgh"
	for _, text := range []string{key, "Bearer " + key, key + "a", "sp_" + key, "sp_sp_" + key + "\n", "a=" + key + "; b=c", key[:40] + key} {
		if !keys.In(text) {
			t.Errorf("nothing is seen in %q", text)
		}
	}
	for _, text := range []string{"", "sp_", key[:len(key)-1], "sp_" + key[4:], strings.ToUpper(key), strings.Repeat("sp_", 100), "sp_abcdefgh-" + key[12:]} {
		if keys.In(text) {
			t.Errorf("a key is seen in %q", text)
		}
	}
}

func TestRefusedKeys(t *testing.T) {
	r, _ := ring(t, t.TempDir())
	for _, change := range []func(*keys.Key){
		func(k *keys.Key) { k.Namespace = "" },
		func(k *keys.Key) { k.Namespace = "../a" },
		func(k *keys.Key) { k.Policy = strings.Repeat("a", 64) },
		func(k *keys.Key) { k.Label = "a\nb" },
		func(k *keys.Key) { k.Label = strings.Repeat("a", 129) },
		func(k *keys.Key) { k.ExpiresAt = time.Now().Add(-time.Second) },
	} {
		k := team()
		change(&k)
		if _, _, err := r.Create(t.Context(), k); !errors.Is(err, sandpit.ErrInvalid) || sandpit.Hint(err) == "" {
			t.Errorf("%+v: got %v", k, err)
		}
	}
}

// memory is a store that can be made to fail.
type memory struct {
	keys.Store
	queue   *groupcommit.Queue[func()] // as the state has one
	broken  error
	hangs   chan struct{} // what is written waits until it is closed; nil: it does not wait
	reached chan struct{} // told when a note of uses waits
	wrote   atomic.Int64  // revocations
}

func newMemory() *memory {
	m := &memory{}
	m.queue = groupcommit.New(1, func(items []*groupcommit.Item[func()]) {
		items[0].Value()
		if m.hangs != nil {
			<-m.hangs
		}
		items[0].Err = m.broken
	})
	return m
}

func (m *memory) write(ctx context.Context, f func()) error {
	err := m.queue.Do(ctx, f)
	if errors.Is(err, groupcommit.ErrHangs) {
		err = fmt.Errorf("%w: %w", sandpit.ErrUnavailable, err)
	}
	return err
}

func (m *memory) Keys(context.Context) ([]keys.Stored, error)     { return nil, m.broken }
func (m *memory) PutKey(ctx context.Context, _ keys.Stored) error { return m.write(ctx, func() {}) }

func (m *memory) DeleteKeys(ctx context.Context, _ []string) error { return m.write(ctx, func() {}) }

func (m *memory) TouchKeys(ctx context.Context, _ map[string]time.Time) error {
	return m.write(ctx, func() {
		if m.reached != nil {
			m.reached <- struct{}{}
		}
	})
}

func (m *memory) RevokeKey(ctx context.Context, _ string, _ time.Time) error {
	return m.write(ctx, func() { m.wrote.Add(1) })
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := keys.Open(t.Context(), newMemory())
		if err != nil {
			t.Fatal(err)
		}
		k := team()
		k.ExpiresAt = time.Now().Add(time.Hour)
		token, _, err := r.Create(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - time.Second)
		if _, err := r.Verify(token); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if _, err := r.Verify(token); !errors.Is(err, keys.ErrUnauthorized) || !strings.Contains(err.Error(), "expired") {
			t.Errorf("got %v", err)
		}
	})
}

// oneKey returns a store in memory, its ring, and the only key in it.
func oneKey(t *testing.T) (m *memory, r *keys.Ring, token string, made keys.Key) {
	t.Helper()
	m = newMemory()
	r, err := keys.Open(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if token, made, err = r.Create(t.Context(), team()); err != nil {
		t.Fatal(err)
	}
	return m, r, token, made
}

// On a disk that hangs a revoked key is refused at once, its caller has an answer,
// and it is written down when the disk goes on.
// (The catalogue's L13g.)
func TestStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		r, err := keys.Open(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		var tokens, prefixes []string
		for range 3 {
			token, made, err := r.Create(t.Context(), team())
			if err != nil {
				t.Fatal(err)
			}
			tokens, prefixes = append(tokens, token), append(prefixes, made.Prefix)
		}
		m.hangs = make(chan struct{})
		began := time.Now()
		for i, prefix := range prefixes {
			answer := make(chan error, 1)
			go func() {
				_, err := r.Revoke(t.Context(), prefix)
				answer <- err
			}()
			synctest.Wait()
			if _, err := r.Verify(tokens[i]); !errors.Is(err, keys.ErrUnauthorized) {
				t.Errorf("key %d is not refused: %v", i, err)
			}
			if err := <-answer; !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), "not on disk yet") {
				t.Errorf("revoking key %d: %v", i, err)
			}
		}
		if took := time.Since(began); took != 10*time.Second { // the first one waits
			t.Errorf("it took %s", took)
		}
		close(m.hangs)
		synctest.Wait()
		if n, err := r.Settle(t.Context()); err != nil || n != 3 || m.wrote.Load() != 4 {
			t.Errorf("%d were settled, %d written: %v", n, m.wrote.Load(), err)
		}
		if _, err := r.Revoke(t.Context(), prefixes[0]); err != nil {
			t.Error(err)
		}
	})
}

// A caller that leaves while Create waits for another change of the keys waits no
// longer, and no key is made.
func TestLeavingWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r, _, made := oneKey(t)
		m.hangs = make(chan struct{})
		go func() { _, _ = r.Revoke(t.Context(), made.Prefix) }()
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() {
			_, _, err := r.Create(ctx, team())
			answer <- err
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		select {
		case err := <-answer:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		default:
			t.Error("it waits on")
		}
		close(m.hangs)
		synctest.Wait()
		if n := len(r.List()); n != 1 {
			t.Errorf("there are %d keys", n)
		}
	})
}

// A revoked key is refused also while another change of the keys hangs.
func TestRevokeWhileTheStoreHangs(t *testing.T) {
	m, r, token, made := oneKey(t)
	if _, err := r.Verify(token); err != nil {
		t.Fatal(err)
	}
	m.hangs, m.reached = make(chan struct{}), make(chan struct{}, 1)
	flushed, revoked := make(chan error, 1), make(chan error, 1)
	go func() { flushed <- r.Flush(t.Context()) }()
	<-m.reached
	go func() {
		_, err := r.Revoke(t.Context(), made.Prefix)
		revoked <- err
	}()
	var err error
	for err == nil {
		_, err = r.Verify(token)
	}
	if !errors.Is(err, keys.ErrUnauthorized) {
		t.Error(err)
	}
	close(m.hangs)
	if err := errors.Join(<-flushed, <-revoked); err != nil {
		t.Error(err)
	}
}

// On a full disk no key is made, and a revoked one is refused all the same.
func TestBrokenStore(t *testing.T) {
	m, r, token, made := oneKey(t)
	m.broken = sandpit.ErrExhausted
	if token, _, err := r.Create(t.Context(), team()); !errors.Is(err, sandpit.ErrExhausted) || token != "" || len(r.List()) != 1 {
		t.Errorf("got %q, %v", token, err)
	}
	if _, err := r.Revoke(t.Context(), made.Prefix); !errors.Is(err, sandpit.ErrExhausted) || !strings.Contains(err.Error(), "not on disk yet") {
		t.Errorf("got %v", err)
	}
	if _, err := r.Verify(token); !errors.Is(err, keys.ErrUnauthorized) {
		t.Errorf("got %v", err)
	}
	if n, err := r.Settle(t.Context()); !errors.Is(err, sandpit.ErrExhausted) || n != 0 {
		t.Errorf("got %d, %v", n, err)
	}
	m.broken = nil
	// It is written down as soon as it can be, and once.
	for _, want := range []int{1, 0} {
		if n, err := r.Settle(t.Context()); err != nil || n != want {
			t.Errorf("%d revocations were written down, want %d: %v", n, want, err)
		}
	}
	if again, err := keys.Open(t.Context(), m); err != nil {
		t.Error(err)
	} else if _, err := again.Verify(token); !errors.Is(err, keys.ErrUnauthorized) {
		t.Errorf("after a restart: got %v", err)
	}
	if _, err := r.Revoke(t.Context(), made.Prefix); err != nil {
		t.Error(err)
	}
	if _, err := keys.Open(t.Context(), &memory{broken: sandpit.ErrIntegrity}); !errors.Is(err, sandpit.ErrIntegrity) {
		t.Errorf("got %v", err)
	}
}

func TestManyCallers(t *testing.T) {
	r, err := keys.Open(t.Context(), newMemory())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				token, k, err := r.Create(context.Background(), team())
				if err != nil {
					t.Error(err)
				}
				if _, err := r.Verify(token); err != nil {
					t.Error(err)
				}
				if _, err := r.Revoke(context.Background(), k.Prefix); err != nil {
					t.Error(err)
				}
				if _, err := r.Verify(token); err == nil {
					t.Error("a revoked key is accepted")
				}
				_ = r.List()
				_ = r.Flush(context.Background())
			}
		})
	}
	wg.Wait()
}

func BenchmarkVerify(b *testing.B) {
	r, err := keys.Open(b.Context(), newMemory())
	if err != nil {
		b.Fatal(err)
	}
	var token string
	for range 1000 {
		if token, _, err = r.Create(b.Context(), team()); err != nil {
			b.Fatal(err)
		}
	}
	wrong := token[:len(token)-4] + "aaaa"
	unknown := "sp_aaaaaaaa_" + token[12:]
	for _, bb := range []struct{ name, token string }{{"good", token}, {"wrong", wrong}, {"unknown", unknown}} {
		b.Run(bb.name, func(b *testing.B) {
			for b.Loop() {
				_, _ = r.Verify(bb.token)
			}
		})
	}
}

// A key has a form for each client that checks it. All forms are the same key, and nothing else is.
func TestFormats(t *testing.T) {
	r, _ := ring(t, t.TempDir())
	want := team()
	want.ExpiresAt = time.Now().Add(time.Hour)
	plain, made, err := r.Create(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := r.Create(t.Context(), team())
	if err != nil {
		t.Fatal(err)
	}
	e2b, msb := made.Token(plain, keys.E2B), made.Token(plain, keys.Microsandbox)
	if !regexp.MustCompile(`^e2b_[0-9a-f]{60}$`).MatchString(e2b) {
		t.Errorf("got %s", e2b)
	}
	parts := strings.Split(strings.TrimPrefix(msb, "msb_"), ".")
	if len(parts) != 3 || !strings.HasPrefix(msb, "msb_") {
		t.Fatalf("got %s", msb)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || string(payload) != fmt.Sprintf(`{"exp":%d,"iat":%d,"namespace":"team"}`, made.ExpiresAt.Unix(), made.CreatedAt.Unix()) {
		t.Errorf("the claims are %s, %v", payload, err)
	}
	for _, token := range []string{plain, e2b, msb} {
		if got, err := r.Verify(token); err != nil || got.Prefix != made.Prefix {
			t.Errorf("%s: %+v %v", token, got, err)
		}
		if id, ok := keys.ID(token); !ok || id != made.Prefix {
			t.Errorf("the ID of %s is %q", token, id)
		}
		if !keys.In("x" + token + "x") {
			t.Errorf("%s is not found in a text", token)
		}
	}
	if keys.In("e2b_ msb_a.b.c " + e2b[:60] + " " + msb[:len(msb)-1]) {
		t.Error("there is no key in it")
	}
	if token := made.Token(plain, "other"); token != "" {
		t.Errorf("another format: %s", token)
	}
	changed := strings.Replace(msb, parts[1], base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(payload), "team", "root", 1))), 1)
	for _, bad := range []string{changed, other.Token(plain, keys.Microsandbox), strings.ToUpper(e2b), "e2b_" + strings.ToUpper(e2b[4:]), e2b + "00", e2b[:len(e2b)-2], e2b[:len(e2b)-2] + "zz", "msb_" + parts[2], "msb_." + "." + parts[2], msb + "A", msb + "=", "e2b_", "msb_", "msb_" + strings.Repeat("a", 1<<20)} {
		if _, err := r.Verify(bad); !errors.Is(err, keys.ErrUnauthorized) || err.Error() != keys.ErrUnauthorized.Error() {
			t.Errorf("%.80s: %v", bad, err)
		}
	}
	if _, err := r.Revoke(t.Context(), made.Prefix); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{plain, e2b, msb} {
		if _, err := r.Verify(token); err == nil || !strings.Contains(err.Error(), "was revoked") {
			t.Errorf("%s, which is revoked: %v", token, err)
		}
	}
	neverPlain, never, err := r.Create(t.Context(), team())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Verify(never.Token(neverPlain, keys.Microsandbox)); err != nil {
		t.Errorf("a JWT that does not expire: %v", err)
	}
}

// Nothing but the forms of a key is valid, whatever is sent.
func FuzzVerify(f *testing.F) {
	r, _ := ring(f, f.TempDir())
	plain, made, err := r.Create(f.Context(), team())
	if err != nil {
		f.Fatal(err)
	}
	valid := map[string]bool{}
	for _, format := range append(keys.Formats(), string(keys.Plain)) {
		token := made.Token(plain, keys.Format(format))
		valid[token] = true
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := r.Verify(token); (err == nil) != valid[token] {
			t.Errorf("%q: %v", token, err)
		}
	})
}

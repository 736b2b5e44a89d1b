package server_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// TestRefusedUploads sends what has no room, over TLS, and reads each time why
// not: the answer is there long before the content is.
func TestRefusedUploads(t *testing.T) {
	t.Parallel()
	rounds := 5
	if long() {
		rounds = 200
	}
	const size = 32 << 20
	s := newServed(t)
	s.overTCP()
	s.start()
	c := s.tls(s.key)
	defer c.Close()
	spec := small("")
	spec.Limits.Disk = 8 << 20
	sb, err := c.Create(t.Context(), spec)
	testkit.Need(t, "a limit of memory", err)
	var all sync.WaitGroup
	defer all.Wait()
	for i := range 4 {
		all.Go(func() {
			opt := sandpit.WriteOptions{Append: i%2 == 0}
			for range rounds {
				if _, err := sb.Files().Write(t.Context(), "/tmp/"+string(rune('a'+i)), io.LimitReader(zeros{}, size), opt); !errors.Is(err, sandpit.ErrNoSpace) {
					t.Errorf("the client: %v", err)
				}
				if err := sb.Files().Upload(t.Context(), "/tmp", io.LimitReader(zeros{}, size)); err != nil {
					t.Errorf("an archive without files, and much behind it: %v", err)
				}
			}
		})
	}
	// Any other client, with HTTP/2, to which the server has to listen less.
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: s.roots}}
	defer transport.CloseIdleConnections()
	other := &http.Client{Transport: transport, Timeout: patience}
	for i := range 2 {
		all.Go(func() {
			for range rounds {
				r, err := http.NewRequestWithContext(t.Context(), "PUT", "https://"+s.tcp+"/v1/sandboxes/"+sb.ID()+"/files?path=/tmp/h"+string(rune('a'+i)), io.LimitReader(zeros{}, size))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Authorization", "Bearer "+s.key)
				resp, err := other.Do(r)
				if err != nil {
					t.Errorf("over HTTP/2: %v", err)
					continue
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != http.StatusInsufficientStorage || !strings.Contains(string(body), "no_space") {
					t.Errorf("%s %s: %s, %v", resp.Proto, resp.Status, body, err)
				}
			}
		})
	}
}

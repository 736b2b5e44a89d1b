package intercept

import (
	"context"
	"net/http"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/sigv4"
)

// Whatever requests of a sandbox hold while secrets are put in is bounded in all.
func TestHeldRequests(t *testing.T) {
	const placeholder = "sandpit-placeholder-of-a-secret"
	to := egress.Destination{Protocol: egress.TCP, Host: "s3.test", Port: 443}
	ss, err := compileSecrets([]engine.Secret{{Name: "x", Placeholder: placeholder, Value: []byte("AKIA:secret"), Hosts: []string{"s3.test"}, Sign: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		about string
		to    egress.Destination
		size  int64
		hash  string
		plain bool
		fit   int
	}{
		{"small bodies to others", egress.Destination{Protocol: egress.TCP, Host: "a.test", Port: 443}, maxWholeBody, "", false, maxHeld / maxWholeBody},
		{"bodies whose hash is not said", to, maxSignedBody, "", false, maxHeld / maxSignedBody},
		{"signed chunks", to, 1 << 30, sigv4.Streaming + "AWS4-HMAC-SHA256-PAYLOAD", false, maxHeld / sigv4.MaxChunk},
		{"small bodies in plain HTTP", to, maxWholeBody, "UNSIGNED-PAYLOAD", true, maxHeld / maxWholeBody},
	} {
		s := &Server{held: semaphore.NewWeighted(maxHeld)}
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, "https://s3.test/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = c.size
		r.Header.Set(sigv4.HashHeader, c.hash)
		var last func()
		for range c.fit {
			if last, err = s.hold(r, ss, c.to, !c.plain); err != nil {
				t.Fatalf("%s: %v", c.about, err)
			}
		}
		cancel()
		if _, err := s.hold(r, ss, c.to, !c.plain); err == nil {
			t.Errorf("%s: more than %d are held", c.about, c.fit)
		}
		last()
		if s.held.TryAcquire(maxHeld/int64(c.fit) + 1) {
			t.Errorf("%s: less is held than said", c.about)
		}
		if !s.held.TryAcquire(maxHeld / int64(c.fit)) {
			t.Errorf("%s: what was released is held", c.about)
		}
	}
}

package network

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
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
		fit   int
	}{
		{"small bodies to others", egress.Destination{Protocol: egress.TCP, Host: "a.test", Port: 443}, maxWholeBody, "", maxHeld / maxWholeBody},
		{"bodies whose hash is not said", to, maxSignedBody, "", maxHeld / maxSignedBody},
		{"signed chunks", to, 1 << 30, sigv4.Streaming + "AWS4-HMAC-SHA256-PAYLOAD", maxHeld / sigv4.MaxChunk},
	} {
		n := &Network{held: semaphore.NewWeighted(maxHeld)}
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, "https://s3.test/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = c.size
		r.Header.Set(sigv4.HashHeader, c.hash)
		var last func()
		for range c.fit {
			if last, err = n.hold(r, ss, c.to, true); err != nil {
				t.Fatalf("%s: %v", c.about, err)
			}
		}
		cancel()
		if _, err := n.hold(r, ss, c.to, true); err == nil {
			t.Errorf("%s: more than %d are held", c.about, c.fit)
		}
		last()
		if n.held.TryAcquire(maxHeld/int64(c.fit) + 1) {
			t.Errorf("%s: less is held than said", c.about)
		}
		if !n.held.TryAcquire(maxHeld / int64(c.fit)) {
			t.Errorf("%s: what was released is held", c.about)
		}
	}
}

// A service that echoes a request that was signed again, as S3 does in an error about its signature, does
// not bring its signature and the token of its session into the sandbox. The placeholder is all that is there.
func TestEchoedSignatures(t *testing.T) {
	const placeholder, secret, token = "sandpit-placeholder-01234567", "the/real+secret/of/the/test", "the/real+token/of/the/session=="
	arrived := make(chan http.Header, 2)
	o := newOrigin(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := r.Header.Clone()
		h.Set("X-Query", r.URL.RawQuery)
		arrived <- h
		w.Header().Set("Location", "https://elsewhere.test/?"+r.URL.RawQuery)
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "<Error><Code>SignatureDoesNotMatch</Code><CanonicalRequest>%s\n", r.URL.RawQuery)
		for name, values := range r.Header {
			fmt.Fprintf(w, "%s:", strings.ToLower(name))
			_ = xml.EscapeText(w, []byte(values[0]))
			fmt.Fprintln(w)
		}
		fmt.Fprint(w, "</CanonicalRequest></Error>")
	}))
	b := newSandboxed(t, o.terms(t, []engine.Secret{{Name: "aws", Placeholder: placeholder, Value: []byte("AKIAREALREALREALREAL:" + secret + ":" + token), Hosts: []string{"good.test"}, Sign: true}}, "good.test:PORT"))
	client, signer := b.client("good.test", o.port, false), v4.NewSigner()
	was := aws.Credentials{AccessKeyID: placeholder, SecretAccessKey: placeholder, SessionToken: placeholder}
	const hash = "UNSIGNED-PAYLOAD"
	for _, presigned := range []bool{false, true} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.url("/box/key?x=1"), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Range", "bytes=0-7")
		if presigned {
			to, _, err := signer.PresignHTTP(t.Context(), was, r, hash, "s3", "eu-west-1", time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if r.URL, err = url.Parse(to); err != nil {
				t.Fatal(err)
			}
		} else {
			r.Header.Set(sigv4.HashHeader, hash)
			if err := signer.SignHTTP(t.Context(), was, r, hash, "s3", "eu-west-1", time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		_ = res.Write(&all)
		res.Body.Close()
		h := <-arrived
		signature := h.Get("Authorization") + "&" + h.Get("X-Query")
		_, signature, _ = strings.Cut(signature, "Signature=")
		signature, _, _ = strings.Cut(signature, "&")
		if len(signature) != 64 || h.Get("X-Amz-Security-Token") != token && !presigned || h.Get("Range") == "" {
			t.Fatalf("presigned %t: the service has got %v", presigned, h)
		}
		for _, v := range []string{signature, token, url.QueryEscape(token), secret} {
			if strings.Contains(all.String(), v) {
				t.Errorf("presigned %t: %s came back: %s", presigned, v, all.String())
			}
		}
		if !strings.Contains(all.String(), "AKIAREALREALREALREAL") || !strings.Contains(all.String(), "sandpit-placeholder") {
			t.Errorf("presigned %t: %s", presigned, all.String())
		}
	}
}

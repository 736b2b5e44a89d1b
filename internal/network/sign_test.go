package network

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/sigv4"
)

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
	b := newSandboxed(t, o.terms(t, []engine.Secret{{Name: "aws", Placeholder: placeholder, Value: []byte("AKIAREALREALREALREAL:" + secret + ":" + token), Hosts: []string{o.host("good.test")}, Sign: true}}, "good.test:PORT"))
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

package sigv4

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/sandpit-dev/sandpit"
)

const (
	placeholder = "AKIAsandpitplaceholder"
	token       = "a/session+token=="
)

func inside() Credentials { return Credentials{placeholder, placeholder, placeholder} }

// real are the credentials of the examples in the API reference of S3.
func real() Credentials {
	return Credentials{KeyID: "AKIAIOSFODNN7EXAMPLE", Secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
}

// A request that the SDK of AWS has signed with the placeholder becomes the one that it signs with
// other credentials.
func TestSignAgain(t *testing.T) {
	at := time.Date(2026, 11, 23, 1, 2, 3, 0, time.UTC)
	for _, target := range []string{"/", "/a%20b/c%2Fd/ü?x=1&a=%2B&a=b%20c&empty", "/bucket/../key//x?list-type=2&prefix=%E2%82%AC"} {
		for _, service := range []string{"s3", "dynamodb"} {
			for _, session := range []string{"", token} {
				for _, presigned := range []bool{false, true} {
					if presigned && strings.Contains(target, "empty") {
						continue // the SDK writes the query anew
					}
					t.Run(fmt.Sprint(service, target, session != "", presigned), func(t *testing.T) {
						now := real()
						now.Token = session
						sign := func(c Credentials) *http.Request {
							r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://s3.test"+target, strings.NewReader("body"))
							if err != nil {
								t.Fatal(err)
							}
							r.Header.Set("X-Amz-Meta-Note", "  two   words ")
							signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = service == "s3" })
							hash := hashOf("body")
							if service == "s3" {
								r.Header.Set(HashHeader, hash)
							}
							a := aws.Credentials{AccessKeyID: c.KeyID, SecretAccessKey: c.Secret, SessionToken: c.Token}
							if presigned {
								if service == "s3" {
									hash = unsigned
									r.Header.Del(HashHeader)
								} else {
									hash = hashOf("")
								}
								signed, _, err := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = service == "s3" }).PresignHTTP(t.Context(), a, r, hash, service, "eu-west-1", at)
								if err != nil {
									t.Fatal(err)
								}
								if r.URL, err = url.Parse(signed); err != nil {
									t.Fatal(err)
								}
							} else if err := signer.SignHTTP(t.Context(), a, r, hash, service, "eu-west-1", at); err != nil {
								t.Fatal(err)
							}
							return r
						}
						want, got := sign(now), sign(inside())
						s, err := Find(got, inside(), now)
						if err != nil || s == nil {
							t.Fatal(s, err)
						}
						if s.NeedsBody() != (service != "s3" && !presigned) {
							t.Errorf("it needs the body: %v", s.NeedsBody())
						}
						if chunks, err := s.Sign([]byte("body")); err != nil || chunks != nil {
							t.Fatal(chunks, err)
						}
						if presigned {
							a, b := want.URL.Query(), got.URL.Query()
							if a.Encode() != b.Encode() {
								t.Errorf("the query is\n%v, not\n%v", b, a)
							}
						}
						for _, name := range []string{"Authorization", tokenHeader} {
							if got, want := got.Header.Get(name), want.Header.Get(name); got != want {
								t.Errorf("%s is\n%s, not\n%s", name, got, want)
							}
						}
						if text := fmt.Sprint(got.URL, got.Header); strings.Contains(text, placeholder) || strings.Contains(text, now.Secret) {
							t.Errorf("it has the placeholder or the value: %s", text)
						}
					})
				}
			}
		}
	}
}

// The example of "Transferring a payload in multiple chunks": its signatures are those of the reference.
func TestChunks(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://s3.amazonaws.com/examplebucket/chunkObject.txt", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = 66824
	for name, value := range map[string]string{
		"X-Amz-Date": "20130524T000000Z", "X-Amz-Storage-Class": "REDUCED_REDUNDANCY", HashHeader: "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
		"Content-Encoding": "aws-chunked", "X-Amz-Decoded-Content-Length": "66560",
	} {
		r.Header.Set(name, value)
	}
	const scope = "20130524/us-east-1/s3/aws4_request"
	headers := "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class"
	client := &Request{r: r, headers: strings.Split(headers, ";")}
	client.date, client.scope, client.now = r.Header.Get("X-Amz-Date"), scope, Credentials{KeyID: placeholder, Secret: placeholder}
	client.last = client.signature(client.now, "/examplebucket/chunkObject.txt", r.Header.Get(HashHeader))
	r.Header.Set("Authorization", algorithm+" Credential="+placeholder+"/"+scope+",SignedHeaders="+headers+",Signature="+client.last)
	chunk := func(size int, signature string) string {
		return fmt.Sprintf("%x;chunk-signature=%s\r\n%s\r\n", size, signature, strings.Repeat("a", size))
	}
	zeros := strings.Repeat("0", signatureLen)
	body := chunk(65536, zeros) + chunk(1024, zeros) + chunk(0, zeros)
	s, err := Find(r, inside(), real())
	if err != nil {
		t.Fatal(err)
	}
	signer, err := s.Sign(nil)
	if err != nil || signer == nil {
		t.Fatal(signer, err)
	}
	if got := r.Header.Get("Authorization"); !strings.HasSuffix(got, "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9") {
		t.Errorf("Authorization: %s", got)
	}
	seed := signer.last
	got, err := io.ReadAll(signer.Chunks(io.NopCloser(strings.NewReader(body))))
	if err != nil {
		t.Fatal(err)
	}
	want := chunk(65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648") +
		chunk(1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497") +
		chunk(0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9")
	if string(got) != want {
		t.Error("the chunks are signed in another way")
	}
	trailer := func(value, signature string) string {
		return strings.TrimSuffix(chunk(3, zeros)+chunk(0, zeros), "\r\n") + "x-amz-checksum-crc32c:" + value + "\r\nx-amz-trailer-signature:" + signature + "\r\n\r\n"
	}
	signer.last = seed
	first, err := io.ReadAll(signer.Chunks(io.NopCloser(strings.NewReader(trailer("sOO8/Q==", zeros)))))
	if err != nil || len(first) != len(trailer("sOO8/Q==", zeros)) || bytes.Contains(first, []byte(zeros)) {
		t.Errorf("with a trailer: %q, %v", first, err)
	}
	signer.last = seed
	other, err := io.ReadAll(signer.Chunks(io.NopCloser(strings.NewReader(trailer("AAAAAA==", zeros)))))
	if err != nil || bytes.Equal(first[len(first)-signatureLen-4:], other[len(other)-signatureLen-4:]) {
		t.Errorf("with another trailer: %q, %v", other, err)
	}
	for name, bad := range map[string]string{
		"nothing":             "",
		"no chunks":           strings.Repeat("a", 1000),
		"a long line":         strings.Repeat("a", 1000) + "\r\n",
		"a short signature":   "3;chunk-signature=0\r\nabc\r\n",
		"a negative size":     "-1;chunk-signature=" + zeros + "\r\n",
		"a long chunk":        "100001;chunk-signature=" + zeros + "\r\n",
		"an end in a chunk":   "5;chunk-signature=" + zeros + "\r\nabc",
		"more than the chunk": "1;chunk-signature=" + zeros + "\r\nabc\r\n",
		"an end without last": chunk(3, zeros),
		"more after the last": chunk(0, zeros) + "x",
		"an endless trailer":  "0;chunk-signature=" + zeros + "\r\n" + strings.Repeat("x:y\r\n", 1<<14),
		"a bad trailer":       "0;chunk-signature=" + zeros + "\r\nx-amz-trailer-signature:0\r\n\r\n",
	} {
		signer.last = seed
		if _, err := io.ReadAll(signer.Chunks(io.NopCloser(strings.NewReader(bad)))); !errors.Is(err, sandpit.ErrForbidden) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is not signed with the placeholder, or not in full, is refused.
func TestRefused(t *testing.T) {
	const scope = placeholder + "/20261123/eu-west-1/s3/aws4_request"
	good := algorithm + " Credential=" + scope + ", SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=" + strings.Repeat("0", 64)
	for name, change := range map[string]func(r *http.Request){
		"a signature of others":  func(*http.Request) {},
		"no date":                func(r *http.Request) { r.Header.Del("X-Amz-Date") },
		"another day":            func(r *http.Request) { r.Header.Set("X-Amz-Date", "20261124T000000Z") },
		"another algorithm":      func(r *http.Request) { r.Header.Set("Authorization", "AWS4-ECDSA-P256-SHA256"+good[len(algorithm):]) },
		"version 2":              func(r *http.Request) { r.Header.Set("Authorization", "AWS "+placeholder+":x") },
		"no host":                func(r *http.Request) { r.Header.Set("Authorization", strings.Replace(good, "host;", "", 1)) },
		"two credentials":        func(r *http.Request) { r.Header.Set("Authorization", good+", Credential="+scope) },
		"another key":            func(r *http.Request) { r.Header.Set("Authorization", strings.Replace(good, scope, "AKIA/"+scope, 1)) },
		"a short scope":          func(r *http.Request) { r.Header.Set("Authorization", strings.Replace(good, "/s3", "", 1)) },
		"two headers":            func(r *http.Request) { r.Header.Add("Authorization", good) },
		"header and query":       func(r *http.Request) { r.URL.RawQuery = "X-Amz-Credential=" + scope },
		"an invalid query":       func(r *http.Request) { r.URL.RawQuery = "a=%zz" },
		"a body of another kind": func(r *http.Request) { r.Header.Set(HashHeader, "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD") },
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://s3.test/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", good)
		r.Header.Set("X-Amz-Date", "20261123T000000Z")
		r.Header.Set(HashHeader, unsigned)
		change(r)
		s, err := Find(r, inside(), real())
		if err == nil {
			_, err = s.Sign(nil)
		}
		if !errors.Is(err, sandpit.ErrForbidden) || strings.Contains(fmt.Sprint(err, r.Header), real().KeyID) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://s3.test/?a=b", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer x")
	if s, err := Find(r, inside(), real()); s != nil || err != nil {
		t.Errorf("a request of others: %v, %v", s, err)
	}
}

func TestRead(t *testing.T) {
	for text, want := range map[string]Credentials{
		"AKIA:s/e+c":     {"AKIA", "s/e+c", ""},
		"AKIA:s/e+c:t==": {"AKIA", "s/e+c", "t=="},
		`{"Version": 1, "AccessKeyId": "AKIA", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": "x"}`: {"AKIA", "s", "t"},
		"\n{\"AccessKeyId\": \"AKIA\", \"SecretAccessKey\": \"s\"}\n":                                           {"AKIA", "s", ""},
	} {
		if got, err := Read(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "AKIA", "AKIA:", ":secret", "AK IA:secret", "AKIA:sec\nret", "AK/IA:secret", "{}", "{", `{"AccessKeyId": "secret"}`} {
		if _, err := Read(text); !errors.Is(err, sandpit.ErrInvalid) || strings.Contains(err.Error(), "secret:") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential="+placeholder+"/20261123/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature=0", "a=b", "20261123T000000Z")
	f.Add("", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential="+placeholder+"%2F20261123%2Fr%2Fs%2Faws4_request&X-Amz-SignedHeaders=host&X-Amz-Signature=0&X-Amz-Date=20261123T000000Z", "")
	f.Fuzz(func(t *testing.T, authorization, query, date string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://s3.test/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.RawQuery = query
		r.Header["Authorization"], r.Header["X-Amz-Date"] = []string{authorization}, []string{date}
		s, err := Find(r, inside(), real())
		if err != nil || s == nil {
			return
		}
		if _, err := s.Sign(nil); err == nil {
			t.Error("a signature was made up")
		}
	})
}

func FuzzChunks(f *testing.F) {
	zeros := strings.Repeat("0", signatureLen)
	f.Add([]byte("3;chunk-signature=" + zeros + "\r\nabc\r\n0;chunk-signature=" + zeros + "\r\nx-amz-trailer-signature:" + zeros + "\r\n\r\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := &Signer{now: real(), date: "20261123T000000Z", scope: "20261123/r/s3/aws4_request"}
		got, err := io.ReadAll(s.Chunks(io.NopCloser(bytes.NewReader(body))))
		if err == nil && len(got) != len(body) {
			t.Errorf("%d bytes became %d", len(body), len(got))
		}
	})
}

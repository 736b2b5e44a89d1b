package server_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
)

// Tenants are shown the images that their policy names, and nothing of what others have
// pulled.
func TestImagesOfPolicies(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.policy(`policies:
  any: {images: [host, '*']}
  ours: {images: ['example.com/ours/*']}
  one: {images: ['example.com/*/b', '*.example.com/*']}
`)
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	store := image.Open(filepath.Join(s.home, "images"), image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})})
	all := []string{"example.com/ours/a:1", "example.com/ours/b:1", "private.example.com/b:1"}
	for _, name := range all {
		if _, err := store.Import(t.Context(), "dir:"+root, name, image.ImportOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.start()
	list := func(key string) (names []string) {
		for after := ""; ; {
			status, body, _ := s.get(http.MethodGet, "http://sandpit/v1/images?limit=1&after="+after, key, "")
			var page v1.ImageList
			if err := json.Unmarshal([]byte(body), &page); err != nil || status != http.StatusOK || len(page.Images) > 1 {
				t.Fatalf("%d %s: %v", status, body, err)
			}
			for _, i := range page.Images {
				if names = append(names, i.Reference); key != "" && i.InUse || i.Reference != "host" && i.Digest == "" {
					t.Errorf("got %+v", i)
				}
			}
			if after = strings.ReplaceAll(page.Next, " ", "%20"); after == "" {
				return names
			}
		}
	}
	for policy, want := range map[string]string{"any": "host", "ours": strings.Join(all[:2], " "), "one": all[1]} {
		if got := strings.Join(list(s.keyOf("team-"+policy, policy)), " "); got != want {
			t.Errorf("%s: got %s, want %s", policy, got, want)
		}
	}
	if got, want := strings.Join(list(""), " "), strings.Join(all[:2], " ")+" host "+all[2]; got != want {
		t.Errorf("the server's user is shown %s, want %s", got, want)
	}
}

// A test of a webhook tells what its receiver answers, to its own tenant, and not too often.
func TestWebhookIsTested(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.start()
	key, other := s.keyOf("team", ""), s.keyOf("others", "")
	status, body, _ := s.get(http.MethodPost, "http://sandpit/v1/webhooks", key, `{"url":"https://localhost:9/"}`)
	var hook v1.Webhook
	if err := json.Unmarshal([]byte(body), &hook); err != nil || status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	path := "http://sandpit/v1/webhooks/" + hook.ID + "/test"
	if status, body, _ := s.get(http.MethodPost, path, other, ""); status != http.StatusNotFound {
		t.Errorf("of another tenant: %d %s", status, body)
	}
	var got v1.WebhookTest
	status, body, _ = s.get(http.MethodPost, path, key, "")
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK || got.Delivered || got.Status != 0 || !strings.Contains(got.Error, "not public") {
		t.Errorf("%d %s", status, body)
	}
	for status != http.StatusTooManyRequests { // unless a second has passed
		var header http.Header
		if status, body, header = s.get(http.MethodPost, path, key, ""); status != http.StatusOK && (status != http.StatusTooManyRequests || header.Get("Retry-After") == "") {
			t.Fatalf("too often: %d %v %s", status, header, body)
		}
	}
}

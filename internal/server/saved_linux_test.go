package server_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Images that one tenant saves from sandboxes are not there for another one, whose quota they do not
// use either. A server saves sandboxes that an earlier one made.
func TestSavedImagesOfTenants(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.policy(`policies:
  default: {saved-images: 3m}
  none: {saved-images: false}
`)
	s.start()
	keys := map[string]string{"mine": s.keyOf("mine", ""), "theirs": s.keyOf("theirs", ""), "none": s.keyOf("none", "none")}
	c := s.with(keys["mine"])
	sb := create(t, c, "box")
	run := func(sb sandpit.Sandbox, script string) string {
		t.Helper()
		out, err := sandpit.Shell(t.Context(), sb, script)
		if err != nil || !out.Result.Success() {
			t.Fatalf("%s: %v, %+v: %s", script, err, out.Result, out.Stderr)
		}
		return string(out.Stdout)
	}
	run(sb, "head -c 1000000 /dev/urandom > ~/file; echo mine > ~/mine")
	c.Close()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start() // and adopt it
	c = s.with(keys["mine"])
	defer c.Close()
	sb, err := c.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	save := func(sb sandpit.Sandbox, name string) (sandpit.SavedImage, error) {
		return sb.(sandpit.Committer).Commit(t.Context(), sandpit.Commit{Name: name, NoPause: true})
	}
	saved, err := save(sb, "app")
	if err != nil {
		t.Fatal(err)
	}
	spec := small("next")
	spec.Image = saved.Name
	next, err := c.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := run(next, "cat ~/mine"); got != "mine\n" {
		t.Errorf("got %q", got)
	}
	// 2 MB are used, as a layer and unpacked.
	run(sb, "head -c 1000000 /dev/urandom > ~/more")
	if _, err := save(sb, "more"); !errors.Is(err, sandpit.ErrQuota) || sandpit.Hint(err) == "" {
		t.Errorf("over the quota: %v", err)
	}

	images := func(key string) (names []string) {
		t.Helper()
		status, body, _ := s.get(http.MethodGet, "http://sandpit/v1/images", key, "")
		var page v1.ImageList
		if err := json.Unmarshal([]byte(body), &page); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s: %v", status, body, err)
		}
		for _, i := range page.Images {
			names = append(names, i.Reference)
		}
		return names
	}
	for key, want := range map[string]string{keys["mine"]: "host saved:app", keys["theirs"]: "host", "": "host saved:mine/app"} {
		if got := strings.Join(images(key), " "); got != want {
			t.Errorf("listed are %s, want %s", got, want)
		}
	}
	for _, ask := range []struct {
		key, image, want string
		status           int
	}{
		{keys["mine"], "saved:app", `{"references":["saved:app:2","saved:second"],"digest":"` + saved.Digest + `"}`, http.StatusOK},
		{keys["theirs"], "saved:app", `"not_found"`, http.StatusNotFound},
		{keys["theirs"], "saved:mine/app", `"not_found"`, http.StatusNotFound},
		{keys["none"], "saved:app", `"forbidden"`, http.StatusForbidden},
		{keys["mine"], saved.Digest, `"invalid"`, http.StatusBadRequest},
	} {
		if status, body, _ := s.get(http.MethodPost, "http://sandpit/v1/images/tag", ask.key, `{"image":"`+ask.image+`","names":["app:2","second"]}`); status != ask.status || !strings.Contains(body, ask.want) {
			t.Errorf("naming %s: %d %s", ask.image, status, body)
		}
	}
	for path, body := range map[string]string{"images/tag": `{"image":"saved:app","names":["saved:z"]}`, "sandboxes/box/commit": `{"name":"z","labels":{"dev.sandpit.build":"x"}}`} {
		if status, body, _ := s.get(http.MethodPost, "http://sandpit/v1/"+path, keys["mine"], body); status != http.StatusBadRequest || !strings.Contains(body, `"invalid"`) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if got := strings.Join(images(keys["mine"]), " "); got != "host saved:app saved:app:2 saved:second" {
		t.Errorf("with more names, listed are %s", got)
	}
	for _, name := range []string{"saved:app:2", "saved:second"} {
		if status, body, _ := s.get(http.MethodDelete, "http://sandpit/v1/images?image="+name, keys["mine"], ""); status != http.StatusNoContent {
			t.Errorf("removing %s: %d %s", name, status, body)
		}
	}
	other := s.with(keys["theirs"])
	defer other.Close()
	for _, ref := range []string{"saved:app", "saved:mine/app", saved.Digest, "debian@" + saved.Digest} {
		spec := small("foreign")
		spec.Image, spec.Pull = ref, sandpit.PullNever
		if _, err := other.Create(t.Context(), spec); err == nil || errors.Is(err, sandpit.ErrState) {
			t.Errorf("%s: got %v", ref, err)
		}
		if status, body, _ := s.get(http.MethodDelete, "http://sandpit/v1/images?image="+ref, keys["theirs"], ""); status != http.StatusNotFound && status != http.StatusBadRequest && status != http.StatusForbidden {
			t.Errorf("removing %s: %d %s", ref, status, body)
		}
	}
	if _, err := save(create(t, other, "box"), "app"); err != nil {
		t.Error(err)
	}
	none := s.with(keys["none"])
	defer none.Close()
	if _, err := save(create(t, none, "box"), "app"); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "none.saved-images") {
		t.Errorf("got %v", err)
	}
	if status, body, _ := s.get(http.MethodDelete, "http://sandpit/v1/images?image=saved:app", keys["mine"], ""); status != http.StatusConflict {
		t.Errorf("removing an image in use: %d %s", status, body)
	}
	if err := next.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := s.get(http.MethodDelete, "http://sandpit/v1/images?image=saved:app", keys["mine"], ""); status != http.StatusNoContent {
		t.Errorf("removing it: %d %s", status, body)
	}
	if got := strings.Join(images(""), " "); got != "host saved:theirs/app" {
		t.Errorf("left are %s", got)
	}
}

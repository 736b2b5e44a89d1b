package server_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// builder requests builds of E2B's templates with a key.
type builder struct {
	t        *testing.T
	s        *served
	url, key string
}

func (b builder) call(status int, text, method, path, body string) string {
	b.t.Helper()
	return b.s.e2bCall(b.t, status, text, method, b.url+path, body, "X-API-KEY", b.key)
}

// plain has the server listen on loopback, without TLS.
func (s *served) plain() {
	s.t.Helper()
	s.tcp = testkit.Address(s.t)
	s.settings.Listen = append(s.settings.Listen, server.Listen{Address: server.Address{Network: "tcp", Host: s.tcp}, Service: server.DefaultService})
}

// request requests a build and returns its ID.
func (b builder) request(name string) string {
	b.t.Helper()
	var made struct{ BuildID string }
	if err := json.Unmarshal([]byte(b.call(202, "", "POST", "/v3/templates", fmt.Sprintf(`{"name":%q}`, name))), &made); err != nil || made.BuildID == "" {
		b.t.Fatal(made, err)
	}
	return made.BuildID
}

// upload sends an archive for the build of a template that waits.
func (b builder) upload(name, hash string, archive []byte) {
	b.t.Helper()
	var link struct{ URL string }
	if err := json.Unmarshal([]byte(b.call(201, `"present":false`, "GET", "/templates/"+name+"/files/"+hash, "")), &link); err != nil {
		b.t.Fatal(err)
	}
	b.s.e2bCall(b.t, 200, "", "PUT", link.URL, string(archive))
	b.call(201, `"present":true`, "GET", "/templates/"+name+"/files/"+hash, "")
}

// start starts a build that waits.
func (b builder) start(name, id, steps string) {
	b.t.Helper()
	b.call(202, "", "POST", "/v2/templates/"+name+"/builds/"+id, `{"fromTemplate":"base","steps":[`+steps+`]}`)
}

// wait waits for the end of a build, which has a status and a text in what it says.
func (b builder) wait(name, id, status, text string) {
	b.t.Helper()
	var last string
	testkit.Until(b.t, "the build ends", func() bool {
		last = b.call(200, "", "GET", "/templates/"+name+"/builds/"+id+"/status", "")
		return strings.Contains(last, `"status":"ready"`) || strings.Contains(last, `"status":"error"`)
	})
	if !strings.Contains(last, `"status":"`+status+`"`) || !strings.Contains(last, text) {
		b.t.Errorf("the build of %s: %s, want %s and %s", name, last, status, text)
	}
}

// sandboxes returns how many sandboxes the namespace has, builds included.
func (b builder) sandboxes() int {
	b.t.Helper()
	_, body, _ := b.s.get("GET", "http://"+b.s.tcp+"/v1/sandboxes", b.key, "")
	var list v1.SandboxList
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		b.t.Fatal(err, body)
	}
	return len(list.Sandboxes)
}

// archived returns an archive with entries.
func archived(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range entries {
		h.Mode = 0o644
		if h.Typeflag == tar.TypeReg {
			h.Size = 1
		}
		err := w.WriteHeader(&h)
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = w.Write([]byte("x"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Templates belong to the namespace of the key that built them. What a build is given is used inside its sandbox only, and nothing is
// left of it but the image.
func TestE2BTemplates(t *testing.T) {
	s := newServed(t)
	s.policy("policies:\n  none: {saved-images: false}\n")
	s.plain()
	url, key := s.withE2B()
	b := builder{t, s, url, key}
	other := builder{t, s, url, s.keyOf("other", "")}

	for body, want := range map[string]string{
		`{"name":"base"}`: `"code":409`, `{"name":"a/b"}`: `"code":400`, `{}`: `"code":400`, `{"name":"../x"}`: `"code":400`,
		`{"name":"x:../y"}`: `"code":400`, `{"name":"x:"}`: `"code":400`, `{"name":"x:a:b"}`: `"code":400`, `{"name":"x","tags":[""]}`: `"code":400`, `{"name":"x","tags":["a@b"]}`: `"code":400`,
		`{"name":"x","tags":["a"` + strings.Repeat(`,"a"`, 32) + `]}`: `"code":400`, `{"name":"base:v1"}`: `"code":409`, `{"name":"x","cpuCount":-1}`: `"code":400`,
	} {
		status := map[string]int{`"code":409`: 409, `"code":400`: 400}[want]
		b.call(status, want, "POST", "/v3/templates", body)
	}

	// Those whose start is refused have ended, and nothing is left of them.
	for body, status := range map[string]int{
		`{"fromTemplate":"base","steps":[{"type":"ADD","args":["a","b"]}]}`:                                                           400,
		`{"fromTemplate":"base","steps":[{"type":"COPY","args":["a","b"],"filesHash":"../x"}]}`:                                       400,
		`{"fromTemplate":"base","steps":[{"type":"ENV","args":["a"]}]}`:                                                               400,
		`{"fromTemplate":"base","steps":[` + strings.Repeat(`{"type":"USER","args":["a"]},`, 1000) + `{"type":"USER","args":["a"]}]}`: 413,
		`{"fromTemplate":"base","steps":[{"type":"ENV","args":[""` + strings.Repeat(`,""`, 10_001) + `]}]}`:                           413,
		`{"fromTemplate":"base","startCmd":"` + strings.Repeat("x", 1<<19+1) + `","readyCmd":"` + strings.Repeat("x", 1<<19) + `"}`:   413,
		`{"fromImage":"x","fromImageRegistry":{"type":"registry"}}`:                                                                   501,
	} {
		id := b.request("refused")
		b.call(status, fmt.Sprintf(`{"code":%d,`, status), "POST", "/v2/templates/refused/builds/"+id, body)
		b.wait("refused", id, "error", "")
	}
	testkit.Until(t, "the sandboxes of refused builds are removed", func() bool { return b.sandboxes() == 0 })

	// One that works, and what others see of it.
	id := b.request("mine")
	b.upload("mine", "aa", archived(t, tar.Header{Typeflag: tar.TypeReg, Name: "f"}))
	one := "/v2/templates/mine/builds/" + id
	other.call(404, `{"code":404,`, "POST", one, `{"fromTemplate":"base"}`)
	other.call(404, `{"code":404,`, "GET", "/templates/mine/files/aa", "")
	other.call(404, `{"code":404,`, "GET", "/templates/mine/builds/"+id+"/status", "")
	b.start("mine", id, `{"type":"COPY","args":["f","/home/user/f"],"filesHash":"aa"},{"type":"RUN","args":["cat f"]}`)
	b.wait("mine", id, "ready", `"message":"x"`)
	b.call(409, `{"code":409,`, "POST", one, `{"fromTemplate":"base"}`)
	b.call(200, `"templateID":"mine"`, "GET", "/templates/aliases/mine", "")
	b.call(200, `"templateID":"mine"`, "GET", "/templates", "")
	other.call(404, `{"code":404,`, "GET", "/templates/aliases/mine", "")
	other.call(200, `[]`, "GET", "/templates", "")
	other.call(404, `no image has the alias`, "POST", "/v2/sandboxes", `{"templateID":"mine"}`)
	other.call(404, `{"code":404,`, "DELETE", "/templates/mine", "")
	var made struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(b.call(201, `"templateID":"mine"`, "POST", "/v2/sandboxes", `{"templateID":"mine"}`)), &made); err != nil {
		t.Fatal(err)
	}
	s.e2bCall(t, 200, "x", "GET", url+"/files?path=f", "", "X-Access-Token", made.EnvdAccessToken)

	// What is in /tmp is a part of the template.
	id = b.request("tmp")
	b.upload("tmp", "ab", archived(t, tar.Header{Typeflag: tar.TypeReg, Name: "f"}))
	b.start("tmp", id, `{"type":"COPY","args":["f","/tmp/copied"],"filesHash":"ab"},{"type":"RUN","args":["echo y >/tmp/run"]}`)
	b.wait("tmp", id, "ready", "")
	var inTmp struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(b.call(201, "", "POST", "/v2/sandboxes", `{"templateID":"tmp"}`)), &inTmp); err != nil {
		t.Fatal(err)
	}
	s.e2bCall(t, 200, "x", "GET", url+"/files?path=/tmp/copied", "", "X-Access-Token", inTmp.EnvdAccessToken)
	s.e2bCall(t, 200, "y", "GET", url+"/files?path=/tmp/run", "", "X-Access-Token", inTmp.EnvdAccessToken)
	b.call(204, "", "DELETE", "/sandboxes/"+inTmp.SandboxID, "")

	// The URL of an upload is good for nothing else, not even for another archive or template, and no other token for an upload.
	waits := b.request("tokens")
	var link struct{ URL string }
	if err := json.Unmarshal([]byte(b.call(201, "", "GET", "/templates/tokens/files/aa", "")), &link); err != nil {
		t.Fatal(err)
	}
	s.e2bCall(t, 201, `"url":"https://`+strings.TrimPrefix(url, "http://")+`/templates/tokens/files/aa?token=`, "GET", url+"/templates/tokens/files/aa", "", "X-API-KEY", key, "X-Forwarded-Proto", "https")
	plain, token, _ := strings.Cut(link.URL, "?token=")
	s.e2bCall(t, 401, `{"code":401,`, "PUT", plain, "x")
	s.e2bCall(t, 401, `{"code":401,`, "PUT", plain+"?token="+made.EnvdAccessToken, "x")
	s.e2bCall(t, 401, `{"code":401,`, "PUT", link.URL+"x", "x")
	b.request("tokens2")
	for old, other := range map[string]string{"/aa": "/..%2fx", "/aa?": "/ab?", "/tokens/": "/tokens2/"} {
		s.e2bCall(t, 401, `{"code":401,`, "PUT", strings.Replace(link.URL, old, other, 1), "x")
	}
	s.e2bCall(t, 502, `the sandbox was not found`, "GET", url+"/files?path=archive-aa", "", "X-Access-Token", token)
	// Nor once the build has begun.
	b.start("tokens", waits, `{"type":"RUN","args":["sleep 2"]},{"type":"COPY","args":["f","/home/user/f"],"filesHash":"aa"}`)
	s.e2bCall(t, 409, "takes no more files", "PUT", link.URL, "x")
	b.wait("tokens", waits, "error", "were not uploaded")

	// Hostile archives are refused by the sandbox in which they are unpacked, and the template is not there.
	for i, h := range []tar.Header{
		{Typeflag: tar.TypeReg, Name: "../../home/user/evil"},
		{Typeflag: tar.TypeChar, Name: "device", Devmajor: 1, Devminor: 3},
		{Typeflag: tar.TypeLink, Name: "link", Linkname: "/etc/passwd"},
	} {
		name := fmt.Sprint("hostile", i)
		id := b.request(name)
		b.upload(name, "bb", archived(t, h, tar.Header{Typeflag: tar.TypeReg, Name: "f"}))
		b.start(name, id, `{"type":"COPY","args":["*","/home/user/d/"],"filesHash":"bb"}`)
		b.wait(name, id, "error", `"step":"1"`)
		b.call(404, `{"code":404,`, "GET", "/templates/aliases/"+name, "")
	}
	cut := b.request("cut")
	b.upload("cut", "cc", archived(t, tar.Header{Typeflag: tar.TypeReg, Name: "f"})[:512])
	b.start("cut", cut, `{"type":"COPY","args":["f","/home/user/d/"],"filesHash":"cc"}`)
	b.wait("cut", cut, "error", `"step":"1"`)

	// Tags are names of builds in the same namespace.
	for body, status := range map[string]int{
		`{"target":"mine","tags":[]}`: 400, `{"target":"mine","tags":["../x"]}`: 400, `{"target":"mine:","tags":["a"]}`: 400, `{"target":"other/mine","tags":["a"]}`: 400,
		`{"target":"mine","tags":["a:b"]}`: 400, `{"target":"mine:nonesuch","tags":["a"]}`: 404, `{"target":"base","tags":["a"]}`: 404, `{"target":"mine","tags":["v1","default"]}`: 201,
	} {
		b.call(status, "", "POST", "/templates/tags", body)
	}
	other.call(404, `{"code":404,`, "POST", "/templates/tags", `{"target":"mine","tags":["a"]}`)
	other.call(404, `{"code":404,`, "DELETE", "/templates/tags", `{"name":"mine","tags":["v1"]}`)
	other.call(404, `{"code":404,`, "GET", "/templates/mine/tags", "")
	b.call(404, `nothing was removed`, "DELETE", "/templates/tags", `{"name":"mine","tags":["v1","a"]}`) // v1 stays
	none := builder{t, s, url, s.makeKey(v1.NewKey{Namespace: "e2b", Policy: "none"}).Secret}
	none.call(403, "none.saved-images", "POST", "/v3/templates", `{"name":"other"}`)
	none.call(403, "saved-images", "POST", "/templates/tags", `{"target":"mine","tags":["more"]}`)
	b.call(501, `not supported`, "GET", "/templates/mine/nonesuch", "")
	if tags := b.call(200, `"tag":"default"`, "GET", "/templates/mine/tags", ""); strings.Count(tags, `"tag"`) != 2 || !strings.Contains(tags, `"tag":"v1"`) {
		t.Errorf("the tags are %s", tags)
	}
	b.call(200, `"templateID":"mine:v1"`, "GET", "/templates/aliases/mine:v1", "")
	b.call(404, `{"code":404,`, "GET", "/templates/aliases/mine:v2", "")
	b.call(200, `"buildCount":1`, "GET", "/templates", "")

	b.call(204, "", "DELETE", "/sandboxes/"+made.SandboxID, "")
	testkit.Until(t, "the sandboxes of builds are removed", func() bool { return b.sandboxes() == 0 })
	b.call(204, "", "DELETE", "/templates/mine", "")
	b.call(404, `{"code":404,`, "DELETE", "/templates/mine", "")
	for _, name := range []string{"mine", "mine:v1"} {
		b.call(404, "no image has the alias", "POST", "/v2/sandboxes", fmt.Sprintf(`{"templateID":%q}`, name))
	}
}

// Templates of images without bash are built and started with sh. SDKs run commands with bash themselves, and the error says what is
// missing.
func TestE2BImagesWithoutBash(t *testing.T) {
	s := newServed(t)
	s.policy("aliases: {'alpine:3': example.com/without-bash:1}\n")
	root := t.TempDir()
	testkit.CopyProgram(t, root, "sh")
	if err := os.Symlink("usr/bin", filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	}
	store := image.Open(filepath.Join(s.home, "images"), image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})})
	if _, err := store.Import(t.Context(), "dir:"+root, "example.com/without-bash:1", image.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	url, key := s.withE2B()
	b := builder{t, s, url, key}
	build := func(name, base, by string) {
		t.Helper()
		id := b.request(name)
		b.call(202, "", "POST", "/v2/templates/"+name+"/builds/"+id,
			`{`+base+`,"steps":[{"type":"RUN","args":["echo by ${BASH:-sh}"]}],"startCmd":"test -s /tmp/started || echo ${BASH:-sh} > /tmp/started","readyCmd":"test -s /tmp/started"}`)
		b.wait(name, id, "ready", `"message":"by `+by+`"`)
	}
	build("with", `"fromTemplate":"base"`, "/bin/bash")
	build("without", `"fromImage":"alpine:3"`, "sh")

	var made struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(b.call(201, "", "POST", "/v2/sandboxes", `{"templateID":"without"}`)), &made); err != nil {
		t.Fatal(err)
	}
	s.e2bCall(t, 200, "sh\n", "GET", url+"/files?path=/tmp/started", "", "X-Access-Token", made.EnvdAccessToken)
	for program, want := range map[string]string{"/bin/bash": "use an image that has bash", "/bin/sh": "exit status 3", "/bin/zsh": `"code":`} {
		answer := s.e2bCall(t, 200, want, "POST", url+"/process.Process/Start", envelope(0, `{"process":{"cmd":"`+program+`","args":["-c","exit 3"]}}`),
			"X-Access-Token", made.EnvdAccessToken, "Content-Type", "application/connect+json")
		if program == "/bin/zsh" && strings.Contains(answer, "bash") {
			t.Errorf("%s: %q", program, answer)
		}
	}
}

// A build that repeats an earlier one of the namespace takes its image, unless the client wants none or anything differs.
func TestE2BBuildsAreCached(t *testing.T) {
	s := newServed(t)
	s.plain()
	url, key := s.withE2B()
	b := builder{t, s, url, key}
	const cached = `"message":"CACHED [2/2] RUN date +%N`
	// built builds a template of a file and a command from a base, with more fields of the last step and of the request, and returns
	// what the build says.
	built := func(b builder, name, base, hash, step, fields string) string {
		t.Helper()
		id := b.request(name)
		b.upload(name, hash, archived(t, tar.Header{Typeflag: tar.TypeReg, Name: "f"}))
		b.call(202, "", "POST", "/v2/templates/"+name+"/builds/"+id, `{"fromTemplate":"`+base+`","steps":[{"type":"COPY","args":["f","/home/user/f"],"filesHash":"`+hash+`"},`+
			`{"type":"RUN","args":["date +%N | tee /home/user/n"]`+step+`}]`+fields+`}`)
		b.wait(name, id, "ready", "")
		return b.call(200, "", "GET", "/templates/"+name+"/builds/"+id+"/status", "")
	}
	is := func(what string, want bool, log string) {
		t.Helper()
		if strings.Contains(log, cached) != want || strings.Contains(log, `"CACHED`) != want {
			t.Errorf("%s: %s", what, log)
		}
	}
	imageOf := func(name string) string {
		t.Helper()
		var tags []struct{ BuildID string }
		if err := json.Unmarshal([]byte(b.call(200, "", "GET", "/templates/"+name+"/tags", "")), &tags); err != nil {
			t.Fatal(err)
		}
		return tags[0].BuildID
	}
	is("the first build", false, built(b, "one", "base", "aa", "", ""))
	first := imageOf("one")
	is("the same", true, built(b, "one", "base", "aa", "", ""))
	is("the same under another name", true, built(b, "two", "base", "aa", "", ""))
	if imageOf("one") != first || imageOf("two") != first {
		t.Errorf("the images are %s and %s, want %s", imageOf("one"), imageOf("two"), first)
	}
	is("other files", false, built(b, "files", "base", "ab", "", ""))
	is("a start command", false, built(b, "start", "base", "aa", "", `,"startCmd":"sleep 1000"`))
	is("a ready command", false, built(b, "ready", "base", "aa", "", `,"readyCmd":"true"`))
	is("another base", false, built(b, "over", "one", "aa", "", ""))
	is("another namespace", false, built(builder{t, s, url, s.keyOf("other", "")}, "one", "base", "aa", "", ""))
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // the newer image is meant from then on; names have seconds
	is("without the cache", false, built(b, "two", "base", "aa", "", `,"force":true`))
	is("a step without the cache", false, built(b, "two", "base", "aa", `,"force":true`, ""))
	if imageOf("one") != first || imageOf("two") == first {
		t.Errorf("the images are %s and %s, want %s and a new one", imageOf("one"), imageOf("two"), first)
	}

	// An image that was saved from a sandbox of the template is another one, and one that was removed is not used.
	second := imageOf("two")
	spec := small("changed")
	spec.Image = "saved:two"
	sb := createOf(t, s.with(key), spec)
	if _, err := sb.(sandpit.Committer).Commit(t.Context(), sandpit.Commit{Name: "changed"}); err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	is("beside a derived image", true, built(b, "three", "base", "aa", "", ""))
	if imageOf("three") != second {
		t.Errorf("the image is %s, want %s", imageOf("three"), second)
	}
	for _, name := range []string{"one", "two", "three"} {
		b.call(204, "", "DELETE", "/templates/"+name, "")
	}
	is("after the image was removed", false, built(b, "one", "base", "aa", "", ""))
}

// Builds are bounded for each namespace. One that runs when the server ends leaves no template, and its sandboxes are removed.
func TestE2BBuildsAreBounded(t *testing.T) {
	s := newServed(t)
	s.plain()
	url, key := s.withE2B()
	b := builder{t, s, url, key}
	endless := b.request("endless")
	b.start("endless", endless, `{"type":"RUN","args":["yes; sleep 1000"]}`)
	replaced := b.request("endless")
	second := b.request("endless")
	b.call(409, "another build of the template", "POST", "/v2/templates/endless/builds/"+second, `{"fromTemplate":"base"}`)
	b.wait("endless", replaced, "error", "a newer build of the template was requested")
	b.call(409, `has ended`, "POST", "/v2/templates/endless/builds/"+replaced, `{"fromTemplate":"base"}`)
	testkit.Until(t, "the sandboxes are those of the two that go on", func() bool { return b.sandboxes() == 3 })
	for i := range 7 { // of which the last takes the place of the oldest that waits
		name := fmt.Sprint("more", i)
		b.start(name, b.request(name), `{"type":"RUN","args":["sleep 1000"]}`)
	}
	b.call(404, `"message":"the build is not known`, "GET", "/templates/endless/builds/"+second+"/status", "")
	b.call(403, `{"code":403,"message":"8 builds of this namespace`, "POST", "/v3/templates", `{"name":"ninth"}`)
	if answer := b.call(200, `"status":"building"`, "GET", "/templates/endless/builds/"+endless+"/status?logsOffset=-1", ""); strings.Count(answer, `"level"`) > 100 {
		t.Errorf("the status has %d bytes", len(answer))
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	b.call(404, `"message":"the build is not known`, "GET", "/templates/endless/builds/"+endless+"/status", "")
	testkit.Until(t, "the sandboxes of builds are removed", func() bool { return b.sandboxes() == 0 })
	b.call(404, `{"code":404,`, "GET", "/templates/aliases/endless", "")
}

// A build whose start is refused ends, with its sandbox, also if its body can't be read. One for which the caller is asked to try
// again goes on waiting.
func TestE2BRefusedBuildsEnd(t *testing.T) {
	s := newServed(t)
	s.plain()
	url, key := s.withE2B()
	b := builder{t, s, url, key}
	s.clean()
	for body, want := range map[string]string{
		`{"steps":"x"}`: `\"steps\" must be`,
		`{"steps":[`:    "the body is not valid",
		`{"fromTemplate":"base","steps":[{"type":"NONE"}]}`: "step 1",
	} {
		id := b.request("refused")
		b.call(404, "the build is not known", "POST", "/v2/templates/other/builds/"+id, body)
		b.call(200, `"status":"waiting"`, "GET", "/templates/refused/builds/"+id+"/status", "")
		b.call(400, want, "POST", "/v2/templates/refused/builds/"+id, body)
		b.call(200, `"status":"error"`, "GET", "/templates/refused/builds/"+id+"/status", "")
		b.call(200, want, "GET", "/templates/refused/builds/"+id+"/status", "")
		if n := b.sandboxes(); n != 0 {
			t.Errorf("%s leaves %d sandboxes", body, n)
		}
	}
	b.start("busy", b.request("busy"), `{"type":"RUN","args":["sleep 1000"]}`)
	second := b.request("busy")
	b.call(409, "wait until it has ended", "POST", "/v2/templates/busy/builds/"+second, `{"fromTemplate":"base"}`)
	b.call(200, `"status":"waiting"`, "GET", "/templates/busy/builds/"+second+"/status", "")
}

// What builds leave when the server is killed, the next one removes when it starts.
func TestE2BBuildsEndWithTheServer(t *testing.T) {
	s := newServed(t)
	s.plain()
	url, key := s.withE2B()
	b := builder{t, s, url, key}
	s.clean()
	kept := create(t, s.with(key), "kept")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	kill := s.killable(url)
	b.request("waits")
	id := b.request("runs")
	b.start("runs", id, `{"type":"RUN","args":["echo begun; sleep 1000"]}`)
	testkit.Until(t, "the build runs", func() bool {
		return strings.Contains(b.call(200, "", "GET", "/templates/runs/builds/"+id+"/status", ""), `"message":"begun"`)
	})
	kill()
	s.start()
	testkit.Until(t, "the sandboxes of builds are removed", func() bool { return b.sandboxes() == 1 })
	b.call(200, kept.ID(), "GET", "/sandboxes/"+kept.ID(), "")
}

// A build ends with the key that began it, at once, also if it still waits.
func TestE2BBuildsEndWithTheirKey(t *testing.T) {
	s := newServed(t)
	s.plain()
	url, _ := s.withE2B()
	owner := s.makeKey(v1.NewKey{Namespace: "builds"})
	b := builder{t, s, url, owner.Secret}
	id := b.request("runs")
	b.start("runs", id, `{"type":"RUN","args":["echo begun; sleep 1000"]}`)
	testkit.Until(t, "the build runs", func() bool {
		return strings.Contains(b.call(200, "", "GET", "/templates/runs/builds/"+id+"/status", ""), `"message":"begun"`)
	})
	waits := b.request("waits")
	admin := s.unix()
	defer admin.Close()
	if err := admin.Call(t.Context(), "DELETE", "/v1/keys/"+owner.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	b.key = s.makeKey(v1.NewKey{Namespace: "builds"}).Secret
	b.wait("runs", id, "error", "the key is no longer valid")
	b.wait("waits", waits, "error", "the key is no longer valid")
	testkit.Until(t, "the sandboxes of the build are removed", func() bool { return b.sandboxes() == 0 })
}

// Of several starts of a build at once, one lets it begin, from its own image, and the others are refused.
func TestE2BBuildsStartOnce(t *testing.T) {
	s := newServed(t)
	s.plain()
	url, key := s.withE2B()
	b := builder{t, s, url, key}
	id := b.request("once")
	var all sync.WaitGroup
	statuses := make(chan string, 8)
	for i := range cap(statuses) {
		from := fmt.Sprintf(`{"fromImage":"nonesuch.invalid/image-%d","steps":[]}`, i)
		all.Go(func() {
			status, _, _ := s.get("POST", url+"/v2/templates/once/builds/"+id, "", from, "X-API-KEY", key)
			if statuses <- fmt.Sprint(status); status == 202 {
				b.wait("once", id, "error", fmt.Sprintf("image-%d", i))
			}
		})
	}
	all.Wait()
	close(statuses)
	count := map[string]int{}
	for status := range statuses {
		count[status]++
	}
	if count["202"] != 1 || count["409"] != cap(statuses)-1 {
		t.Errorf("they are answered with %v", count)
	}
}

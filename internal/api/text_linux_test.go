package api_test

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Variables come as a list or an object, and names that can't be are refused by name,
// before anything is started.
func TestEnvForms(t *testing.T) {
	s := serve(t, nil)
	var sb v1.Sandbox
	s.want(201, &sb, ask{method: "POST", path: "/v1/sandboxes", header: asJSON(), body: `{"env":{"A":"sandbox","B":"sandbox=1"}}`})
	for body, want := range map[string]string{
		`{"script":"echo $A,$B,$C","env":{"A":"x y","C":""}}`:                                      "x y,sandbox=1,\n",
		`{"script":"echo $A,$B,$C","env":["A=1","A=2","C=\u00e9"]}`:                                "2,sandbox=1,é\n",
		`{"argv":["cHJpbnRlbnY=","QQ=="],"env":{"A":"` + inBase64("z") + `"},"encoding":"base64"}`: "z\n",
	} {
		var out v1.Executed
		s.want(200, &out, ask{method: "POST", path: execPath(sb), header: asJSON(), body: body})
		if out.Stdout != want {
			t.Errorf("%s gives %+v, want %q", body, out, want)
		}
	}
	for _, env := range []string{`{"":"x"}`, `{"A=B":"x"}`, `{"A\u0000B":"x"}`, `["=x"]`, `["A"]`, `{"A":1}`, `["A=\u0000"]`, `{"A":"x","A":"y"}`} {
		for _, a := range []ask{
			{method: "POST", path: "/v1/sandboxes", body: `{"env":` + env + `}`},
			{method: "POST", path: execPath(sb), body: `{"argv":["true"],"env":` + env + `}`},
			{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/processes", body: `{"argv":["true"],"env":` + env + `}`},
		} {
			a.header = asJSON()
			s.refused(400, "invalid", a)
		}
	}
}

func asJSON() map[string]string { return map[string]string{"Content-Type": "application/json"} }

func inBase64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// Bytes that are not text go in and come out as they are, wherever there is the field encoding.
func TestOtherBytes(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{Env: v1.Env{Vars: map[string]string{"S": inBase64("\xfe")}}, Encoding: v1.Base64})
	odd := "/tmp/\xff"
	cmd := v1.Command{
		Script: inBase64("printf '%s|%s|%s|' \"$V\" \"$S\" \"$(pwd)\"; printf '\x80' >&2; ln -s '\xfd' l"),
		Env:    v1.Env{List: []string{inBase64("V=\xfc")}}, Dir: inBase64(odd), Encoding: v1.Base64,
	}
	s.want(204, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/files/mkdir?path=" + url.QueryEscape(odd)})
	var p v1.Process
	s.want(201, &p, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/processes", body: v1.Command{Argv: []string{inBase64("sleep"), inBase64("7321")}, Encoding: v1.Base64}})
	if p.Encoding != "" || p.Argv[1] != "7321" {
		t.Errorf("%+v", p)
	}
	var out v1.Executed
	s.want(200, &out, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: cmd}})
	if stdout, stderr := outputOf(t, out); stdout != "\xfc|\xfe|"+odd+"|" || stderr != "\x80" {
		t.Errorf("%q, %q", stdout, stderr)
	}
	if out.Process.Encoding != v1.Base64 || out.Process.Argv[2] != cmd.Script {
		t.Errorf("%+v", out.Process)
	}
	var list v1.FileList
	s.want(200, &list, ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/files/list?path=" + url.QueryEscape(odd)})
	if len(list.Entries) != 1 || list.Entries[0].Encoding != v1.Base64 || list.Entries[0].Name != inBase64("l") {
		t.Errorf("%+v", list.Entries)
	}
	var link v1.Link
	s.want(200, &link, ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/files/readlink?path=" + url.QueryEscape(odd+"/l")})
	if link != (v1.Link{Target: inBase64("\xfd"), Encoding: v1.Base64}) {
		t.Errorf("%+v", link)
	}
	for field, body := range map[string]string{"argv[0]": `{"argv":["?"],"encoding":"base64"}`, "script": `{"script":"?","encoding":"base64"}`, "encoding": `{"argv":["true"],"encoding":"hex"}`} {
		if e := s.refused(400, "invalid", ask{method: "POST", path: execPath(sb), header: asJSON(), body: body}); !strings.Contains(e.Message, `"`+field+`"`) {
			t.Errorf("%s: %+v", body, e)
		}
	}
}

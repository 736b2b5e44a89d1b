package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// What can be read in two ways is refused, and the message names it.
func TestStrict(t *testing.T) {
	for _, c := range []struct {
		body string
		into any
		want string // in the message; empty: it is read
		hint string
	}{
		{`{"argv":["a"],"argv":["b"]}`, new(v1.Exec), `"argv" is given twice`, ""},
		{`{"argv":["a"],"\u0061rgv":["b"]}`, new(v1.Exec), `"argv" is given twice`, ""},
		{`{"ARGV":["a"]}`, new(v1.Exec), `"ARGV" is unknown`, `"argv"`},
		{`{"argv":["a"],"Argv":["b"]}`, new(v1.Exec), `"Argv" is unknown`, `"argv"`},
		{`{"ſcript":"a"}`, new(v1.Exec), `"ſcript" is unknown`, `"script"`}, // folds to an s
		{`{"limits":{"disk":1}}`, new(v1.Change), `"limits.disk" is unknown`, "memory, cpus, pids"},
		{`{"limits":{"memory":null}}`, new(v1.Change), `"limits.memory" can't be null`, "leave it out"},
		{`{"labels":{"a":null}}`, new(v1.Change), "", ""},
		{`{"labels":{"a":null}}`, new(v1.Spec), `"labels.a" can't be null`, "leave it out"},
		{`{"argv":["a",null]}`, new(v1.Exec), `"argv[1]" can't be null`, "leave it out"},
		{`{"mounts":[ null]}`, new(v1.Spec), `"mounts[0]" can't be null`, ""},
		{`{"argw":["a"]}`, new(v1.Exec), `"argw" is unknown`, "argv, script, from_image"},
		{`{"cwd":"/"}`, new(v1.Exec), `"cwd" is unknown`, "dir,"},
		{`{"memory":1}`, new(v1.Spec), `"memory" is unknown`, "limits,"},
		{`{"limits":{"memory":1, "memory":2}}`, new(v1.Spec), `"limits.memory" is given twice`, ""},
		{`{"mounts":[{"source":"/a"},{"source":"/a","SOURCE":"/b"}]}`, new(v1.Spec), `"mounts[1].SOURCE" is unknown`, `"source"`},
		{`{"labels":{"a":"1","b":"2","a":"3"}}`, new(v1.Spec), `"labels.a" is given twice`, ""},
		{`{"labels":{"a":"1","A":"2"}}`, new(v1.Spec), "", ""}, // names of the caller's own
		{`{"name":"\ud800"}`, new(v1.Spec), `"name" contains an unpaired surrogate`, ""},
		{`{"name":"\udc00\ud800"}`, new(v1.Spec), `"name" contains an unpaired surrogate`, ""},
		{`{"labels":{"\ud800":"1"}}`, new(v1.Spec), "contains an unpaired surrogate", ""},
		{`{"env":["A=\ud83d\ude00\\ud800"],"write":null,"read_only":false,"idle":-1.5e0}`, new(v1.Spec), "", ""},
		{"{\"name\":\"\xff\"}", new(v1.Spec), "not UTF-8", "base64"},
		{"\t{ \"argv\" : [ \"a\" , \"b\\\"\\\\\" ] , \"terminal\" : { \"rows\" : 1 , \"cols\" : 2 } }\r\n", new(v1.Exec), "", ""},
		{`{} {}`, new(v1.Exec), "unexpected data after", ""},
		{`[]`, new(v1.Exec), "not a JSON object", ""},
		{`{"argv":"ls -l"}`, new(v1.Exec), `"argv" must be a list of strings`, "/docs"},
		{`{"argv":{"a":"b"}}`, new(v1.Exec), `"argv" must be a list of strings`, ""},
		{`{"argv":["a",1]}`, new(v1.Exec), `"argv[1]" must be a string`, ""},
		{`{"stdin":"yes"}`, new(v1.Exec), `"stdin" must be true or false`, ""},
		{`{"limits":[]}`, new(v1.Spec), `"limits" must be an object`, ""},
		{`{"limits":{"memory":"1G"}}`, new(v1.Spec), `"limits.memory" must be a whole number`, ""},
		{`{"limits":{"memory":1e99}}`, new(v1.Spec), `"limits.memory" must be a whole number in range`, ""},
		{`{"labels":{"a":1}}`, new(v1.Spec), `"labels.a" must be a string`, ""},
		{`{"mounts":[{"read_only":0}]}`, new(v1.Spec), `"mounts[0].read_only" must be true or false`, ""},
		{`{"stdin_data":[1]}`, new(v1.Exec), `"stdin_data" must be a string in base64`, ""},
		{`{"argv":["a"]`, new(v1.Exec), "it ends before the JSON is complete", ""},
		{`{"limits":null,"mounts":[],"labels":{}}`, new(v1.Spec), "", ""},
	} {
		err := Parse([]byte(c.body), c.into)
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(sandpit.Hint(err), c.hint)):
			t.Errorf("%s: %v (hint: %s)", c.body, err, sandpit.Hint(err))
		}
	}
}

// repeated is strict for duplicates, by the tokens of encoding/json.
func repeated(dec *json.Decoder) bool {
	tok, err := dec.Token()
	if err != nil {
		return false
	}
	switch tok {
	case json.Delim('['):
		for dec.More() {
			if repeated(dec) {
				return true
			}
		}
		_, _ = dec.Token()
	case json.Delim('{'):
		seen := map[json.Token]bool{}
		for dec.More() {
			name, _ := dec.Token()
			if seen[name] || repeated(dec) {
				return true
			}
			seen[name] = true
		}
		_, _ = dec.Token()
	}
	return false
}

// Of all that encoding/json takes, strict refuses what has a name twice, and lets
// through what was written by encoding/json.
func FuzzStrict(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":{"b":[1,{"c":"\u0061\"","c":null}]}}`, `{"a":1,"\u0061":2}`, `{"a":"\ud83d\ude00","b":[[],{}]}`, `{"a":"\ud800\u0041"}`, ` { "a" : [ true , false , null , -1.5e+3 ] } `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = bytes.TrimSpace(data)
		var v map[string]any
		if len(data) == 0 || data[0] != '{' || json.Unmarshal(data, &v) != nil {
			return
		}
		err := strict(data, reflect.TypeOf(v))
		if err == nil && repeated(json.NewDecoder(bytes.NewReader(data))) {
			t.Errorf("%q is taken", data)
		}
		again, _ := json.Marshal(v)
		if err := strict(again, reflect.TypeOf(v)); err != nil {
			t.Errorf("%q is refused: %v", again, err)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	var edits strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&edits, `,{"source":"/a/%d","target":"/b/%d","read_only":true}`, i, i)
	}
	for name, body := range map[string]string{
		"create": `{"name":"box","labels":{"team":"a","of":"b"},"env":["A=b","C=d"],"limits":{"memory":268435456,"cpus":1,"life":3600},"mounts":[{"source":"/srv/data","target":"/data","read_only":true}]}`,
		"many":   `{"mounts":[` + edits.String()[1:] + `]}`,
	} {
		data := []byte(body)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if err := Parse(data, new(v1.Spec)); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+", not strict", func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if err := json.Unmarshal(data, new(v1.Spec)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package image

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A record is what is kept of an image to start it: everything that its
// manifest and config say and a start needs, in a form that is read in a few
// microseconds. The file images/SHA256 holds it, named by the manifest's
// digest; users of the image lock it.
//
// The form is a line per fact: a word, and strings in Go's quotes.
type record struct {
	digest   string // of the manifest
	platform string
	created  time.Time
	size     int64    // bytes of all blobs
	layers   []string // digests of the layers' tars (diff-ids), hexadecimal, lowest first, each once
	blobs    []string // hexadecimal: the manifest, the config, the layers
	config   Config

	// Of an image that was saved from a sandbox: its namespace, the layers that were saved, and
	// whether they lie over the host image.
	saved bool
	owner string
	own   []string // diff-ids, hexadecimal; some of layers
	host  bool
}

const recordHeader = "sandpit-image 1"

func (r *record) hex() string { return strings.TrimPrefix(r.digest, DigestPrefix) }

func (r *record) encode() []byte {
	b := append([]byte(recordHeader), '\n')
	line := func(key string, values ...string) {
		b = append(b, key...)
		for _, v := range values {
			b = append(b, ' ')
			b = strconv.AppendQuote(b, v)
		}
		b = append(b, '\n')
	}
	line("digest", r.digest)
	line("platform", r.platform)
	line("created", strconv.FormatInt(unixOrZero(r.created), 10))
	line("size", strconv.FormatInt(r.size, 10))
	for _, l := range r.layers {
		line("layer", l)
	}
	for _, l := range r.blobs {
		line("blob", l)
	}
	c := &r.config
	if c.Entrypoint != nil {
		line("entrypoint", c.Entrypoint...)
	}
	if c.Cmd != nil {
		line("cmd", c.Cmd...)
	}
	for _, e := range c.Env {
		line("env", e)
	}
	line("dir", c.WorkingDir)
	line("user", c.User)
	for _, v := range c.Volumes {
		line("volume", v)
	}
	line("stop", c.StopSignal)
	keys := make([]string, 0, len(c.Labels))
	for k := range c.Labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		line("label", k, c.Labels[k])
	}
	if r.saved {
		line("saved", r.owner, strconv.FormatBool(r.host))
		for _, l := range r.own {
			line("own", l)
		}
	}
	line("end")
	return b
}

func unixOrZero(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func timeOrZero(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n == 0 {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}

// lines calls f with the words of each line of a file that starts with header
// and ends with the line "end".
func lines(data []byte, header string, f func(key string, values []string)) error {
	rest, ok := strings.CutPrefix(string(data), header+"\n")
	if !ok {
		return fmt.Errorf("it does not start with %q", header)
	}
	for line := range strings.Lines(rest) {
		line, ok := strings.CutSuffix(line, "\n")
		if line == "end" {
			return nil
		}
		key, args, _ := strings.Cut(line, " ")
		var values []string
		for ok && args != "" {
			q, err := strconv.QuotedPrefix(args)
			if err != nil {
				return fmt.Errorf("bad line %q", fault.Clip(line))
			}
			v, err := strconv.Unquote(q)
			if err != nil {
				return fmt.Errorf("bad line %q", fault.Clip(line))
			}
			values = append(values, v)
			args = strings.TrimPrefix(args[len(q):], " ")
		}
		f(key, values)
	}
	return fmt.Errorf("it is truncated")
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func decodeRecord(data []byte) (*record, error) {
	r := new(record)
	c := &r.config
	err := lines(data, recordHeader, func(key string, v []string) {
		switch key {
		case "digest":
			r.digest = first(v)
		case "platform":
			r.platform = first(v)
		case "created":
			r.created = timeOrZero(first(v))
		case "size":
			r.size, _ = strconv.ParseInt(first(v), 10, 64)
		case "layer":
			r.layers = append(r.layers, first(v))
		case "blob":
			r.blobs = append(r.blobs, first(v))
		case "entrypoint":
			c.Entrypoint = append([]string{}, v...)
		case "cmd":
			c.Cmd = append([]string{}, v...)
		case "env":
			c.Env = append(c.Env, first(v))
		case "dir":
			c.WorkingDir = first(v)
		case "user":
			c.User = first(v)
		case "volume":
			c.Volumes = append(c.Volumes, first(v))
		case "stop":
			c.StopSignal = first(v)
		case "saved":
			if len(v) == 2 {
				r.saved, r.owner, r.host = true, v[0], v[1] == "true"
			}
		case "own":
			r.own = append(r.own, first(v))
		case "label":
			if len(v) == 2 {
				if c.Labels == nil {
					c.Labels = make(map[string]string)
				}
				c.Labels[v[0]] = v[1]
			}
		}
	})
	if err == nil && (!ValidDigest(r.digest) || len(r.layers) == 0) {
		err = fmt.Errorf("it has no digest or no layer")
	}
	for _, l := range append(r.layers, r.blobs...) {
		if err == nil && !validHex(l) {
			err = fmt.Errorf("it is the record of %q", fault.Clip(l))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading image record: %w", err)
	}
	return r, nil
}

package e2b

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

const filesPath = "/files"

// transferRoutes returns the routes that send and receive files.
func transferRoutes() []route {
	return []route{
		{method: http.MethodGet, path: filesPath, id: "readFile", guarded: true, audited: true, handle: readFile},
		{method: http.MethodPost, path: filesPath, id: "writeFiles", audited: true, handle: writeFiles},
		{method: http.MethodPost, path: composePath, id: "composeFile", audited: true, handle: composeFile},
	}
}

// gzipType is the coding of compressed content.
const gzipType = "gzip"

// readFile sends a file, or a range of it. It is compressed for clients that accept nothing else, as SDKs do that were
// told to: others also accept it as it is, which is quicker.
func readFile(c *call) error {
	q := c.R.URL.Query()
	if err := c.Intend(q.Get("path")); err != nil {
		return err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	f, err := c.files(ownUser(q.Get("username")))
	if err != nil {
		return err
	}
	p := f.inside(q.Get("path"))
	if c.R.Header.Get("Accept-Encoding") == gzipType && c.R.Header.Get("Range") == "" && c.R.Method == http.MethodGet {
		return c.sendCompressed(f, p)
	}
	return stream.SendFile(c.Call, f, p, func(_ sandpit.FileInfo, h http.Header) { setName(h, p) })
}

// setName sets the name under which a browser saves a file. It shows none, as if it were a page of the server.
func setName(h http.Header, p string) {
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(p)}))
}

// sendCompressed sends a file that is not empty as gzip.
func (c *call) sendCompressed(f userFiles, p string) error {
	r, err := f.Open(c.Ctx, p, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	h := c.W.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	setName(h, p)
	if sized, ok := r.(interface{ Size() int64 }); ok && sized.Size() == 0 {
		h.Set("Content-Length", "0")
		c.W.WriteHeader(http.StatusOK)
		return nil
	}
	h.Set("Content-Encoding", gzipType)
	z, _ := gzip.NewWriterLevel(c.W, gzip.BestSpeed) // a valid level
	if _, err := stream.Copy(z, r); err != nil {
		return err
	}
	return z.Close()
}

// written describes a file that was written.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// metadataHeader begins the names of headers with metadata of files, and metadataAttr the names
// of the extended attributes that have it.
const (
	metadataHeader = "X-Metadata-"
	metadataAttr   = "e2b."
)

// metadataOf returns the metadata of the files of a request. Of a key that is given more than
// once, the first value counts.
func metadataOf(h http.Header) (map[string]string, error) {
	var all map[string]string
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataHeader)
		if !ok || key == "" {
			continue
		}
		for _, c := range []byte(key + values[0]) {
			if c < ' ' || c > '~' {
				return nil, gate.Invalid(fmt.Sprintf("the metadata %.100q is not printable ASCII", key), "")
			}
		}
		if all == nil {
			all = map[string]string{}
		}
		all[strings.ToLower(key)] = values[0]
	}
	return all, nil
}

// attrsOf returns metadata as attributes of a file.
func attrsOf(metadata map[string]string) map[string]string {
	var attrs map[string]string
	for key, value := range metadata {
		if attrs == nil {
			attrs = map[string]string{}
		}
		attrs[metadataAttr+key] = value
	}
	return attrs
}

// metadataIn returns the metadata among the attributes of a file. Programs of the sandbox may have set
// them, too: bytes that are not printable ASCII are left out with their key.
func metadataIn(attrs map[string]string) map[string]string {
	var all map[string]string
	for name, value := range attrs {
		key, ok := strings.CutPrefix(name, metadataAttr)
		if !ok || key == "" || strings.ContainsFunc(key+value, func(r rune) bool { return r < ' ' || r > '~' }) {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[key] = value
	}
	return all
}

// maxFiles bounds the files of one request.
const maxFiles = 10_000

// writeFiles writes the body as a file, or each part of a form. A part has its path as its file
// name, unless the query has one. Missing directories are created.
func writeFiles(c *call) error {
	q := c.R.URL.Query()
	if err := c.Intend(q.Get("path")); err != nil {
		return err
	}
	metadata, err := metadataOf(c.R.Header)
	if err != nil {
		return err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	f, err := c.files(ownUser(q.Get("username")))
	if err != nil {
		return err
	}
	var body io.Reader = c.Body(-1, 0)
	switch coding := c.R.Header.Get("Content-Encoding"); coding {
	case "", "identity":
	case gzipType:
		if body, err = gzip.NewReader(body); err != nil {
			return badBody(err)
		}
	default:
		return &gate.Refusal{Code: errcode.UnsupportedMedia, Message: fmt.Sprintf("the Content-Encoding %.40q is not supported", coding), Hint: "use gzip"}
	}
	out := bytes.NewBufferString("[") // the answer, which grows as files are written
	write := func(p string, r io.Reader) error {
		if p == "" {
			return gate.Invalid("a file has no path", "name it in the query, or as the file name of its part")
		}
		whole := f.absolute(f.inside(p))
		one, err := json.Marshal(written{whole, path.Base(whole), "file", metadata})
		if err != nil {
			return err
		}
		if err := c.HoldMore(gate.InMemory, int64(len(one)+1)*gate.HeldByte); err != nil {
			return err
		}
		src := &source{r: r}
		if _, err := f.Write(c.Ctx, f.inside(p), src, sandpit.WriteOptions{Parents: true, Xattrs: attrsOf(metadata)}); err != nil {
			if src.err != nil {
				return badBody(src.err)
			}
			return err
		}
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		out.Write(one)
		return nil
	}
	kind, params, _ := mime.ParseMediaType(c.R.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		err = write(q.Get("path"), body)
	} else {
		err = eachFile(stream.NewForm(body, params["boundary"]), func(name string, r io.Reader) error {
			if p := q.Get("path"); p != "" {
				name = p
			}
			return write(name, r)
		})
	}
	if err != nil {
		return err
	}
	out.WriteByte(']')
	writeJSON(c.W, http.StatusOK, out.Bytes())
	return nil
}

// source remembers why reading failed.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		s.err = err
	}
	return n, err
}

// badBody returns the error of a body that can't be read: that of the gate, or of its coding.
func badBody(err error) error {
	if errcode.Of(err) != errcode.Internal {
		return err
	}
	return gate.Invalid("the body is not valid: "+err.Error(), "")
}

// eachFile calls write for each part of a form that is a file.
func eachFile(form *stream.Form, write func(name string, r io.Reader) error) error {
	for n := 0; ; n++ {
		part, err := form.Next()
		if err == io.EOF { //nolint:errorlint // it is that value
			return nil
		}
		if err != nil {
			return err
		}
		if n == maxFiles {
			return &gate.Refusal{Code: errcode.TooLarge, Message: fmt.Sprintf("a request has at most %d files", maxFiles), Hint: "send several requests"}
		}
		name, isFile := fileName(part.Header.Get("Content-Disposition"))
		if !isFile {
			continue
		}
		if err := write(name, part); err != nil {
			return err
		}
	}
}

// fileName returns the file name of the part of a form with its directories, which Part.FileName removes, and whether the part is
// a file. Browsers and SDKs escape three characters in the name (HTML Standard, multipart form data). Some of them escape
// backslashes, too (RFC 2045), and for others a backslash stands for itself, also before the last quote.
func fileName(disposition string) (name string, isFile bool) {
	_, params, err := mime.ParseMediaType(disposition)
	if err != nil {
		rest, ok := strings.CutPrefix(disposition, `form-data; name="file"; filename="`)
		if params = nil; ok {
			params = map[string]string{"name": "file", "filename": strings.TrimSuffix(rest, `"`)}
		}
	}
	return strings.NewReplacer("%22", `"`, "%0A", "\n", "%0D", "\r").Replace(params["filename"]), params["name"] == "file"
}

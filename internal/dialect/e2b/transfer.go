package e2b

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strconv"
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
		{method: http.MethodPost, path: filesPath, id: "writeFiles", guarded: true, audited: true, handle: writeFiles},
	}
}

// gzipType is the coding of compressed content.
const gzipType = "gzip"

// readFile sends a file. It is compressed for clients that accept nothing else, as SDKs do that were
// told to: others also accept it as it is, which is quicker.
func readFile(c *call) error {
	q := c.R.URL.Query()
	p := inside(q.Get("path"))
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
	r, err := f.Open(c.Ctx, p, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	h := c.W.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(p)})) // no browser may show it as ours
	h.Set("X-Content-Type-Options", "nosniff")
	length := int64(-1)
	if sized, ok := r.(interface{ Size() int64 }); ok {
		length = sized.Size()
	}
	if c.R.Header.Get("Accept-Encoding") == gzipType && length != 0 {
		h.Set("Content-Encoding", gzipType)
		z, _ := gzip.NewWriterLevel(c.W, gzip.BestSpeed) // a valid level
		if _, err := stream.Copy(z, r); err != nil {
			return err
		}
		return z.Close()
	}
	if length >= 0 {
		h.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	c.W.WriteHeader(http.StatusOK)
	sent, err := stream.Copy(c.W, r)
	if err == nil && sent < length {
		err = errors.New("the file was truncated while it was read")
	}
	return err
}

// written describes a file that was written.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`
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
	for name := range c.R.Header {
		if strings.HasPrefix(name, "X-Metadata-") {
			return unsupported("metadata of files is")
		}
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
	out := []written{}
	write := func(p string, r io.Reader) error {
		if p == "" {
			return gate.Invalid("a file has no path", "name it in the query, or as the file name of its part")
		}
		src := &source{r: r}
		if _, err := f.Write(c.Ctx, inside(p), src, sandpit.WriteOptions{Parents: true}); err != nil {
			if src.err != nil {
				return badBody(src.err)
			}
			return err
		}
		p = f.absolute(inside(p))
		out = append(out, written{p, path.Base(p), "file"})
		return nil
	}
	kind, params, _ := mime.ParseMediaType(c.R.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		err = write(q.Get("path"), body)
	} else {
		err = eachFile(multipart.NewReader(body, params["boundary"]), func(name string, r io.Reader) error {
			if p := q.Get("path"); p != "" {
				name = p
			}
			return write(name, r)
		})
	}
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, out)
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
func eachFile(form *multipart.Reader, write func(name string, r io.Reader) error) error {
	for n := 0; ; n++ {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return badBody(err)
		}
		if n == maxFiles {
			return &gate.Refusal{Code: errcode.TooLarge, Message: fmt.Sprintf("a request has at most %d files", maxFiles), Hint: "send several requests"}
		}
		if part.FormName() != "file" {
			continue
		}
		if err := write(fileName(part), part); err != nil {
			return err
		}
	}
}

// fileName returns the file name of a part with its directories, which Part.FileName removes. Browsers
// and SDKs escape three characters in it (HTML Standard, multipart form data).
func fileName(part *multipart.Part) string {
	_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	return strings.NewReplacer("%22", `"`, "%0A", "\n", "%0D", "\r").Replace(params["filename"])
}

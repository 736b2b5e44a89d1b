package api

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func archiveRoutes() []Route {
	const (
		tag     = "Files"
		archive = oneSandbox + "/files/archive"
	)
	formats := func(names ...string) Param {
		return Param{Name: "format", Type: "string", Enum: names, Doc: "Default tar"}
	}
	return []Route{
		{Method: http.MethodGet, Path: archive, ID: "downloadArchive", Tag: tag, Summary: "Download a directory or file as an archive", Query: []Param{path(""), formats("tar", "zip")}, Status: http.StatusOK, Other: []string{"application/x-tar", "application/zip"}, Guarded: true, Fails: []string{errcode.OutputTooLarge}, handle: downloadArchive},
		{
			Method: http.MethodPut, Path: archive, ID: "uploadArchive", Tag: tag, Summary: "Unpack an archive below a directory", Text: "Nothing is ever written outside of the directory.",
			Query: []Param{path("The directory, which must exist"), formats("tar", "tar.gz", "zip")}, Raw: octets, Status: http.StatusNoContent, Guarded: true, Fails: []string{errcode.TooLarge}, handle: only(uploadArchive),
		},
	}
}

// Memory in bytes that the contents of zip archives take, garbage included.
const (
	heldListed = 8   // of a byte in the table of contents of an archive that is read
	heldEntry  = 512 // of an entry of an archive that is written, beside its name
)

// downloadArchive sends a directory or file as the guest packs it.
func downloadArchive(c *call) error {
	q := c.query()
	path, format := q.text("path"), q.text("format")
	if q.err != nil {
		return q.err
	}
	files, err := c.streamFiles()
	if err != nil {
		return err
	}
	h := c.W.Header()
	h.Set("Content-Disposition", "attachment")
	h.Set("X-Content-Type-Options", "nosniff")
	r, w := io.Pipe()
	go func() {
		defer c.Protect("packing files", func(err error) { w.CloseWithError(err) })
		w.CloseWithError(files.Download(c.Ctx, path, w))
	}()
	defer r.CloseWithError(gate.ErrClientGone)
	if format == "zip" {
		h.Set("Content-Type", "application/zip")
		return c.sendZip(r)
	}
	h.Set("Content-Type", "application/x-tar")
	return stream.SendOut(c.Call, http.StatusOK, r, -1)
}

// sendZip makes a zip archive of a tar stream. It is the guest's: only names,
// modes, times and content are taken from it.
func (c *call) sendZip(r io.Reader) error {
	tr := tar.NewReader(bufio.NewReaderSize(r, 64<<10))
	buf := stream.Buffers{}.Get()
	defer stream.Buffers{}.Put(buf)
	var zw *zip.Writer
	var listed int64 // memory of the table of contents, which is at its end
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading the archive from the guest: %w", err)
		}
		if zw == nil { // from here on there is an answer
			zw = zip.NewWriter(stream.PlainWriter{Writer: c.W})
		}
		if listed += heldEntry + int64(len(h.Name)); listed > gate.FreeBody {
			if err := c.Hold(gate.InMemory, listed); err != nil {
				return codec.Unheld(err)
			}
		}
		if err := addToZip(zw, h, tr, buf); err != nil {
			return err
		}
	}
	if zw == nil {
		zw = zip.NewWriter(stream.PlainWriter{Writer: c.W})
	}
	return zw.Close()
}

func addToZip(zw *zip.Writer, h *tar.Header, content io.Reader, buf []byte) error {
	info := h.FileInfo()
	entry := &zip.FileHeader{Name: h.Name, Modified: h.ModTime, Method: zip.Deflate}
	entry.SetMode(info.Mode())
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink:
		content, entry.Method = strings.NewReader(h.Linkname), zip.Store
	case tar.TypeDir:
		entry.Method = zip.Store
		if !strings.HasSuffix(entry.Name, "/") {
			entry.Name += "/"
		}
	default:
		return nil // zip has nothing for it
	}
	w, err := zw.CreateHeader(entry)
	if err != nil || h.Typeflag == tar.TypeDir {
		return err
	}
	_, err = io.CopyBuffer(w, struct{ io.Reader }{content}, buf)
	return err
}

// uploadArchive hands an archive to the guest, which unpacks it, as tar.
func uploadArchive(c *call) error {
	q := c.query()
	path, format := q.text("path"), q.text("format")
	if q.err != nil {
		return q.err
	}
	files, err := c.streamFiles()
	if err != nil {
		return err
	}
	var src io.Reader = strings.NewReader("")
	if c.R.Body != http.NoBody {
		src = c.Body(-1, 0)
	}
	switch format {
	case "tar.gz":
		zr, err := gzip.NewReader(src)
		if err != nil {
			return badArchive(err)
		}
		src = zr // what it becomes is bounded by the sandbox's disk
	case "zip":
		return c.uploadZip(files, path, src)
	}
	return files.Upload(c.Ctx, path, src)
}

// badArchive marks an error as one in the client's data, unless it is one of the server.
func badArchive(err error) error {
	var r *gate.Refusal
	if errors.As(err, &r) {
		return err
	}
	return fault.Errorf(sandpit.ErrInvalid, "reading the archive: %w", err)
}

// uploadZip makes a tar stream of a zip archive. Its table of content is at its
// end, so that it has to be held: in a file that has no name.
func (c *call) uploadZip(files sandpit.Files, path string, src io.Reader) error {
	spool, err := os.CreateTemp("", "sandpit-zip-")
	if err == nil {
		defer spool.Close()
		err = os.Remove(spool.Name())
	}
	if err != nil {
		return c.noZip(err)
	}
	size, err := io.Copy(&gate.Holder{Call: c.Call, Kind: gate.OnDisk, W: spool, Each: 1}, src)
	if err != nil {
		return c.noZip(err)
	}
	list := &listing{spool, &gate.Holder{Call: c.Call, Kind: gate.InMemory, Free: gate.FreeBody, Each: heldListed}}
	zr, err := zip.NewReader(list, size)
	if err != nil {
		return c.noZip(badArchive(err))
	}
	list.held = nil // what is read from now on is content
	if err := checkZip(zr, size); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() {
		defer c.Protect("reading a zip archive", func(err error) { w.CloseWithError(err) })
		w.CloseWithError(zipToTar(zr, w))
	}()
	defer r.CloseWithError(gate.ErrClientGone)
	return files.Upload(c.Ctx, path, r)
}

// noZip makes the error of an archive that can't be held say what to do. That of a
// file of the server's is not one of a file in the sandbox, and nobody else's business.
func (c *call) noZip(err error) error {
	const hint = "send it as tar, which the server need not hold in memory"
	var r *gate.Refusal
	var file *fs.PathError
	switch {
	case errors.As(err, &r) && r.Code == errcode.TooLarge:
		return &gate.Refusal{Code: r.Code, Message: "the zip archive is too large for the server's memory", Hint: hint}
	case errors.As(err, &file):
		c.api.gate.Log().Error("storing a zip archive failed", "request", c.ID, "error", err)
		return &gate.Refusal{Code: errcode.Unavailable, Message: "the server has no space for a zip archive", Hint: hint}
	}
	return err
}

// listing is a zip archive while its table of contents is read, which becomes
// objects in memory.
type listing struct {
	*os.File
	held *gate.Holder // nil: it has been read
}

// ReadAt reads a part.
func (l *listing) ReadAt(b []byte, at int64) (int, error) {
	if l.held != nil {
		if err := l.held.Add(len(b)); err != nil {
			return 0, err
		}
	}
	return l.File.ReadAt(b, at)
}

// maxDeflate is about how much smaller DEFLATE makes anything at most (zlib's
// technical details).
const maxDeflate = 1032

// checkZip refuses an archive that says it holds more than can be in so many bytes:
// its entries lie over each other, and unpacking them would never end.
func checkZip(zr *zip.Reader, size int64) error {
	var total uint64
	for _, f := range zr.File {
		total += min(f.UncompressedSize64, 1<<40)
		if total/maxDeflate > uint64(size) {
			return gate.Invalid("the archive declares more entries than it can contain", "create the archive again")
		}
	}
	return nil
}

// zipToTar writes the entries of a zip archive as tar. Where they may go is for
// the guest to decide; what they are is decided here.
func zipToTar(zr *zip.Reader, w io.Writer) error {
	tw := tar.NewWriter(w)
	for _, f := range zr.File {
		if err := addToTar(tw, f); err != nil {
			return badArchive(fmt.Errorf("%.200q: %w", f.Name, err))
		}
	}
	return tw.Close()
}

// maxLink is the longest target of a symbolic link, in bytes (PATH_MAX).
const maxLink = 4096

func addToTar(tw *tar.Writer, f *zip.File) error {
	h := &tar.Header{Name: f.Name, Mode: int64(f.Mode().Perm()), ModTime: f.Modified, Format: tar.FormatPAX}
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(0, 0)
	}
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	switch f.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag = tar.TypeDir
		return tw.WriteHeader(h)
	case fs.ModeSymlink:
		target, err := io.ReadAll(io.LimitReader(r, maxLink+1))
		if err != nil {
			return err
		}
		if len(target) > maxLink {
			return errors.New("the target of the link is too long")
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(target)
		return tw.WriteHeader(h)
	case 0:
	default:
		return errors.New("it is not a file, a directory or a link")
	}
	h.Typeflag, h.Size = tar.TypeReg, int64(f.UncompressedSize64)
	if h.Size < 0 {
		return errors.New("its size is invalid")
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(tw, r)
	if err == nil && n != h.Size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

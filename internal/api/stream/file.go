package stream

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// largeFile is the size from which content is not sent at once, in bytes.
const largeFile = 32 << 10

// SendFile sends a file, or a range of it. Its length is that at the moment of
// the request: of a file that shrinks meanwhile the answer is broken off. Files
// whose length is not told, as in /proc, are sent to their end. HEAD opens the file, so
// that its status is that of GET, and reads nothing. found may add headers.
func SendFile(c *gate.Call, files sandpit.Files, path string, found func(sandpit.FileInfo, http.Header)) error {
	info, err := files.Stat(c.Ctx, path)
	if err != nil {
		return err
	}
	h := c.W.Header()
	part, status := span{0, -1}, http.StatusOK
	if asked := c.R.Header.Get("Range"); asked != "" && info.Size > 0 && c.R.Header.Get("If-Range") == "" {
		var ok bool
		if part, ok = parseRange(asked, info.Size); !ok {
			h.Set("Content-Range", "bytes */"+strconv.FormatInt(info.Size, 10))
			return &gate.Refusal{Code: errcode.InvalidRange, Message: "the requested range is not within the file", Hint: "request bytes=FROM-TO within the size of the file"}
		}
		if part.length >= 0 {
			status = http.StatusPartialContent
		}
	}
	length, wanted := part.length, part.length
	head := c.R.Method == http.MethodHead
	if head {
		wanted = 0
	}
	r, err := files.Open(c.Ctx, path, part.from, wanted)
	if err != nil {
		return err
	}
	defer r.Close()
	if sized, ok := r.(interface{ Size() int64 }); ok && wanted < 0 {
		// Of the file that was opened: another one may have taken the place of
		// that which was looked at.
		length = sized.Size()
	} else if head && length < 0 && info.Size > 0 {
		length = info.Size
	}
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment") // it is the guest's: no browser may show it as ours
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", info.ModTime.UTC().Format(http.TimeFormat))
	found(info, h)
	if length >= 0 {
		h.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	if status == http.StatusPartialContent {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.from, part.from+length-1, info.Size))
	}
	if head {
		c.W.WriteHeader(status)
		return nil
	}
	return SendOut(c, status, r, length)
}

// SendOut sends the content of r. A length of -1 is unknown.
func SendOut(c *gate.Call, status int, r io.Reader, length int64) error {
	buf := Buffers{}.Get()
	defer Buffers{}.Put(buf)
	// What can't even be begun is an error with a status of its own.
	n, err := io.ReadAtLeast(r, buf, 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n > largeFile {
		c.Conn().Grow()
	}
	c.W.WriteHeader(status)
	if _, err := c.W.Write(buf[:n]); err != nil {
		return err
	}
	sent, err := io.CopyBuffer(PlainWriter{Writer: c.W}, r, buf)
	if err != nil {
		return err
	}
	if length >= 0 && sent+int64(n) < length {
		return errors.New("the file was truncated while it was read")
	}
	return nil
}

// span is a part of a file. A length of -1 is all of it.
type span struct{ from, length int64 }

// parseRange reads a Range header (RFC 9110, 14.2). Of more than one range, and
// of other units, nothing is known: that is the whole file. It is false for a
// range that the file does not have.
func parseRange(text string, size int64) (span, bool) {
	whole := span{0, -1}
	set, ok := strings.CutPrefix(text, "bytes=")
	if !ok || strings.Contains(set, ",") {
		return whole, true
	}
	first, last, ok := strings.Cut(strings.TrimSpace(set), "-")
	if !ok {
		return whole, true
	}
	number := func(s string) (int64, bool) {
		n, err := strconv.ParseUint(s, 10, 63)
		return int64(n), err == nil
	}
	if first == "" { // the last so many
		n, ok := number(last)
		if !ok {
			return whole, true
		}
		n = min(n, size)
		return span{size - n, n}, n > 0
	}
	from, ok := number(first)
	if !ok {
		return whole, true
	}
	to := size - 1
	if last != "" {
		n, ok := number(last)
		if !ok || n < from {
			return whole, true
		}
		to = min(to, n)
	}
	return span{from, to - from + 1}, from < size
}

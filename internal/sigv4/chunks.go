package sigv4

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"strings"
)

// MaxChunk is the size of the longest chunk, in bytes, whose signature is made again. Each is held
// in memory, because its signature comes first. The SDKs of AWS send at most 128 KiB at once.
const MaxChunk = 1 << 20

const (
	maxChunkHead = 128     // bytes
	maxTrailers  = 8 << 10 // bytes
	signatureLen = 64      // characters
)

// chunks reads a body whose chunks are signed, and signs them again. It is as long as before, also
// without the signatures: so X-Amz-Decoded-Content-Length stays as the client has signed it, and the
// service compares it with the body.
type chunks struct {
	s    *Signer
	from *bufio.Reader
	of   io.Closer
	out  []byte
	rest []byte // of out, that was not read
	err  error
}

// Chunks returns a body whose chunks are signed again. Read fails with an error that matches
// sandpit.ErrForbidden if the body is not in chunks.
func (s *Signer) Chunks(body io.ReadCloser) io.ReadCloser {
	return &chunks{s: s, from: bufio.NewReaderSize(body, 4<<10), of: body}
}

func (c *chunks) Close() error { return c.of.Close() }

func (c *chunks) Read(b []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		c.err = c.next()
		c.rest = c.out
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next makes the next chunk, or returns io.EOF with the last.
func (c *chunks) next() error {
	c.out = c.out[:0]
	head, err := c.line(maxChunkHead)
	if err != nil {
		return err
	}
	digits, signature, ok := strings.Cut(head, ";chunk-signature=")
	size, err := strconv.ParseUint(digits, 16, 32)
	if !ok || err != nil || len(signature) != signatureLen {
		return refuse("its body is not in signed chunks")
	}
	if size > MaxChunk {
		return refuse("a chunk of its body is longer than %d bytes", MaxChunk)
	}
	at := len(digits) + len(";chunk-signature=")
	c.out = append(c.out, head...)
	c.out = append(c.out, "\r\n"...)
	begin := len(c.out)
	c.out = append(c.out, make([]byte, size)...)
	if _, err := io.ReadFull(c.from, c.out[begin:]); err != nil {
		return cutOff(err)
	}
	c.s.last = c.s.now.sign(c.s.scope, signedChunks+"\n"+c.s.date+"\n"+c.s.scope+"\n"+c.s.last+"\n"+hashOf("")+"\n"+hashOf(c.out[begin:]))
	copy(c.out[at:], c.s.last)
	if size == 0 {
		return c.trailers()
	}
	if end, err := c.line(0); err != nil || end != "" {
		return cutOff(err)
	}
	c.out = append(c.out, "\r\n"...)
	return nil
}

// trailers makes what follows the last chunk, whose own line break ends it.
func (c *chunks) trailers() error {
	var signed strings.Builder
	for {
		line, err := c.line(maxTrailers)
		if err != nil {
			return err
		}
		if signed.Len()+len(line) > maxTrailers {
			return refuse("its trailers are longer than %d bytes", maxTrailers)
		}
		name, value, _ := strings.Cut(line, ":")
		if strings.EqualFold(name, "x-amz-trailer-signature") {
			if len(value) != signatureLen {
				return refuse("the signature of its trailers is not valid")
			}
			c.s.last = c.s.now.sign(c.s.scope, signedTrailer+"\n"+c.s.date+"\n"+c.s.scope+"\n"+c.s.last+"\n"+hashOf(signed.String()))
			line = name + ":" + c.s.last
		} else if line != "" {
			signed.WriteString(strings.ToLower(strings.TrimSpace(name)) + ":" + strings.TrimSpace(value) + "\n")
		}
		c.out = append(c.out, line+"\r\n"...)
		if line != "" {
			continue
		}
		if _, err := c.from.ReadByte(); !errors.Is(err, io.EOF) {
			return refuse("its body goes on after the last chunk")
		}
		return io.EOF
	}
}

// line reads a line that ends in CRLF and has at most so many bytes besides.
func (c *chunks) line(most int) (string, error) {
	var b []byte
	for {
		x, err := c.from.ReadByte()
		if err != nil {
			return "", cutOff(err)
		}
		b = append(b, x)
		if n := len(b) - 2; n >= 0 && b[n] == '\r' && x == '\n' {
			return string(b[:n]), nil
		}
		if len(b) > most+2 {
			return "", refuse("a line in its body is too long")
		}
	}
}

// cutOff is for a body that ends within a chunk.
func cutOff(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse("its body ends within a chunk")
	}
	return err
}

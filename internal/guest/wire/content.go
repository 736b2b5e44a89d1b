package wire

// A ContentReader reads the content of a stream, regardless of its channel: an io.Reader
// for one goroutine.
type ContentReader struct {
	In     *Queue
	Credit func(n int) // is called with what Queue.Done returns

	rest []byte
}

// Read reads content, and waits for it if necessary. Its errors are those of Queue.Next:
// io.EOF after the last content.
func (r *ContentReader) Read(b []byte) (int, error) {
	if len(r.rest) == 0 {
		var err error
		if _, r.rest, err = r.In.Next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, r.rest)
	if r.rest = r.rest[n:]; len(r.rest) == 0 {
		r.Credit(r.In.Done())
	}
	return n, nil
}

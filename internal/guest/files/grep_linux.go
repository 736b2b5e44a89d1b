package files

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

const (
	maxGrepContext = 20
	// grepBuffer is how much of a file is in memory; for a long line it grows
	// to grepLine, which is how much of a line is searched.
	grepBuffer = 64 << 10
	grepLine   = 1 << 20
	// binaryProbe is how much of a file is looked at for a NUL, which no text has.
	binaryProbe = 8 << 10
	// maxGrepText bounds the text of one answer.
	maxGrepText = 8 << 20
)

// grep sends the lines of files that match.
func grep(s *conn.Stream, m *wire.Grep, root string) error {
	gl, err := newGlob(m.Glob)
	if err != nil {
		return err
	}
	k := &grepper{
		s: s, match: newMatcher(m), buf: make([]byte, grepBuffer), left: int(min(m.Limit, wire.MaxEntries)),
		context: int(min(m.Context, maxGrepContext)), out: make([]byte, wire.HeaderSize, wire.HeaderSize+wire.MaxData),
	}
	k.match.gone = s.Gone
	k.before = make([]string, 0, k.context)
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, root, &st, 0); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		s.Reply(conn.Nothing{})
		err = k.file(unix.AT_FDCWD, root, baseName(root), 0)
	} else {
		fd, oerr := openDir(unix.AT_FDCWD, root, 0)
		if oerr != nil {
			return oerr
		}
		defer unix.Close(fd)
		s.Reply(conn.Nothing{})
		w := walker{gone: s.Gone, glob: gl, depth: treeDepth(m.Depth)}
		w.visit = func(dir int, name, rel string, st *unix.Stat_t) error {
			if st.Mode&unix.S_IFMT != unix.S_IFREG {
				return nil
			}
			return k.file(dir, name, rel, unix.O_NOFOLLOW)
		}
		err = w.walk(fd, "", "", gl.begin(), 0)
	}
	if err == errEnough {
		err = k.put(&wire.GrepLine{Kind: wire.GrepMore})
	}
	if err != nil {
		return err
	}
	return k.flush()
}

// grepper searches files one after the other.
type grepper struct {
	s       *conn.Stream
	match   *matcher
	context int
	left    int // matching lines that may still be given
	text    int // bytes given

	buf    []byte
	out    []byte // records, behind room for a header
	before []string
}

// put gives a line.
func (k *grepper) put(l *wire.GrepLine) error {
	if k.text += len(l.Path) + len(l.Text); k.text > maxGrepText && l.Kind != wire.GrepMore {
		return errEnough
	}
	k.out = wire.AppendRecord(k.out, l)
	if len(k.out) > wire.HeaderSize+wire.MaxData/2 {
		return k.flush()
	}
	return nil
}

func (k *grepper) flush() error {
	n := len(k.out) - wire.HeaderSize
	err := k.s.Send(wire.Data, k.out, n)
	k.out = k.out[:wire.HeaderSize]
	return err
}

// file searches one file. One that can't be read is passed over.
func (k *grepper) file(dir int, name, rel string, flags int) error {
	fd, st, err := openRegularAt(dir, name, unix.O_RDONLY|flags, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	left := st.Size
	if left == 0 {
		left = maxUnsized
	}
	k.before = k.before[:0]
	after := 0 // lines that are still context of a match before them
	start, end := 0, 0
	cut := false // the line is longer than the buffer, and its start was seen
	for line, first := uint64(1), true; ; {
		i := bytes.IndexByte(k.buf[start:end], '\n')
		last := left == 0
		switch {
		case i < 0 && cut: // the rest of a long line
			start, end = 0, 0
		case i < 0 && start > 0:
			end = copy(k.buf, k.buf[start:end])
			start = 0
		}
		if i < 0 && !last && end == len(k.buf) && end < grepLine {
			k.buf = append(k.buf, make([]byte, len(k.buf))...)
		}
		if i < 0 && !last && end < len(k.buf) {
			if k.s.Gone() {
				return conn.ErrGone
			}
			n, err := fdio.Read(fd, k.buf[end:min(len(k.buf), end+int(min(left, grepBuffer)))])
			if err != nil || n == 0 {
				left = 0
				continue
			}
			if first && bytes.IndexByte(k.buf[:min(n, binaryProbe)], 0) >= 0 {
				return nil
			}
			first = false
			end += n
			left -= int64(n)
			continue
		}
		if i < 0 && last && start == end {
			return nil
		}
		stop := start + i
		if i < 0 {
			stop = end
		}
		if cut { // the newline of a long line, at last
			cut, start = false, stop+1
			line++
			continue
		}
		if err := k.line(rel, line, k.buf[start:stop], &after); err != nil {
			return err
		}
		if i < 0 {
			if last {
				return nil
			}
			cut, start, end = true, 0, 0
			continue
		}
		start = stop + 1
		line++
	}
}

// line gives a line if it matches or is beside one that does.
func (k *grepper) line(rel string, number uint64, text []byte, after *int) error {
	if n := len(text); n > 0 && text[n-1] == '\r' {
		text = text[:n-1]
	}
	shown := text[:min(len(text), wire.MaxGrepLine)]
	if !k.match.match(text) {
		switch {
		case k.match.over:
			return conn.ErrGone
		case *after > 0:
			*after--
			return k.put(&wire.GrepLine{Kind: wire.GrepContext, Path: rel, Line: number, Text: string(shown)})
		case k.context > 0:
			if len(k.before) == k.context {
				copy(k.before, k.before[1:])
				k.before = k.before[:k.context-1]
			}
			k.before = append(k.before, string(shown))
		}
		return nil
	}
	if k.left == 0 {
		return errEnough
	}
	k.left--
	for i, b := range k.before {
		if err := k.put(&wire.GrepLine{Kind: wire.GrepContext, Path: rel, Line: number - uint64(len(k.before)-i), Text: b}); err != nil {
			return err
		}
	}
	k.before = k.before[:0]
	*after = k.context
	return k.put(&wire.GrepLine{Kind: wire.GrepMatch, Path: rel, Line: number, Text: string(shown)})
}

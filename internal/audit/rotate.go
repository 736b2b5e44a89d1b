package audit

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"time"
)

// resume finds the end of the chain and goes on from there. Only the end is
// checked: all else is for Verify.
func (l *Log) resume() error {
	noted, err := readHead(l.head)
	if err != nil {
		noted = start() // Verify will say so; the chain itself is what counts
	}
	all, err := files(l.dir)
	if err != nil {
		return err
	}
	l.last = start()
	if len(all) == 0 {
		l.last = noted // of files that somebody has removed
		return l.begin(&head{})
	}
	for i, n := range all[1:] {
		before, err := l.before(n)
		if err != nil {
			return err
		}
		l.kept = append(l.kept, tail{all[i], before.hash})
		l.last = before
	}
	l.number = all[len(all)-1]
	forged := false
	compare := func(at link) { forged = forged || at.seq == noted.seq && at.hash != noted.hash }
	s, err := l.scan(l.number, compare)
	if err != nil {
		return err
	}
	switch {
	case s.lines > 0:
		l.last = s.last
	case len(all) > 1:
		// A file begun in the moment of the crash: the chain ends in the one
		// before it, and after a power cut the head may be older than that.
		before, err := l.scan(all[len(all)-2], compare)
		if err != nil {
			return err
		}
		if before.lines > 0 {
			l.last = before.last
		}
	}
	// Records that were on the disk may be gone, or others: then the number of
	// the next, or what it follows, says so for ever.
	lost := noted.seq > l.last.seq || forged
	if lost {
		l.last = link{max(noted.seq, l.last.seq), noted.hash}
	}
	if s.rest > 0 || s.lines == 0 || lost {
		l.kept = append(l.kept, tail{l.number, l.last.hash})
		h := &head{}
		if s.rest > 0 {
			h.Torn = &torn{File: l.number, Bytes: s.rest, SHA256: s.sum}
		}
		return l.begin(h)
	}
	if l.file, err = os.OpenFile(fileName(l.dir, l.number), os.O_RDWR, 0); err != nil {
		return err
	}
	l.size = s.good
	return l.sync() // what the former process wrote last may not be on the disk
}

func (l *Log) scan(n uint64, each func(link)) (scan, error) {
	f, err := os.Open(fileName(l.dir, n))
	if err != nil {
		return scan{}, err
	}
	defer f.Close()
	return scanFile(f, nil, func(_ []byte, at link, _ int) error {
		each(at)
		return nil
	})
}

// before returns the link that the first record of a file follows, which is
// the end of the file before it. It is empty if there is no record.
func (l *Log) before(n uint64) (link, error) {
	line, err := firstLine(fileName(l.dir, n))
	if err != nil {
		return link{}, err
	}
	before, _, err := checkLine(line)
	if err != nil {
		return link{}, nil
	}
	return before, nil
}

// firstLine reads the first line of a file, without its newline.
func firstLine(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(io.LimitReader(f, maxLine+1), 4096).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return bytes.TrimSuffix(line, []byte("\n")), nil
}

// rotate begins a new file.
func (l *Log) rotate() error {
	if err := l.sync(); err != nil {
		return err
	}
	old := l.file
	l.kept = append(l.kept, tail{l.number, l.last.hash})
	if err := l.begin(&head{}); err != nil {
		l.kept = l.kept[:len(l.kept)-1]
		return err
	}
	old.Close()
	return nil
}

// begin makes the next file with its first record, on the disk, and goes on in
// it. Then files that are too many are dropped: the record tells of it first.
func (l *Log) begin(h *head) error {
	h.File = l.number + 1
	drop := len(l.kept) + 1 - l.opt.MaxFiles
	if drop > 0 {
		last := l.kept[drop-1]
		h.Dropped = &dropped{File: last.number, Hash: last.hash}
	}
	body, err := Record{Action: ActionOpen, Allowed: true}.body(time.Now(), h)
	if err != nil {
		return err
	}
	line, last := appendLine(nil, l.last, body)
	name := fileName(l.dir, h.File)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(line, 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = syncDir(l.dir)
	}
	if err != nil {
		f.Close()
		return errors.Join(err, os.Remove(name))
	}
	l.file, l.number, l.size, l.last, l.synced, l.broken = f, h.File, int64(len(line)), last, true, false
	l.noteHead()
	for ; drop > 0; drop-- {
		_ = os.Remove(fileName(l.dir, l.kept[0].number)) // one that stays does no harm
		l.kept = l.kept[1:]
	}
	return nil
}

// syncDir brings the names in a directory to the disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

var _ io.Closer = (*Log)(nil)

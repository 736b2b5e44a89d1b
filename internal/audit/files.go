package audit

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Names of files.
const (
	filePrefix = "audit-"
	fileSuffix = ".jsonl"
	fileHead   = "head"

	fileReserve = "reserve"
)

func fileName(dir string, n uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%s%08d%s", filePrefix, n, fileSuffix))
}

// files returns the numbers of the files of a directory, in order.
func files(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []uint64
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), filePrefix)
		digits, ok2 := strings.CutSuffix(digits, fileSuffix)
		n, err := strconv.ParseUint(digits, 10, 64)
		if ok && ok2 && err == nil && n > 0 && e.Name() == filepath.Base(fileName(dir, n)) {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all, nil
}

// A scan is what was found in a file.
type scan struct {
	head  *head
	last  link   // the last record, or what came before the file
	good  int64  // bytes of whole records
	lines int    // of them
	rest  int64  // bytes after them
	sum   string // SHA-256 of those
	why   error  // why they are not a record
}

// scanFile reads a file whose first record follows a link, up to what is no
// record. each, when not nil, is called for every record; its error ends the
// scan. With a nil link any is followed.
func scanFile(r io.Reader, after *link, each func(line []byte, at link, lineNo int) error) (scan, error) {
	var s scan
	known := after != nil
	if known {
		s.last = *after
	}
	br := bufio.NewReaderSize(r, 2*maxLine)
	for {
		line, err := br.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return s, nil
		case errors.Is(err, io.EOF), errors.Is(err, bufio.ErrBufferFull):
			s.why = errors.New("the line is incomplete")
		case err != nil:
			return s, err
		}
		if s.why == nil {
			s.why = s.follow(line[:len(line)-1], known)
		}
		if s.why != nil {
			return s, s.drain(line, br)
		}
		known = true
		s.good += int64(len(line))
		s.lines++
		if each != nil {
			if err := each(line[:len(line)-1], s.last, s.lines); err != nil {
				return s, err
			}
		}
	}
}

// follow checks that a line follows the last one.
func (s *scan) follow(line []byte, known bool) error {
	before, this, err := checkLine(line)
	switch {
	case err != nil:
		return err
	case known && before.seq != s.last.seq:
		return fmt.Errorf("it is record %d, but record %d before it is missing", this.seq, s.last.seq+1)
	case known && before.hash != s.last.hash:
		return fmt.Errorf("it is record %d, but its hash does not continue the previous record", this.seq)
	}
	if s.lines == 0 {
		_, h, err := decode(line, this.seq)
		if err != nil {
			return err
		}
		if h == nil {
			return errors.New("it is not the record with which a file starts")
		}
		s.head = h
	}
	s.last = this
	return nil
}

// drain takes the rest of a file, which begins with line.
func (s *scan) drain(line []byte, r io.Reader) error {
	sum := sha256.New()
	sum.Write(line)
	n, err := io.Copy(sum, r)
	s.rest, s.sum = int64(len(line))+n, hex.EncodeToString(sum.Sum(nil))
	return err
}

// headLen is the length of the head file: written over in one piece, within
// one sector of any disk.
const headLen = 128

// encodeHead returns the content of the head file.
func encodeHead(l link) []byte {
	text := fmt.Sprintf("%d %s", l.seq, l.hash)
	return []byte(text + strings.Repeat(" ", headLen-1-len(text)) + "\n")
}

// readHead reads the head file. Of one that is empty or not there, seq is 0.
func readHead(r io.Reader) (link, error) {
	data, err := io.ReadAll(io.LimitReader(r, headLen+1))
	if err != nil {
		return link{}, err
	}
	if len(data) == 0 {
		return start(), nil
	}
	digits, hash, ok := strings.Cut(strings.TrimRight(string(data), " \n"), " ")
	seq, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || !ok || len(hash) != hashLen {
		return link{}, errors.New("the head file is malformed")
	}
	return link{seq, hash}, nil
}

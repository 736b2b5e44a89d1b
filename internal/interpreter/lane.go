package interpreter

import (
	"bytes"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// lane passes on one output of an interpreter, from the mark that begins a run to the one that ends it. Marks in between show
// where the code has displayed a value. Output before the first mark does not belong to a run: a run of an earlier
// server wrote it, or threads that print between runs. Python writes the end of a line separately, so a lane waits shortly for
// the rest of a line, to pass it on in one piece.
type lane struct {
	mu     sync.Mutex  // guards all but moved, marked, order and closed
	to     io.Writer   // nil: nothing is passed on
	line   []byte      // the beginning of a line that is not passed on yet, at most maxLineHeld
	timer  *time.Timer // passes that on; nil: nothing is held
	begin  []byte      // empty: it has begun
	mark   []byte
	held   []byte // what may be the start of the mark
	over   bool   // the mark has come
	texts  bool   // a text belongs to the mark
	text   []byte // which is bounded
	place  []byte // begins the mark of a place; empty: there are none
	order  *order // of the places
	marked chan struct{}
	moved  chan struct{} // has room for one: output came
	closed atomic.Bool   // nothing more is passed on
}

// A mark is a nonce between two bytes. One with a text has another byte behind the nonce; the text is between that and
// a third one.
const markByte, textByte = '\x1e', '\x1f'

// newLane returns a lane between the marks with two nonces, of which the first may be empty. texts says that the second
// has a text.
func newLane(to io.Writer, begin, end string, texts bool, moved chan struct{}) *lane {
	l := &lane{to: to, mark: markOf(end, texts), texts: texts, marked: make(chan struct{}), moved: moved}
	if begin != "" {
		l.begin = markOf(begin, false)
	}
	return l
}

// inOrder has the lane keep the places of values.
func (l *lane) inOrder(o *order, end string) *lane {
	l.order, l.place = o, markOf(end, true)
	return l
}

func markOf(nonce string, text bool) []byte {
	end := byte(markByte)
	if text {
		end = textByte
	}
	return append(append([]byte{markByte}, nonce...), end)
}

// Write takes output. It never fails: the process must not stop because nobody wants its output.
func (l *lane) Write(b []byte) (int, error) {
	n := len(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.take(b)
	} else {
		l.read(b)
	}
	select {
	case l.moved <- struct{}{}:
	default:
	}
	return n, nil
}

func (l *lane) take(b []byte) {
	if len(l.held) > 0 {
		b = append(l.held, b...)
		l.held = nil
	}
	if len(l.begin) > 0 {
		_, after, found := bytes.Cut(b, l.begin)
		if !found {
			l.held = bytes.Clone(b[max(0, len(b)-len(l.begin)+1):])
			return
		}
		b, l.begin = after, nil
	}
	b, whole := l.places(b)
	if !whole {
		return
	}
	if before, after, found := bytes.Cut(b, l.mark); found {
		l.pass(before)
		l.passLine()
		l.over = true
		if !l.texts {
			close(l.marked)
		}
		l.read(after)
		return
	}
	end := len(b)
	tail := max(0, len(b)-len(l.mark)+1)
	for i := tail; i < len(b); i++ {
		if bytes.HasPrefix(l.mark, b[i:]) {
			end = i
			break
		}
	}
	l.pass(b[:end])
	l.held = bytes.Clone(b[end:])
}

// places takes the marks of places, and passes on what is before them. It returns what is behind them;
// whole is false if the rest of one has to come.
func (l *lane) places(b []byte) (rest []byte, whole bool) {
	for len(l.place) > 0 {
		before, after, found := bytes.Cut(b, l.place)
		if !found || bytes.Contains(before, l.mark) {
			break
		}
		digits, after2, complete := bytes.Cut(after, []byte{markByte})
		if !complete && len(after) <= maxPlace {
			l.pass(before)
			l.held = bytes.Clone(b[len(before):])
			return nil, false
		}
		l.pass(before)
		l.passLine()
		if complete && len(digits) <= maxPlace {
			if n, err := strconv.Atoi(string(digits)); err == nil {
				l.order.reach(n)
			}
			after = after2
		}
		b = after
	}
	return b, true
}

// maxPlace is the largest number of digits of a place.
const maxPlace = 9

// read reads the text after the mark.
func (l *lane) read(b []byte) {
	if !l.texts {
		return
	}
	part, _, found := bytes.Cut(b, []byte{markByte})
	if len(l.text)+len(part) <= maxMarkText {
		l.text = append(l.text, part...)
	}
	if found {
		l.texts = false
		close(l.marked)
	}
}

// maxMarkText bounds the text after a mark, in bytes.
const maxMarkText = maxEnv + 64<<10

// flush passes on what was held when no more comes.
func (l *lane) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over && len(l.begin) == 0 {
		l.pass(l.held)
		l.passLine()
		l.held = nil
	}
}

const (
	// lineWait is the longest time that the beginning of a line waits for its rest.
	lineWait = 100 * time.Millisecond

	// maxLineHeld bounds what waits, in bytes.
	maxLineHeld = 64 << 10
)

// pass passes whole lines on, and holds what may become one.
func (l *lane) pass(b []byte) {
	if len(b) == 0 || l.to == nil || l.closed.Load() {
		return
	}
	whole := bytes.LastIndexByte(b, '\n') + 1
	if rest := len(b) - whole; rest > maxLineHeld || whole == 0 && len(l.line)+rest > maxLineHeld {
		whole = len(b)
	}
	if whole > 0 {
		l.line = append(l.line, b[:whole]...)
		l.passLine()
	}
	if l.line = append(l.line, b[whole:]...); len(l.line) > 0 && l.timer == nil {
		l.timer = time.AfterFunc(lineWait, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.passLine()
		})
	}
}

// passLine passes on what is held.
func (l *lane) passLine() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	b := l.line
	if l.line = nil; len(b) == 0 || l.to == nil || l.closed.Load() {
		return
	}
	if _, err := l.to.Write(b); err != nil {
		l.to = nil
	}
}

// tail keeps the last bytes that are written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

// maxTail bounds what a tail keeps, in bytes.
const maxTail = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - maxTail; over > 0 {
		t.kept = t.kept[:copy(t.kept, t.kept[over:])]
	}
	return len(b), nil
}

// last returns the last line that is not empty.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := bytes.TrimSpace(t.kept)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}

package cli

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Progress is one line on a terminal with the progress of a download. A nil Progress shows
// nothing.
type Progress struct {
	file *os.File

	mu     sync.Mutex
	layers map[int]image.Progress
	shown  bool
	last   time.Time
}

// ShowProgress returns a line on stderr, or nil if that is not a terminal.
func (a *App) ShowProgress() *Progress {
	if !IsTerminal(a.Stderr) {
		return nil
	}
	return &Progress{file: a.Stderr, layers: map[int]image.Progress{}}
}

// redrawEvery is often enough to look alive, and seldom enough to cost nothing.
const redrawEvery = 100 * time.Millisecond

// Update is called as layers arrive.
func (p *Progress) Update(is image.Progress) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.layers[is.Index]; is.Total == 0 {
		is.Total = before.Total
	}
	p.layers[is.Index] = is
	if now := time.Now(); now.Sub(p.last) >= redrawEvery {
		p.last, p.shown = now, true
		quietly(p.file, "\r\x1b[K"+p.line(is.Count))
	}
}

// End removes the line.
func (p *Progress) End() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		quietly(p.file, "\r\x1b[K")
		p.shown = false
	}
}

// line returns the line: a bar of the bytes of all known layers.
func (p *Progress) line(count int) string {
	var done, total int64
	finished, unpacking := 0, 0
	for _, l := range p.layers {
		total += max(l.Total, l.Done)
		switch l.Phase {
		case image.PhaseDownload:
			done += l.Done
		case image.PhaseUnpack:
			unpacking++
			done += l.Total
		case image.PhaseDone:
			finished++
			done += l.Total
		}
	}
	const cells = 24
	filled := 0
	if total > 0 {
		filled = int(done * cells / total)
	}
	text := fmt.Sprintf("[%s%s] %d/%d layers  %s of %s", strings.Repeat("=", filled), strings.Repeat(" ", cells-filled),
		finished, count, notation.FormatSize(done), notation.FormatSize(total))
	if unpacking > 0 && done == total {
		text += "  unpacking"
	}
	if width, _, err := term.GetSize(int(p.file.Fd())); err == nil && width > 0 && len(text) >= width {
		text = text[:width-1]
	}
	return text
}

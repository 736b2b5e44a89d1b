package cloud

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// logEvent is a piece of output, with its newline.
type logEvent struct {
	Source string    `json:"source"`
	Time   time.Time `json:"ts"`
	Text   string    `json:"text"`

	seq uint64
}

// followLogs sends the output of processes, from its beginning or after the entry that the client has seen
// last, and then what comes, until the sandbox stops, fails or is removed, or the server ends. What a terminal
// shows is of the source stdout.
func followLogs(c *call) error {
	after, err := position(c.R.Header.Get("Last-Event-Id"))
	if err != nil {
		return err
	}
	sources := []string{"stdout", "stderr"}
	if given := c.R.URL.Query().Get("sources"); given != "" {
		sources = strings.Split(given, ",")
		for _, s := range sources {
			if !slices.Contains([]string{"stdout", "stderr", "output", "system"}, s) {
				return gate.Invalid(fmt.Sprintf("the source %.40q of logs is not known", s), "use stdout, stderr, output and system")
			}
		}
	}
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	return stream.Follow(c.Call, stream.Events, stream.Source[logEvent]{
		Live: true, After: after, ID: appendCursor,
		All: func(ctx context.Context) iter.Seq2[logEvent, error] {
			return func(yield func(logEvent, error) bool) {
				for e, err := range c.logs(ctx, sb, after) {
					if !yield(logEvent{e.Stream, e.Time, strings.ToValidUTF8(string(e.Data), "\uFFFD"), e.Seq}, err) {
						return
					}
				}
			}
		},
		Name: func(e logEvent) (event string, seq uint64) {
			if !slices.Contains(sources, e.Source) {
				return "", e.seq
			}
			return "log", e.seq
		},
	})
}

// logs returns what is in the log of a sandbox behind a position, and what comes as long as the sandbox runs.
func (c *call) logs(ctx context.Context, sb engine.Box, after uint64) iter.Seq2[sandpit.LogEntry, error] {
	return func(yield func(sandpit.LogEntry, error) bool) {
		runs, cancel := context.WithCancel(ctx)
		var watcher sync.WaitGroup
		defer watcher.Wait()
		defer cancel()
		follow := true
		now, err := c.tenant().List(ctx, sandpit.ListQuery{Limit: 1})
		if err == nil {
			follow, err = lives(ctx, sb)
		}
		if err != nil {
			yield(sandpit.LogEntry{}, err)
			return
		}
		if follow {
			watcher.Go(func() {
				defer cancel()
				for _, err := range c.tenant().Events(runs, sandpit.EventQuery{After: now.Seq, Sandbox: sb.ID(), Kinds: []sandpit.EventKind{
					sandpit.EventStopped, sandpit.EventFailed, sandpit.EventRemoved,
				}}) {
					if err != nil {
						return
					}
					if on, err := lives(ctx, sb); !on || err != nil {
						return
					}
				}
			})
			for e, err := range sb.Logs(runs, sandpit.LogQuery{After: after, Follow: true}) {
				if err != nil && runs.Err() != nil && ctx.Err() == nil {
					break // it has ended
				}
				if !yield(e, err) || err != nil {
					return
				}
				after = e.Seq
			}
		}
		for e, err := range sb.Logs(ctx, sandpit.LogQuery{After: after}) {
			if follow && errors.Is(err, sandpit.ErrClosed) || !yield(e, err) {
				return // it was removed, or nobody reads
			}
		}
	}
}

// lives reports whether a sandbox has not ended.
func lives(ctx context.Context, sb engine.Box) (bool, error) {
	info, err := sb.Info(ctx)
	return info.State != sandpit.StateStopped && info.State != sandpit.StateFailed, err
}

// A position in the log is a cursor for clients, which check its form: base64 of a byte that says which halves
// follow, here the first, and of 16 bytes, of which the last 8 are the position.
const cursorBytes = 17

// appendCursor appends the cursor of a position.
func appendCursor(b []byte, seq uint64) []byte {
	var raw [cursorBytes]byte
	raw[0] = 1
	binary.BigEndian.PutUint64(raw[cursorBytes-8:], seq)
	return base64.StdEncoding.AppendEncode(b, raw[:])
}

// position returns the position of a cursor. That of an empty one, and of the one of clients that have seen no entry, is 0.
func position(cursor string) (uint64, error) {
	raw, err := base64.StdEncoding.DecodeString(cursor)
	switch {
	case err == nil && (len(raw) == 0 || len(raw) == 1 && raw[0] == 0):
		return 0, nil
	case err != nil || len(raw) != cursorBytes || raw[0] != 1:
		return 0, gate.Invalid("Last-Event-ID is not a position of this log", "")
	}
	return binary.BigEndian.Uint64(raw[cursorBytes-8:]), nil
}

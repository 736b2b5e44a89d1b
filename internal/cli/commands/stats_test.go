package commands

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// passing is a server whose sandboxes go while somebody looks: each stage of a
// measurement finds one less than the stage before.
type passing struct{ sandpit.Client }

func (passing) List(context.Context, sandpit.ListQuery) (sandpit.Page, error) {
	return sandpit.Page{Sandboxes: []sandpit.Info{{ID: "unfound"}, {ID: "removed"}, {ID: "stopped"}, {ID: "stays"}}}, nil
}

func (passing) Get(_ context.Context, id string) (sandpit.Sandbox, error) {
	if id == "unfound" {
		return nil, sandpit.ErrNotFound
	}
	return passingSandbox{id: id}, nil
}

type passingSandbox struct {
	sandpit.Sandbox
	id string
}

func (s passingSandbox) ID() string   { return s.id }
func (s passingSandbox) Name() string { return s.id }

func (s passingSandbox) Info(context.Context) (sandpit.Info, error) {
	return sandpit.Info{ID: s.id}, nil
}

func (s passingSandbox) Metrics(context.Context) (sandpit.Metrics, error) {
	switch s.id {
	case "removed":
		return sandpit.Metrics{}, sandpit.ErrClosed
	case "stopped":
		return sandpit.Metrics{}, sandpit.ErrState
	}
	return sandpit.Metrics{CPU: time.Duration(time.Now().UnixNano())}, nil
}

// TestMeasureWhatGoes measures all sandboxes while some go: that is no error,
// unless it was asked for one of them.
func TestMeasureWhatGoes(t *testing.T) {
	s := &session{Client: passing{}}
	rows, err := s.measure(t.Context(), nil, nil)
	if err != nil || len(rows) != 1 || rows[0].sb.Name() != "stays" || rows[0].percent != -1 {
		t.Fatalf("got %+v, %v", rows, err)
	}
	if rows, err = s.measure(t.Context(), nil, rows); err != nil || len(rows) != 1 || rows[0].percent < 0 {
		t.Errorf("again: got %+v, %v", rows, err)
	}
	if _, err := s.measure(t.Context(), []string{"stays", "removed"}, nil); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("one that was asked for: got %v", err)
	}
	if _, err := s.measure(t.Context(), []string{"unfound"}, nil); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("one that is not there: got %v", err)
	}
	if rows, err = s.measure(t.Context(), []string{"stays"}, nil); err != nil || len(rows) != 1 {
		t.Fatalf("one that stays: got %+v, %v", rows, err)
	}
	if rows, err = s.measure(t.Context(), []string{"stays"}, rows); err != nil || len(rows) != 1 || rows[0].percent < 0 {
		t.Errorf("again: got %+v, %v", rows, err)
	}
}

// TestScreen draws on terminals of all sizes, none of which may scroll.
func TestScreen(t *testing.T) {
	const text = "12:00:00  3 sandboxes\n\nNAME  CPU\nä  1%\nb  2%\nc  3%\n"
	for _, tt := range []struct {
		width, height int
		want          string
	}{
		{80, 24, "\x1b[H\x1b[K12:00:00  3 sandboxes\n\x1b[K\n\x1b[KNAME  CPU\n\x1b[Kä  1%\n\x1b[Kb  2%\n\x1b[Kc  3%\n\x1b[J"},
		{80, 7, "\x1b[H\x1b[K12:00:00  3 sandboxes\n\x1b[K\n\x1b[KNAME  CPU\n\x1b[Kä  1%\n\x1b[Kb  2%\n\x1b[Kc  3%\n\x1b[J"},
		{80, 6, "\x1b[H\x1b[K12:00:00  3 sandboxes\n\x1b[K\n\x1b[KNAME  CPU\n\x1b[Kä  1%\n\x1b[Kand 2 more\n\x1b[J"},
		{3, 5, "\x1b[H\x1b[K12:\n\x1b[K\n\x1b[KNAM\n\x1b[Kand\n\x1b[J"},
		{3, 1, "\x1b[H\x1b[K12:\n\x1b[J"},
	} {
		if d := cmp.Diff(tt.want, screen(text, tt.width, tt.height)); d != "" {
			t.Errorf("%d columns, %d lines: %s", tt.width, tt.height, d)
		}
	}
}

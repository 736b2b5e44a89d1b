package e2b

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

const composePath = filesPath + "/compose"

// maxSources bounds the files of which one is composed.
const maxSources = 1000

// composeFile makes one file of several, in their order, and removes those. None of them may be the new file, by whatever path. If it fails, nothing has changed, but that
// some of them may be removed already.
func composeFile(c *call) error {
	var in struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		User        string   `json:"username"`
	}
	if err := c.readJSON(&in); err != nil {
		return c.Untouched(err)
	}
	if err := c.Intend(fmt.Sprintf("%d files to %s", len(in.Sources), in.Destination)); err != nil {
		return err
	}
	switch {
	case len(in.Sources) == 0 || in.Destination == "":
		return gate.Invalid("source_paths and destination must be set", "")
	case len(in.Sources) > maxSources:
		return &gate.Refusal{Code: errcode.TooLarge, Message: fmt.Sprintf("a file is composed of at most %d others", maxSources), Hint: "send several requests"}
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	f, err := c.files(ownUser(in.User))
	if err != nil {
		return err
	}
	to := f.absolute(f.inside(in.Destination))
	target, err := dialect.RealPath(c.Ctx, f, to)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // if its directory is missing, it is not a source
		return err
	}
	for i, name := range in.Sources {
		name = f.absolute(f.inside(name))
		info, err := f.Stat(c.Ctx, name)
		if err != nil {
			return err
		}
		leads, err := dialect.RealPath(c.Ctx, f, name)
		switch {
		case err != nil:
			return err
		case !info.Mode.IsRegular() || leads == target:
			return gate.Invalid(fmt.Sprintf("%.200q is not a regular file, or is the destination", in.Sources[i]), "")
		}
		in.Sources[i] = name
	}
	all := &sources{ctx: c.Ctx, files: f, names: in.Sources}
	defer all.close()
	if _, err := f.Write(c.Ctx, to, all, sandpit.WriteOptions{Parents: true}); err != nil {
		return err
	}
	for _, name := range in.Sources {
		if err := f.Remove(c.Ctx, name, false); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be named twice
			return err
		}
	}
	return c.answer(http.StatusOK, written{to, path.Base(to), "file", nil})
}

// sources reads files one after the other. Only one is open at a time.
type sources struct {
	ctx   context.Context
	files userFiles
	names []string // absolute, of those that were not opened yet
	open  io.ReadCloser
}

// Read reads from the first file that is not at its end.
func (s *sources) Read(b []byte) (int, error) {
	for {
		if s.open == nil {
			if len(s.names) == 0 {
				return 0, io.EOF
			}
			var err error
			if s.open, err = s.files.Open(s.ctx, s.names[0], 0, -1); err != nil {
				return 0, err
			}
			s.names = s.names[1:]
		}
		n, err := s.open.Read(b)
		if err == io.EOF { //nolint:errorlint // as readers return it
			s.close()
			err = nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (s *sources) close() {
	if s.open != nil {
		_ = s.open.Close()
		s.open = nil
	}
}

package files

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// maxEdit is the largest file that is edited: it is in memory for that, before
// and after.
const maxEdit = 16 << 20

// edit replaces exact text in a file: all that is asked for, or nothing.
func edit(m *wire.Edits, path string) error {
	if len(m.List) == 0 {
		return wire.Invalid("no edit")
	}
	fd, st, err := openRegular(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b, err := fdio.ReadAll(fd, st.Size, maxEdit)
	if err != nil {
		return err
	}
	text := string(b)
	for i, e := range m.List {
		if e.Old == "" {
			return wire.Invalid("edit " + strconv.Itoa(i+1) + ": the text to replace is empty")
		}
		n := strings.Count(text, e.Old)
		if n == 0 {
			return wire.Invalid("edit " + strconv.Itoa(i+1) + ": the text to replace is not in the file")
		}
		if n > 1 && !e.All {
			return wire.Invalid("edit " + strconv.Itoa(i+1) + ": the text to replace occurs " + strconv.Itoa(n) + " times in the file")
		}
		if len(text)+n*(len(e.New)-len(e.Old)) > maxEdit {
			return unix.EFBIG
		}
		text = strings.ReplaceAll(text, e.Old, e.New)
	}
	t, err := openTarget(&wire.Write{Mode: 0o644}, path, func(to int) error { return copyXattrs(to, fd) })
	if err != nil {
		return err
	}
	err = fdio.WriteAll(t.fd, []byte(text))
	// Somebody may have changed the file meanwhile: that must not be undone.
	var now unix.Stat_t
	if err == nil {
		err = unix.Fstatat(t.dir, t.name, &now, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil && (now.Ino != st.Ino || now.Dev != st.Dev || now.Size != st.Size || now.Mtim != st.Mtim) {
		err = wire.Fail(wire.CodeState, "the file was changed concurrently")
	}
	if ferr := t.finish(err == nil); err == nil {
		err = ferr
	}
	return err
}

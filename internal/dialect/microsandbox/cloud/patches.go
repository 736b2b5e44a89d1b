package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/dialect/microsandbox/agent"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// patch is a change of files of a new sandbox, made by root before anybody else may use it. Parents that are missing are created.
type patch struct {
	Type    string  `json:"type"`
	Path    string  `json:"path"`
	Content content `json:"content"`
	Mode    *uint32 `json:"mode"`
	Replace bool    `json:"replace"`
	Target  string  `json:"target"` // of a symlink
	Link    string  `json:"link"`
}

// content is text, or a list of numbers for bytes.
type content []byte

// UnmarshalJSON is json.Unmarshaler.
func (c *content) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte(`"`)) {
		var text string
		err := json.Unmarshal(data, &text)
		*c = content(text)
		return err
	}
	*c = make(content, 0, len(data)/4)
	for field := range bytes.SplitSeq(bytes.Trim(data, "[] \t\r\n"), []byte(",")) {
		if len(field) == 0 {
			continue
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(field)), 10, 8)
		if err != nil {
			return gate.Invalid("the content of a patch is neither text nor bytes", "")
		}
		*c = append(*c, byte(n))
	}
	return nil
}

// scripts returns the scripts of a sandbox as patches.
func scripts(all map[string]string) []patch {
	mode := uint32(0o755)
	var out []patch
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, patch{Type: "text", Path: agent.ScriptsDir + "/" + name, Content: content(all[name]), Mode: &mode, Replace: true})
	}
	return out
}

// check refuses a patch that can't be made here.
func (p *patch) check() error {
	switch p.Type {
	case "copy_file", "copy_dir":
		return dialect.Unsupported("the patch " + p.Type + ", whose source is a path of the server, is")
	case "text", "file", "mkdir", "remove", "append", "symlink":
	default:
		return dialect.Unsupported(fmt.Sprintf("the patch %.40q is", p.Type))
	}
	if at := p.at(); !path.IsAbs(at) || slices.Contains(strings.Split(at, "/"), "..") {
		return gate.Invalid(fmt.Sprintf("the path %.80q of a patch is not absolute, or has ..", at), "")
	}
	if p.Mode != nil && *p.Mode > 0o7777 {
		return gate.Invalid(fmt.Sprintf("the mode of the patch of %.80q is not valid", p.at()), "")
	}
	return nil
}

// at returns the path that a patch is about.
func (p *patch) at() string {
	if p.Type == "symlink" {
		return p.Link
	}
	return p.Path
}

// apply makes the change.
func (p *patch) apply(ctx context.Context, files sandpit.Files) error {
	at := p.at()
	there, err := files.Lstat(ctx, at)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	exists := err == nil
	switch p.Type {
	case "remove":
		return files.Remove(ctx, at, true)
	case "append":
		if !exists {
			return err
		}
		_, err = files.Write(ctx, at, bytes.NewReader(p.Content), sandpit.WriteOptions{Append: true})
		return err
	case "mkdir":
		if err := files.Mkdir(ctx, at, 0o755, true); err != nil {
			return err
		}
		return p.chmod(ctx, files)
	}
	if exists && (!p.Replace || there.IsDir()) {
		return &fs.PathError{Op: p.Type, Path: at, Err: fs.ErrExist}
	}
	if p.Type == "symlink" {
		if exists {
			err = files.Remove(ctx, at, false)
		} else {
			err = files.Mkdir(ctx, path.Dir(at), 0o755, true)
		}
		if err != nil {
			return err
		}
		return files.Symlink(ctx, p.Target, at)
	}
	if _, err := files.Write(ctx, at, bytes.NewReader(p.Content), sandpit.WriteOptions{Parents: true}); err != nil {
		return err
	}
	return p.chmod(ctx, files)
}

// chmod sets the mode of the file.
func (p *patch) chmod(ctx context.Context, files sandpit.Files) error {
	if p.Mode == nil {
		return nil
	}
	return files.Chmod(ctx, p.at(), notation.ParseModeBits(uint64(*p.Mode)))
}

package sandpit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
)

// ReadFile returns the content of a regular file of the sandbox. If the file has more than
// DefaultCapture bytes, ReadFile returns ErrQuota; use Files.Open for such files. The errors
// are those of Files.
func ReadFile(ctx context.Context, sb Sandbox, path string) ([]byte, error) {
	return readFile(ctx, sb, path, DefaultCapture)
}

// readFile is ReadFile with another limit.
func readFile(ctx context.Context, sb Sandbox, path string, limit int64) ([]byte, error) {
	r, err := sb.Files().Open(ctx, path, 0, limit+1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, limit+1)) // whatever the reader says
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) > limit:
		return nil, &fs.PathError{Op: "read", Path: path, Err: &limitError{fmt.Sprintf("the file has more than %d bytes", limit)}}
	}
	return data, nil
}

// WriteFile creates a file of the sandbox, or replaces it atomically. The directory must exist.
// A new file has the mode, before the umask 022; 0 means 0644. The errors are those of Files.
func WriteFile(ctx context.Context, sb Sandbox, path string, data []byte, mode fs.FileMode) error {
	_, err := sb.Files().Write(ctx, path, bytes.NewReader(data), WriteOptions{Mode: mode})
	return err
}

// A Task is a command that runs in a sandbox of its own; see Do.
type Task struct {
	Spec    Spec    // the sandbox
	Command Command // what runs in it; its input is empty

	// Files are created before the command runs, with missing parents, by their paths.
	Files map[string][]byte

	// Outputs are the paths of regular files that Do returns. MaxOutputs is the maximum
	// size of all together, in bytes. Default: DefaultCapture.
	Outputs    []string
	MaxOutputs int64
}

// TaskResult is what a Task has produced.
type TaskResult struct {
	Output
	Files map[string][]byte // the files of Task.Outputs, by their paths
}

// Do creates a sandbox, writes files, runs a command, and returns its output and files. It
// always removes the sandbox, also if ctx has ended.
//
// A command that exits with another code than 0 is not an error, and files of Task.Outputs that
// it did not create are then missing in TaskResult.Files. After a success a missing file is an
// error that matches fs.ErrNotExist. Files that exceed Task.MaxOutputs are ErrQuota. If only
// files could not be returned, the result has the output of the command and the other files;
// the error is that of the first file.
func Do(ctx context.Context, client Client, task Task) (res TaskResult, err error) {
	limit := task.MaxOutputs
	switch {
	case limit < 0:
		return res, fmt.Errorf("%w: MaxOutputs is negative", ErrInvalid)
	case limit == 0:
		limit = DefaultCapture
	}
	if task.Command.Stdin {
		return res, fmt.Errorf("%w: the input of a task is empty; write it to a file", ErrInvalid)
	}
	sb, err := client.Create(ctx, task.Spec)
	if err != nil {
		return res, err
	}
	defer func() {
		switch failed := sb.Remove(context.WithoutCancel(ctx)); {
		case failed != nil && err != nil:
			err = fmt.Errorf("%w; removing the sandbox: %w", err, failed)
		case failed != nil:
			err = failed
		}
	}()
	for _, path := range slices.Sorted(maps.Keys(task.Files)) {
		if _, err := sb.Files().Write(ctx, path, bytes.NewReader(task.Files[path]), WriteOptions{Parents: true}); err != nil {
			return res, err
		}
	}
	if res.Output, err = Run(ctx, sb, task.Command); err != nil {
		return res, err
	}
	res.Files = make(map[string][]byte, len(task.Outputs))
	for _, path := range task.Outputs {
		if _, ok := res.Files[path]; ok {
			continue
		}
		data, failed := readFile(ctx, sb, path, limit)
		switch {
		case failed == nil:
			res.Files[path] = data
			limit -= int64(len(data))
		case err == nil && (!errors.Is(failed, fs.ErrNotExist) || res.Success()):
			err = failed
		}
	}
	return res, err
}

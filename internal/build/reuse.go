package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
)

// A build whose steps, base and commands are those of an earlier one of its namespace takes the image of that. The image has a
// label with a hash of them, so that nothing else must be remembered: an image that was removed is not found. The hash of files is
// the SDK's, as at E2B: archives of the same files differ.

// hostTimes are directories that change when the machine gets or loses packages: images that were built over its own files may
// not fit then. Others, such as /usr/lib, are made for each sandbox.
var hostTimes = [...]string{"/usr/bin", "/usr/share/doc"}

// key returns the hash of all that the image of a build depends on, whose sandbox has run nothing yet.
func (b *Build) key(ctx context.Context, in *Plan, sb engine.Box) (string, error) {
	made, err := sb.Made()
	if err != nil {
		return "", err
	}
	now, err := sb.Info(ctx)
	if err != nil {
		return "", err
	}
	name, digest, _ := strings.Cut(now.Image, "@")
	base := []string{digest}
	if digest == "" {
		base = []string{name}
		for _, dir := range hostTimes {
			info, err := sb.Files().Stat(ctx, dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
			base = append(base, info.ModTime.UTC().String())
		}
	}
	steps := slices.Clone(in.Steps)
	for i := range steps {
		steps[i].Force = false
	}
	text, err := json.Marshal([]any{b.namespace, base, made.Guest.User, made.Guest.Dir, made.Spec.RootInside, steps, in.Start, in.Ready})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// reuse gives the image of an earlier build that had the same key the names of this one, unless the client wants none. It reports
// whether there was one.
func (b *Build) reuse(ctx context.Context, in *Plan, key string) (done bool, err error) {
	if in.Force || slices.ContainsFunc(in.Steps, func(s Step) bool { return s.Force }) {
		return false, nil
	}
	ref, err := b.host.Built(b.caller, key)
	if err == nil {
		_, err = b.host.TagSaved(ctx, b.caller, ref, b.request.Saved)
	}
	if err != nil {
		if errors.Is(err, sandpit.ErrNotFound) { // or it was removed meanwhile
			err = nil
		}
		return false, err
	}
	for i := range in.Steps {
		b.say("info", fmt.Sprint(i+1), "CACHED "+in.title(i))
	}
	b.say("info", StepLast, "CACHED the image of an earlier build")
	return true, nil
}

// title is how the log names a step.
func (s *Plan) title(i int) string {
	return fmt.Sprintf("[%d/%d] %s %.200s", i+1, len(s.Steps), s.Steps[i].Type, strings.Join(s.Steps[i].Args, " "))
}

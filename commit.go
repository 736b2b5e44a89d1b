package sandpit

import "context"

// SavedImages begins the names of images that were saved from sandboxes, in [Spec.Image].
const SavedImages = "saved:"

// Committer is a [Sandbox] whose changed files can be saved as an image. Optional: those of the
// in-process engine and of the client are.
type Committer interface {
	// Commit saves the files that the sandbox has changed as an image: the image that it was made
	// of with one layer more. The image is named "saved:NAME" in [Spec.Image], and only sandboxes
	// of the same namespace find it. An image that has the name loses it.
	//
	// Not saved are what is mounted in the sandbox, /dev/shm included, and /tmp with Spec.ReadOnly
	// or Spec.Write; files that Sandpit
	// makes itself (/etc/hostname, /etc/hosts, /etc/resolv.conf and its certificates), sockets,
	// FIFOs, the environment, and secrets that are not in files.
	//
	// A running sandbox is paused while its files are read. If the program that has it is killed
	// then, the next one resumes it.
	//
	// The error matches ErrInvalid if the request or the files can't be an image, ErrQuota if the
	// namespace would have saved more than it may, ErrForbidden if the policy allows none,
	// ErrUnsupported if this machine can't do it, and ErrState if the sandbox has failed.
	Commit(ctx context.Context, c Commit) (SavedImage, error)
}

// Commit says what image to make of a sandbox. Fields that are empty are inherited from the image
// that the sandbox was made of.
type Commit struct {
	Name string // of the image: NAME or NAME:TAG, each of the form of names of sandboxes; required

	// NoPause lets programs run on. Files that they change meanwhile may be saved half changed; one
	// that is truncated ends with zeros.
	NoPause bool

	Entrypoint []string          // not nil: replaces both Entrypoint and Cmd of the image
	Cmd        []string          // not nil: replaces the command
	Env        []string          // "KEY=VALUE"; added to the image's, and replacing those of the same name
	WorkDir    string            // absolute
	User       string            // NAME, ID, NAME:GROUP or ID:ID; it is looked up when a sandbox is created
	Labels     map[string]string // added to the image's
}

// SavedImage describes what Commit has saved.
type SavedImage struct {
	Name    string   // "saved:NAME" or "saved:NAME:TAG", for Spec.Image
	Digest  string   // of its manifest: "sha256:…"
	Size    int64    // bytes of the files of all its layers
	LeftOut []string // files that an image can't have, with the reason; the first 32, and how many more there are
}

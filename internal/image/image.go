// Package image turns the name of an image into a root file system. It pulls, verifies, unpacks and
// stores each layer once, and keeps images that are in use.
package image

// Config is an image's configuration of how to run it, as in the OCI image specification
// (image-spec v1.1, config.md).
type Config struct {
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Env        []string          `json:"env,omitempty"` // "KEY=VALUE"
	WorkingDir string            `json:"workingDir,omitempty"`
	User       string            `json:"user,omitempty"` // "user", "uid", "user:group", "uid:gid", or empty
	Volumes    []string          `json:"volumes,omitempty"`
	StopSignal string            `json:"stopSignal,omitempty"` // "SIGTERM", "15", or empty
	Labels     map[string]string `json:"labels,omitempty"`
}

// Bind is a host path shown read-only at a target inside.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// Rootfs is a root file system, ready to be mounted.
type Rootfs struct {
	// Reference is the image as the user named it. Digest is that of its manifest
	// ("sha256:…"), empty for the host image and directories.
	Reference string
	Digest    string

	// Layers are host directories, topmost first, in the form that overlayfs
	// reads: whiteouts as character devices 0:0, opaque directories with
	// user.overlay.opaque=y. At least one.
	Layers []string

	// Binds are shown at their targets, which exist in the lowest layer; files of that
	// layer lie over them.
	Binds []Bind

	Config Config
}

// UserID is the uid and gid of the ordinary user ("user") of the host image.
const UserID = 1000

// hostHome is the home directory of that user.
const hostHome = "/home/user"

// hostConfig is the configuration of the host image.
func hostConfig() Config {
	return Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, WorkingDir: hostHome}
}

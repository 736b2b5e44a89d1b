package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// who identifies the user of a sandbox.
type who struct {
	uid, gid uint32
	text     string // as the guest is told, which looks the rest up inside
}

// userName returns the name or id of a user without the group. The guest lists processes by it.
func userName(text string) string {
	name, _, _ := strings.Cut(text, ":")
	return name
}

// maxID is the highest user or group id in a sandbox: the ids are 16 bits wide.
const maxID = 65534

// chooseUser finds the user's ids. The driver needs them before names can be looked up
// inside. So a name is searched for in the image's passwd and group files, as data, without
// following any link.
func chooseUser(asked string, root image.Rootfs) (who, error) {
	from := "the sandbox's user"
	text := asked
	if text == "" {
		text, from = root.Config.User, "the image's user"
	}
	if text == "" {
		text = strconv.Itoa(image.UserID) + ":" + strconv.Itoa(image.UserID)
		if _, ok := lookupPasswd(root.Layers, "user"); ok {
			text = "user"
		}
	}
	name, group, hasGroup := strings.Cut(text, ":")
	w := who{text: text}
	if uid, err := parseID(name); err == nil {
		w.uid, w.gid = uid, 0
		// Docker gives a bare number the group of its passwd line, or root's.
		if p, ok := lookupPasswd(root.Layers, name); ok {
			w.gid = p.gid
		}
	} else if errors.Is(err, strconv.ErrRange) {
		return w, fault.Errorf(sandpit.ErrInvalid, "choosing %s: id %q is greater than %d", from, name, maxID)
	} else if p, ok := lookupPasswd(root.Layers, name); ok {
		w.uid, w.gid = p.uid, p.gid
	} else if name == "root" {
		w.uid, w.gid, w.text = 0, 0, "0:0"
	} else {
		return w, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "choosing %s: image %s has no user %q", from, root.Reference, name),
			"use a user in the image's /etc/passwd, or a numeric id")
	}
	if hasGroup {
		if gid, err := parseID(group); err == nil {
			w.gid = gid
		} else if gid, ok := lookupGroup(root.Layers, group); ok {
			w.gid = gid
		} else {
			return w, fault.Errorf(sandpit.ErrInvalid, "choosing %s: image %s has no group %q", from, root.Reference, group)
		}
	}
	if w.uid > maxID || w.gid > maxID {
		return w, fault.Errorf(sandpit.ErrInvalid, "choosing %s: an id of %q is greater than %d", from, text, maxID)
	}
	return w, nil
}

// explainUser explains why a guest does not know the sandbox's user, which was found in the
// image: something is mounted over the files in which the guest looks it up.
func explainUser(err error, user string, plan *driver.Plan) error {
	if !errors.Is(err, sandpit.ErrInvalid) {
		return err
	}
	hidden := map[string]string{"/etc": "/etc/passwd", "/etc/passwd": "/etc/passwd", "/etc/group": "/etc/group"}
	var targets []string
	for _, m := range plan.Mounts {
		targets = append(targets, m.Target)
	}
	for _, t := range plan.Tmpfs {
		targets = append(targets, t.Target)
	}
	for _, t := range targets {
		if file := hidden[path.Clean(t)]; file != "" {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the mount at %s hides the image's %s, so user %q is unknown", t, file, user),
				fmt.Sprintf("mount only the files that are needed, or choose the user by number: %d:%d", plan.UID, plan.GID))
		}
	}
	return err
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n > maxID {
		return 0, strconv.ErrRange
	}
	if err != nil {
		return 0, err
	}
	return uint32(n), nil
}

type passwd struct{ uid, gid uint32 }

// lookupPasswd finds a line of /etc/passwd by name or number, passwd(5).
func lookupPasswd(layers []string, name string) (passwd, bool) {
	data, _ := findFile(layers, "etc/passwd")
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) < 4 || (f[0] != name && f[2] != name) {
			continue
		}
		uid, err1 := parseID(f[2])
		gid, err2 := parseID(f[3])
		if err1 == nil && err2 == nil {
			return passwd{uid, gid}, true
		}
	}
	return passwd{}, false
}

// lookupGroup finds a line of /etc/group by name, group(5).
func lookupGroup(layers []string, name string) (uint32, bool) {
	data, _ := findFile(layers, "etc/group")
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) < 3 || f[0] != name {
			continue
		}
		if gid, err := parseID(f[2]); err == nil {
			return gid, true
		}
	}
	return 0, false
}

// maxLayerFile bounds what is read of a file in a layer, in bytes.
const maxLayerFile = 1 << 20

// findFile returns the content of a small file in the topmost layer that has it.
func findFile(layers []string, name string) (data []byte, err error) {
	err = fs.ErrNotExist
	for _, dir := range layers {
		if data, err = readInLayer(dir, name); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return data, err
}

package main

import (
	"os"
	"path/filepath"
)

// hostRoot is the part of this machine's root file system that every peer is
// given, read-only: the toolchain, as in Sandpit's host image. All then run the
// same files.
type hostRoot struct {
	binds []string    // directories, and files, shown where they are
	links [][2]string // name and target
}

func findHostRoot() hostRoot {
	r := hostRoot{binds: []string{"/usr"}}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		st, err := os.Lstat(name)
		if err != nil {
			continue
		}
		if st.Mode().IsDir() {
			r.binds = append(r.binds, name)
		} else if target, err := os.Readlink(name); err == nil {
			r.links = append(r.links, [2]string{name, target})
		}
	}
	if _, err := os.Stat("/etc/ld.so.cache"); err == nil {
		r.binds = append(r.binds, "/etc/ld.so.cache")
	}
	return r
}

// skeleton makes the root file system without what is bound into it.
func (r hostRoot) skeleton(dir string) error {
	for _, sub := range []string{"proc", "dev", "sys", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	for _, l := range r.links {
		if err := os.Symlink(l[1], filepath.Join(dir, l[0])); err != nil {
			return err
		}
	}
	for _, b := range r.binds {
		name := filepath.Join(dir, b)
		if st, err := os.Stat(b); err == nil && st.IsDir() {
			err = os.MkdirAll(name, 0o755)
			if err != nil {
				return err
			}
		} else if err := os.WriteFile(name, nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

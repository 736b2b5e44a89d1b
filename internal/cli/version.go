package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// PrintVersion is sandpit version.
func (a *App) PrintVersion(asJSON bool) error {
	v := struct {
		Version string `json:"version"`
		Commit  string `json:"commit,omitempty"`
		Go      string `json:"go"`
		OS      string `json:"os"`
		Arch    string `json:"arch"`
	}{Version: a.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if asJSON || v.Version == "" { // reading it takes longer than all else here
		if info, ok := debug.ReadBuildInfo(); ok {
			v.Version = cmp.Or(v.Version, info.Main.Version)
			for _, s := range info.Settings {
				if s.Key == "vcs.revision" {
					v.Commit = s.Value
				}
			}
		}
	}
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "devel"
	}
	if asJSON {
		return a.PrintJSON(v)
	}
	_, err := fmt.Fprintf(a.Stdout, "sandpit %s %s/%s %s\n", v.Version, v.OS, v.Arch, v.Go)
	return err
}

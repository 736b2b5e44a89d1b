package commands

import (
	"time"

	"github.com/sandpit-dev/sandpit/internal/image"
)

// jsonImage is an image of images ls --json.
type jsonImage struct {
	Name     string    `json:"name"`      // as people type it; empty for an image without one
	FullName string    `json:"full_name"` // with its registry
	Digest   string    `json:"digest"`    // of its manifest
	Platform string    `json:"platform"`
	Created  time.Time `json:"created,omitzero"` // as the image says
	Stored   time.Time `json:"stored,omitzero"`  // when its name was last pulled or imported
	Packed   int64     `json:"packed"`           // bytes as transferred
	Unpacked int64     `json:"unpacked"`         // bytes of its files
	InUse    bool      `json:"in_use"`

	Saved bool   `json:"saved,omitempty"` // from a sandbox
	Owner string `json:"owner,omitempty"` // its namespace
}

func jsonOfImage(s image.Summary) jsonImage { return jsonImage(s) }

// jsonDetails is an image of images inspect.
type jsonDetails struct {
	jsonImage
	Names  []string     `json:"names"`
	Config jsonConfig   `json:"config"`
	Layers []jsonLayer  `json:"layers"` // lowest first
	Binds  []image.Bind `json:"binds,omitempty"`
}

type jsonConfig struct {
	Entrypoint []string          `json:"entrypoint"`
	Cmd        []string          `json:"cmd"`
	Env        []string          `json:"env"`
	WorkingDir string            `json:"working_dir"`
	User       string            `json:"user"`
	Volumes    []string          `json:"volumes"`
	StopSignal string            `json:"stop_signal"`
	Labels     map[string]string `json:"labels"`
}

type jsonLayer struct {
	Digest    string   `json:"digest"`  // as transferred
	DiffID    string   `json:"diff_id"` // of its tar
	MediaType string   `json:"media_type"`
	Packed    int64    `json:"packed"`
	Unpacked  int64    `json:"unpacked"`
	Entries   int64    `json:"entries"`
	Directory string   `json:"directory"`
	LeftOut   int64    `json:"left_out"` // entries and attributes that were not unpacked
	Reasons   []string `json:"reasons,omitempty"`
}

func jsonOfDetails(d image.Details) jsonDetails {
	object := jsonDetails{
		jsonImage: jsonOfImage(d.Summary),
		Names:     orEmpty(d.Names),
		Config:    jsonConfig(d.Config),
		Layers:    make([]jsonLayer, len(d.Layers)),
		Binds:     d.Binds,
	}
	for i, l := range d.Layers {
		object.Layers[i] = jsonLayer(l)
	}
	c := &object.Config
	for _, list := range [...]*[]string{&c.Entrypoint, &c.Cmd, &c.Env, &c.Volumes} {
		*list = orEmpty(*list)
	}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	return object
}

// orEmpty makes a list that is empty [] rather than null.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

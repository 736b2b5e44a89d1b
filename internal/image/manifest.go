package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Media types (image-spec v1.1, media-types.md; Docker's Image Manifest V2,
// Schema 2, which the former grew out of).
const (
	typeOCIIndex       = "application/vnd.oci.image.index.v1+json"
	typeOCIManifest    = "application/vnd.oci.image.manifest.v1+json"
	typeOCIConfig      = "application/vnd.oci.image.config.v1+json"
	typeOCILayerTar    = "application/vnd.oci.image.layer.v1.tar"
	typeOCILayerGzip   = "application/vnd.oci.image.layer.v1.tar+gzip"
	typeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	typeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

// ManifestTypes are the media types of manifests and indexes that registries are asked for.
func ManifestTypes() []string {
	return []string{typeOCIIndex, typeOCIManifest, typeDockerList, typeDockerManifest}
}

// A Descriptor names content (image-spec v1.1, descriptor.md).
type Descriptor struct {
	MediaType   string            `json:"mediaType,omitempty"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *jsonPlatform     `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// hex is the digest without its algorithm.
func (d Descriptor) hex() string { return strings.TrimPrefix(d.Digest, DigestPrefix) }

type jsonPlatform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

// A document is a manifest or an index; which of both shows when it is read.
type document struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Config        *Descriptor  `json:"config,omitempty"`
	Layers        []Descriptor `json:"layers,omitempty"`
	Manifests     []Descriptor `json:"manifests,omitempty"`

	Annotations map[string]string `json:"annotations,omitempty"`
}

// DigestOf returns the digest of content: "sha256:…".
func DigestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return DigestPrefix + hex.EncodeToString(sum[:])
}

// parseDocument reads a manifest or an index. What could be read as both is
// refused, because two programs could see two images in it (CVE-2021-41190).
func parseDocument(data []byte, mediaType string) (document, error) {
	var d document
	if len(data) > MaxManifest {
		return d, fault.Invalidf("reading manifest: it is larger than %d MiB", MaxManifest>>20)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return d, fault.Invalidf("reading manifest: %w", err)
	}
	if d.SchemaVersion != 2 {
		return d, fault.Unsupportedf("reading manifest: schema version %d is not supported, only 2", d.SchemaVersion)
	}
	if d.MediaType != "" && mediaType != "" && d.MediaType != mediaType && slices.Contains(ManifestTypes(), mediaType) {
		return d, fault.Invalidf("reading manifest: it declares the type %q but is served as %q", fault.Clip(d.MediaType), mediaType)
	}
	if d.MediaType != "" {
		mediaType = d.MediaType
	}
	isIndex := mediaType == typeOCIIndex || mediaType == typeDockerList
	isManifest := mediaType == typeOCIManifest || mediaType == typeDockerManifest
	if !isIndex && !isManifest { // not said: see what is there
		isIndex, isManifest = d.Manifests != nil, d.Config != nil
	}
	switch {
	case d.Manifests != nil && (d.Config != nil || d.Layers != nil), isIndex && isManifest:
		return d, fault.Invalidf("reading manifest: it is both an image and an index")
	case isIndex && len(d.Manifests) > maxPlatforms:
		return d, fault.Invalidf("reading index: it has more than %d manifests", maxPlatforms)
	case isIndex:
		return d, nil
	case !isManifest || d.Config == nil:
		return d, fault.Unsupportedf("reading manifest: it is not an image manifest (media type %q)", fault.Clip(mediaType))
	case len(d.Layers) == 0:
		return d, fault.Unsupportedf("reading manifest: the image has no layer")
	case len(d.Layers) > maxLayers:
		return d, fault.Invalidf("reading manifest: it has %d layers, but the limit is %d", len(d.Layers), maxLayers)
	}
	if err := checkDescriptor(*d.Config, maxConfig); err != nil {
		return d, fmt.Errorf("reading manifest: config: %w", err)
	}
	for i, l := range d.Layers {
		if err := checkDescriptor(l, 1<<50); err != nil {
			return d, fmt.Errorf("reading manifest: layer %d: %w", i, err)
		}
		if strings.Contains(l.MediaType, "foreign") || strings.Contains(l.MediaType, "nondistributable") {
			return d, fault.Unsupportedf("reading manifest: layer %d is stored outside of the registry, which is not supported", i)
		}
	}
	return d, nil
}

func checkDescriptor(d Descriptor, limit int64) error {
	if !ValidDigest(d.Digest) {
		return fault.Invalidf("its digest %q is not sha256: and 64 lower-case hexadecimal digits", fault.Clip(d.Digest))
	}
	if d.Size < 0 || d.Size > limit {
		return fault.Invalidf("its size of %d bytes is out of range", d.Size)
	}
	return nil
}

// pick chooses the manifest of an index for a platform.
func (d document) pick(want platform) (Descriptor, error) {
	best, rank := Descriptor{}, 0
	var have []string
	for _, m := range d.Manifests {
		p := m.Platform
		if p == nil {
			// An index without platforms, as archives have: the only manifest is meant.
			if len(d.Manifests) == 1 {
				best, rank = m, 1
			}
			continue
		}
		got := platform{p.OS, p.Architecture, p.Variant}
		if got.os != "unknown" && len(have) < 20 {
			have = append(have, fault.Clip(got.String()))
		}
		if r := want.rank(got); r > rank {
			best, rank = m, r
		}
	}
	if rank == 0 {
		hint := "choose another platform"
		if len(have) > 0 {
			hint = "it exists for " + strings.Join(have, ", ")
		}
		return Descriptor{}, sandpit.WithHint(fault.NotFoundf("the image does not exist for %s", want), hint)
	}
	if err := checkDescriptor(best, MaxManifest); err != nil {
		return Descriptor{}, fmt.Errorf("reading index: manifest of %s: %w", want, err)
	}
	return best, nil
}

// rank says how well a machine that wants one platform runs another: 0 not at
// all, more is better.
func (p platform) rank(got platform) int {
	if p.os != got.os || p.arch != got.arch {
		return 0
	}
	if got.arch == "arm64" && got.variant == "v8" {
		got.variant = "" // the only one there is
	}
	switch {
	case p.variant == got.variant:
		return 100
	case got.variant == "":
		return 90
	case p.arch == "arm" && p.variant == "":
		return 1 + strings.Index("v5v6v7", got.variant) // any; the newest
	case p.arch == "arm" && got.variant < p.variant:
		return 10 + int(got.variant[len(got.variant)-1]-'0') // older ones run too
	case p.arch == "amd64" && p.variant != "" && got.variant < p.variant:
		return 10 + int(got.variant[len(got.variant)-1]-'0')
	}
	return 0
}

// jsonConfig has the fields that are read of an image config (image-spec v1.1, config.md).
type jsonConfig struct {
	Created      string `json:"created,omitempty"`
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
	Config       struct {
		User       string              `json:"User,omitempty"`
		Env        []string            `json:"Env,omitempty"`
		Entrypoint []string            `json:"Entrypoint,omitempty"`
		Cmd        []string            `json:"Cmd,omitempty"`
		Volumes    map[string]struct{} `json:"Volumes,omitempty"`
		WorkingDir string              `json:"WorkingDir,omitempty"`
		Labels     map[string]string   `json:"Labels,omitempty"`
		StopSignal string              `json:"StopSignal,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// Bounds on an image config: beyond them no program could be started with it,
// or nobody means it well.
const (
	maxConfigString  = 128 << 10 // bytes of one string: what execve takes as one argument
	maxConfigStrings = 1 << 20   // bytes of all strings
	maxConfigCount   = 4096      // entries of one list
	maxConfigVolumes = 128
	maxConfigUser    = 256
)

// A parsedConfig is an image config that has been checked.
type parsedConfig struct {
	config   Config
	platform platform
	created  time.Time // zero when not said
	diffIDs  []string  // lowest first
}

// parseConfig reads an image config and checks all of it. User is carried as
// it is: what it means is found out inside, in the image's own passwd.
func parseConfig(data []byte) (parsedConfig, error) {
	var c jsonConfig
	if len(data) > maxConfig {
		return parsedConfig{}, fault.Invalidf("reading image config: it is larger than %d MiB", maxConfig>>20)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return parsedConfig{}, fault.Invalidf("reading image config: %w", err)
	}
	total := 0
	check := func(what string, list ...string) error {
		if len(list) > maxConfigCount {
			return fault.Invalidf("reading image config: %s has more than %d entries", what, maxConfigCount)
		}
		for _, s := range list {
			if total += len(s); len(s) > maxConfigString || total > maxConfigStrings {
				return fault.Invalidf("reading image config: %s is too long", what)
			}
			if strings.IndexByte(s, 0) >= 0 {
				return fault.Invalidf("reading image config: %s contains a NUL byte", what)
			}
		}
		return nil
	}
	in := &c.Config
	out := parsedConfig{
		platform: platform{c.OS, c.Architecture, c.Variant},
		diffIDs:  c.RootFS.DiffIDs,
		config: Config{
			Entrypoint: in.Entrypoint, Cmd: in.Cmd, User: in.User, StopSignal: in.StopSignal, Labels: in.Labels,
		},
	}
	if t, err := time.Parse(time.RFC3339Nano, c.Created); err == nil {
		out.created = t
	}
	if len(in.User) > maxConfigUser || len(in.StopSignal) > maxConfigUser ||
		len(c.OS) > 32 || len(c.Architecture) > 32 || len(c.Variant) > 32 {
		return out, fault.Invalidf("reading image config: its user, signal or platform is too long")
	}
	for _, e := range []struct {
		what string
		list []string
	}{{"Entrypoint", in.Entrypoint}, {"Cmd", in.Cmd}, {"Env", in.Env}, {"User", []string{in.User, in.StopSignal, c.OS, c.Architecture, c.Variant}}, {"WorkingDir", []string{in.WorkingDir}}} {
		if err := check(e.what, e.list...); err != nil {
			return out, err
		}
	}
	for _, e := range in.Env {
		if i := strings.IndexByte(e, '='); i > 0 { // others have no name: Docker drops them too
			out.config.Env = append(out.config.Env, e)
		}
	}
	if in.WorkingDir != "" {
		out.config.WorkingDir = path.Clean("/" + in.WorkingDir)
	}
	if len(in.Volumes) > maxConfigVolumes {
		return out, fault.Invalidf("reading image config: it has more than %d volumes", maxConfigVolumes)
	}
	for v := range in.Volumes {
		if err := check("a volume", v); err != nil {
			return out, err
		}
		if v = path.Clean("/" + v); v != "/" && len(v) < 4096 {
			out.config.Volumes = append(out.config.Volumes, v)
		}
	}
	slices.Sort(out.config.Volumes)
	out.config.Volumes = slices.Compact(out.config.Volumes)
	if len(in.Labels) > maxConfigCount {
		return out, fault.Invalidf("reading image config: it has more than %d labels", maxConfigCount)
	}
	for k, v := range in.Labels {
		if err := check("a label", k, v); err != nil {
			return out, err
		}
	}
	if len(out.diffIDs) > maxLayers {
		return out, fault.Invalidf("reading image config: it has %d layers, but the limit is %d", len(out.diffIDs), maxLayers)
	}
	for _, d := range out.diffIDs {
		if !ValidDigest(d) {
			return out, fault.Invalidf("reading image config: %q is not the digest of a layer", fault.Clip(d))
		}
	}
	return out, nil
}

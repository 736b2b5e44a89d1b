package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestParseDocumentRefuses(t *testing.T) {
	d := `{"mediaType":"m","digest":"sha256:` + strings.Repeat("0", 64) + `","size":1}`
	layers := strings.Repeat(d+",", 1000)
	for name, c := range map[string]struct {
		text, mediaType string
		kind            error
	}{
		"both":           {`{"schemaVersion":2,"config":` + d + `,"layers":[` + d + `],"manifests":[` + d + `]}`, "", sandpit.ErrInvalid},
		"other type":     {`{"schemaVersion":2,"mediaType":"` + typeOCIIndex + `","manifests":[` + d + `]}`, typeOCIManifest, sandpit.ErrInvalid},
		"schema 1":       {`{"schemaVersion":1,"name":"x"}`, "", sandpit.ErrUnsupported},
		"artifact":       {`{"schemaVersion":2,"mediaType":"x/y","blobs":[]}`, "", sandpit.ErrUnsupported},
		"1,000 layers":   {`{"schemaVersion":2,"config":` + d + `,"layers":[` + strings.TrimSuffix(layers, ",") + `]}`, "", sandpit.ErrInvalid},
		"foreign layer":  {`{"schemaVersion":2,"config":` + d + `,"layers":[` + strings.Replace(d, `"m"`, `"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"`, 1) + `]}`, "", sandpit.ErrUnsupported},
		"negative size":  {`{"schemaVersion":2,"config":` + d + `,"layers":[` + strings.Replace(d, `"size":1`, `"size":-1`, 1) + `]}`, "", sandpit.ErrInvalid},
		"path as digest": {`{"schemaVersion":2,"config":` + d + `,"layers":[` + strings.Replace(d, "sha256:00", "sha256:..", 1) + `]}`, "", sandpit.ErrInvalid},
		"huge config":    {`{"schemaVersion":2,"config":` + strings.Replace(d, `"size":1`, `"size":99999999`, 1) + `,"layers":[` + d + `]}`, "", sandpit.ErrInvalid},
		"no JSON":        {`<html>`, "", sandpit.ErrInvalid},
	} {
		if _, err := parseDocument([]byte(c.text), c.mediaType); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
	}
}

package image_test

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
	"github.com/sandpit-dev/sandpit/internal/upstream/upstreamtest"
)

// TestPullThroughProxy pulls from a registry that only a proxy can resolve, and whose certificate only
// the CABundle vouches for.
func TestPullThroughProxy(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{TLS: true})
	reg.Push(t, "team/app:1", randomImage(t, 10, 1))
	ref := "example.com:" + reg.Port() + "/team/app:1" // a name in the certificate of httptest
	for _, scheme := range []string{"http", "https", "socks5"} {
		t.Run(scheme, func(t *testing.T) {
			p := upstreamtest.Start(t, scheme)
			bundle := filepath.Join(t.TempDir(), "ca.pem")
			roots := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: reg.Certificate().Raw}), p.Roots...)
			if err := os.WriteFile(bundle, roots, 0o600); err != nil {
				t.Fatal(err)
			}
			s := newStore(t, nil)
			mustAcquire(t, s, ref, image.AcquireOptions{Proxy: p.URL.String(), CABundle: bundle})
			if asked := slices.Compact(p.Asked()); !slices.Equal(asked, []string{"example.com"}) {
				t.Errorf("the proxy was asked for %q", asked)
			}
			_, err := newStore(t, nil).Acquire(t.Context(), ref, image.AcquireOptions{Proxy: "ftp://u:hush@p", CABundle: bundle})
			wantError(t, err, sandpit.ErrInvalid, true)
			if strings.Contains(err.Error(), "hush") {
				t.Error(err)
			}
			_, err = newStore(t, nil).Acquire(t.Context(), ref, image.AcquireOptions{CABundle: bundle + "x"})
			wantError(t, err, sandpit.ErrInvalid, true)
		})
	}
}

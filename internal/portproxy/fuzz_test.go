package portproxy

import (
	"net/http"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/preview"
)

// The answer of a sandbox sets cookies for the host of its port alone, and none that a preview could be taken for.
func FuzzConfineSite(f *testing.F) {
	for _, s := range []string{"a=1; sandpit-preview=pv_x;Path=/", "__HOST-Sandpit-Preview =x;; Domain", "sandpit-preview", "=sandpit-preview; DOMAIN = x", ";domain=x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, cookies string) {
		h := http.Header{"Set-Cookie": {cookies}, "Clear-Site-Data": {"*"}}
		confineSite(h)
		for _, c := range (&http.Response{Header: h}).Cookies() {
			if c.Domain != "" || preview.IsCookie(c.Name) {
				t.Errorf("a cookie is set by %q", h["Set-Cookie"])
			}
		}
	})
}

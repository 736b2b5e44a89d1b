package gate

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// A path that the mux would redirect is seen; it would redirect no other one.
func FuzzOddPath(f *testing.F) {
	for _, s := range []string{"/", "/v1", "/v1/", "//", "//v1", "/v1//x", "/v1/./x", "/v1/../x", "/v1/..", "/.", "/..x/.y", "/%2e%2e/x", "/v1/%2F/x", "v1", "*", ""} {
		f.Add(s)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.Parse("http://x" + path)
		if err != nil || u.Host != "x" || !strings.HasPrefix(path, "/") {
			return
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, &http.Request{Method: "GET", URL: u, Host: "x", RequestURI: path})
		if redirected := w.Code != http.StatusOK; redirected != oddPath(u.EscapedPath()) {
			t.Errorf("%q is answered %d", path, w.Code)
		}
	})
}

package imagetest

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// RegistryOptions are settings of Registry.
type RegistryOptions struct {
	// User and Password are asked for when set.
	User, Password string

	// Bearer asks for them where tokens are given out, as most public
	// registries do, instead of at every request. Without a User, everybody
	// gets a token.
	Bearer bool

	// Wrap changes how the registry answers.
	Wrap func(http.Handler) http.Handler

	// TLS serves with a certificate of httptest, which nobody trusts.
	TLS bool
}

// A Server is a real registry on the loopback interface.
type Server struct {
	*httptest.Server
	Host string // "127.0.0.1:12345": the registry part of references
	opt  RegistryOptions
}

// Registry starts a registry, which ends with the test.
func Registry(t testing.TB, opt RegistryOptions) *Server {
	t.Helper()
	s := &Server{opt: opt}
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h = s.authenticate(h)
	if opt.Wrap != nil {
		h = opt.Wrap(h)
	}
	if opt.TLS {
		s.Server = httptest.NewUnstartedServer(h)
		s.Server.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
	} else {
		s.Server = httptest.NewServer(h)
	}
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.Host = u.Host
	return s
}

const testToken = "token-of-imagetest"

func (s *Server) authenticate(next http.Handler) http.Handler {
	if s.opt.User == "" && !s.opt.Bearer {
		return next
	}
	known := func(req *http.Request) bool {
		user, pass, ok := req.BasicAuth()
		return s.opt.User == "" || ok && user == s.opt.User && pass == s.opt.Password
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case s.opt.Bearer && req.URL.Path == "/token":
			if !known(req) {
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
			fmt.Fprintf(w, `{"token":%q,"expires_in":300}`, testToken)
		case s.opt.Bearer && req.Header.Get("Authorization") != "Bearer "+testToken:
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token",service="imagetest"`)
			http.Error(w, "no token", http.StatusUnauthorized)
		case !s.opt.Bearer && !known(req):
			w.Header().Set("WWW-Authenticate", `Basic realm="imagetest"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
		default:
			next.ServeHTTP(w, req)
		}
	})
}

// Push puts an image (v1.Image) or an index (v1.ImageIndex) into the registry,
// and returns the reference to it.
func (s *Server) Push(t testing.TB, repository string, what any) string {
	t.Helper()
	text := s.Host + "/" + repository
	ref, err := name.ParseReference(text, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	opts := []remote.Option{remote.WithTransport(s.Client().Transport)}
	if s.opt.User != "" {
		opts = append(opts, remote.WithAuth(&authn.Basic{Username: s.opt.User, Password: s.opt.Password}))
	}
	switch w := what.(type) {
	case v1.Image:
		err = remote.Write(ref, w, opts...)
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, w, opts...)
	default:
		t.Fatalf("can't push a %T", what)
	}
	if err != nil {
		t.Fatalf("pushing %s: %v", text, err)
	}
	return text
}

// PushLayout pushes the only image of an OCI layout in a directory.
func (s *Server) PushLayout(t testing.TB, repository, dir string) string {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 1 {
		t.Fatalf("the layout has %d images", len(m.Manifests))
	}
	img, err := index.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return s.Push(t, repository, img)
}

// DockerConfig is a config.json with credentials for the registry.
func (s *Server) DockerConfig() string {
	return fmt.Sprintf(`{"auths":{%q:{"username":%q,"password":%q}}}`, s.Host, s.opt.User, s.opt.Password)
}

// Port returns the port of the registry.
func (s *Server) Port() string {
	return s.Host[strings.LastIndexByte(s.Host, ':')+1:]
}

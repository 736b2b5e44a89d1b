package engine

import (
	"bytes"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// trustFile has the certificates that programs trust in a sandbox whose TLS is intercepted: the
// image's, and that of the sandbox's authority.
const trustFile = "/etc/sandpit/ca-certificates.crt"

// trustStores are where images have the certificates that they trust, in one file.
var trustStores = [...]string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",                            // SUSE
	"/etc/ssl/cert.pem",                                 // older Alpine, BSD
}

// trustVariables name trustFile to programs that do not look where the system's are.
var trustVariables = [...]string{
	"SSL_CERT_FILE",                    // OpenSSL, Go, Python's ssl, Ruby, uv
	"CURL_CA_BUNDLE",                   // curl
	"REQUESTS_CA_BUNDLE",               // Python's requests, and pip
	"PIP_CERT",                         // pip
	"GIT_SSL_CAINFO",                   // git
	"NODE_EXTRA_CA_CERTS",              // Node, npm
	"DENO_CERT",                        // Deno
	"CARGO_HTTP_CAINFO",                // Cargo
	"AWS_CA_BUNDLE",                    // AWS' tools
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC's C core
}

// intercept makes the authority of a new sandbox, if its terms need one, and adds to the plan that
// its programs trust it. The result are variables for them.
func (s *Sandbox) intercept(plan *driver.Plan) (env []string, err error) {
	network := s.engine.opts.Network
	if network == nil || !s.egress.Asked() {
		return nil, nil
	}
	ca, certificate, err := network.Authority(s.terms(s.egress))
	if err != nil || ca == nil {
		return nil, err
	}
	s.ca = ca
	at, bundle := rootsOf(s.lease.Rootfs())
	if len(bundle) > 0 && !bytes.HasSuffix(bundle, []byte("\n")) {
		bundle = append(bundle, '\n')
	}
	bundle = append(bundle, certificate...)
	for _, name := range [...]string{at, trustFile} {
		plan.Root.Files = append(plan.Root.Files, driver.File{Path: name, Mode: 0o644, Data: bundle})
	}
	for _, name := range trustVariables {
		env = append(env, name+"="+trustFile)
	}
	return env, nil
}

// rootsOf returns the certificates that an image trusts, and where it has them.
func rootsOf(root image.Rootfs) (at string, bundle []byte) {
	for _, name := range trustStores {
		dirs, rest := root.Layers, name
		for _, b := range root.Binds {
			if inner, ok := within(name, b); ok {
				dirs, rest = []string{b.Source}, inner
			}
		}
		if text := findFile(dirs, strings.TrimPrefix(rest, "/")); text != "" {
			return name, []byte(text)
		}
	}
	return trustStores[0], nil
}

// within returns the path of a file in a bind.
func within(name string, b image.Bind) (string, bool) {
	return strings.CutPrefix(name, path.Clean("/"+b.Target)+"/")
}

package engine

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// trustFile has the certificates that programs trust in a sandbox whose TLS is intercepted: the
// image's, and that of the sandbox's authority.
const trustFile = "/etc/sandpit/ca-certificates.crt"

// javaTrustFile has the same for Java.
const javaTrustFile = "/etc/sandpit/cacerts"

// Where images have the certificates that they trust. A path that is a link leads to another of
// these, and is left as it is.
var (
	// trustStores are files in PEM, of which an image has one.
	trustStores = [...]string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
		"/var/lib/ca-certificates/ca-bundle.pem",            // SUSE
		"/etc/ssl/ca-bundle.pem",                            // older SUSE
		"/etc/ssl/cert.pem",                                 // older Alpine, BSD
	}

	// javaTrustStores are those of the distributions' Java.
	javaTrustStores = [...]string{
		"/etc/ssl/certs/java/cacerts",                     // Debian, Alpine
		"/etc/pki/ca-trust/extracted/java/cacerts",        // Fedora, RHEL
		"/var/lib/ca-certificates/java-cacerts",           // SUSE
		"/etc/ca-certificates/extracted/java-cacerts.jks", // Arch
	}

	// trustDirectories are looked up by hash (see subjectHash). OpenSSL looks there, if nothing
	// names a file to it: on Fedora since 42, and in images of which somebody removed the file.
	trustDirectories = [...]string{
		"/etc/ssl/certs",     // Debian, Alpine, Arch
		"/etc/pki/tls/certs", // Fedora
		"/etc/pki/ca-trust/extracted/pem/directory-hash", // Fedora, RHEL
		"/var/lib/ca-certificates/pem",                   // SUSE
	}
)

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

// javaVariable is read by every Java, which then says so on stderr; no other way reaches one that
// brings its own certificates. What the image sets there is kept.
const (
	javaVariable = "JAVA_TOOL_OPTIONS"
	javaOption   = "-Djavax.net.ssl.trustStore=" + javaTrustFile
)

// intercept makes the authority of a new sandbox, if its terms need one, and adds to the plan that
// its programs trust it, and what the operator trusts. The result are variables for them.
func (s *Sandbox) intercept(plan *driver.Plan) (env []string, err error) {
	network := s.engine.opts.Network
	if network == nil || !s.hasEgress(s.egress) {
		return nil, nil
	}
	ca, certificate, err := network.Authority(s.terms(s.egress))
	if err != nil || len(certificate) == 0 {
		return nil, err
	}
	s.ca = ca
	files, env := trusting(s.lease.Rootfs(), s.image.Env, certificate)
	plan.Root.Files = append(plan.Root.Files, files...)
	return env, nil
}

// trusting returns files that make the programs of an image trust certificates, in PEM, beside
// what they trust already, and variables for programs that do not look there.
func trusting(root image.Rootfs, imageEnv []string, certificates []byte) (files []driver.File, env []string) {
	file := func(name string, data []byte) {
		files = append(files, driver.File{Path: name, Mode: 0o644, Data: data})
	}
	at, bundle := rootsOf(root)
	if len(bundle) > 0 && !bytes.HasSuffix(bundle, []byte("\n")) {
		bundle = append(bundle, '\n')
	}
	bundle = append(bundle, certificates...)
	file(at, bundle)
	file(trustFile, bundle)

	added := certificatesIn(certificates)
	var java []byte
	for _, name := range javaTrustStores {
		if old := []byte(findFile(layersOf(root, name))); len(old) > 0 {
			java = javaStore(old, added, bundle)
			file(name, java)
		}
	}
	if java == nil {
		java = javaStore(nil, added, bundle)
	}
	file(javaTrustFile, java)

	for _, dir := range trustDirectories {
		if kind, ok := findType(layersOf(root, dir)); !ok || !kind.IsDir() {
			continue
		}
		for _, der := range added {
			if name, ok := unusedHash(root, files, dir, der); ok {
				file(name, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}))
			}
		}
	}

	for _, name := range trustVariables {
		env = append(env, name+"="+trustFile)
	}
	option := javaOption
	for _, v := range imageEnv {
		if set, ok := strings.CutPrefix(v, javaVariable+"="); ok {
			option = javaOption + " " + set // the last of an option holds
		}
	}
	return files, append(env, javaVariable+"="+option)
}

// unusedHash returns the path by which OpenSSL finds a certificate in a directory of an image,
// beside others of its subject's hash there and among the files that are added.
func unusedHash(root image.Rootfs, files []driver.File, dir string, der []byte) (string, bool) {
	hash, ok := subjectHash(der)
	for n := 0; ok && n < maxSameHash; n++ {
		name := fmt.Sprintf("%s/%s.%d", dir, hash, n)
		added := slices.ContainsFunc(files, func(f driver.File) bool { return f.Path == name })
		if _, exists := findType(layersOf(root, name)); !exists && !added {
			return name, true
		}
	}
	return "", false
}

// maxSameHash bounds the certificates of a directory with the same hash.
const maxSameHash = 10

// rootsOf returns the certificates that an image trusts, and where it has them.
func rootsOf(root image.Rootfs) (at string, bundle []byte) {
	for _, name := range trustStores {
		if text := findFile(layersOf(root, name)); text != "" {
			return name, []byte(text)
		}
	}
	return trustStores[0], nil
}

// layersOf returns the directories in which a file of an image may be, the topmost first, and its
// path in them.
func layersOf(root image.Rootfs, name string) (layers []string, rest string) {
	layers, rest = root.Layers, name
	for _, b := range root.Binds {
		if target := path.Clean("/" + b.Target); name == target {
			layers, rest = []string{b.Source}, "."
		} else if inner, ok := strings.CutPrefix(name, target+"/"); ok {
			layers, rest = []string{b.Source}, inner
		}
	}
	return layers, strings.TrimPrefix(rest, "/")
}

package engine

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// trustFile has the certificates that programs trust in a sandbox whose TLS is intercepted: the
// image's, and that of the sandbox's authority.
const trustFile = "/etc/sandpit/ca-certificates.crt"

// javaTrustFile has the same for Java.
const javaTrustFile = "/etc/sandpit/cacerts"

// Where images have the certificates that they trust. Links are followed inside of the image.
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
// its programs trust it, and what the operator trusts. It returns variables for them, and what is missing.
func (s *Sandbox) intercept(p *prepared, root image.Rootfs, plan *driver.Plan) (env []string, gaps []sandpit.Gap, err error) {
	p.trusted = []string{}
	network := s.engine.opts.Network
	if network == nil || !p.hasEgress(p.egress) {
		return nil, nil, nil
	}
	ca, own, operators, err := network.Authority(s.termsOf(p, p.egress))
	if err != nil || len(own)+len(operators) == 0 {
		return nil, nil, err
	}
	p.ca = ca
	stores, err := s.engine.trust.storesOf(root, operators, len(own) > 0)
	var files []driver.File
	if err == nil {
		files, err = stores.files(root, own)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("preparing the certificates of image %s: %w", root.Reference, err)
	}
	for _, f := range files {
		p.trusted = append(p.trusted, path.Clean(f.Path))
	}
	plan.Root.Files = append(plan.Root.Files, files...)
	if stores.unread != "" {
		gaps = []sandpit.Gap{{
			What: feature.GapImageRoots, Why: fmt.Sprintf("the certificates in %s of the image are more than %d bytes, or not a regular file: programs do not trust them", stores.unread, maxLayerFile),
			Fix: "use an image with a smaller file of certificates there",
		}}
	}
	return trustEnv(p.image.Env), gaps, nil
}

// trustEnv returns variables for programs that do not look for certificates where the system's are.
func trustEnv(imageEnv []string) (env []string) {
	for _, name := range trustVariables {
		env = append(env, name+"="+trustFile)
	}
	option := javaOption
	for _, v := range imageEnv {
		if set, ok := strings.CutPrefix(v, javaVariable+"="); ok {
			option = javaOption + " " + set // the last of an option holds
		}
	}
	return append(env, javaVariable+"="+option)
}

// stores are the certificates that programs of an image trust, and those that they are made to trust
// beside these, as the programs look for them. What the sandbox alone trusts is missing. They are
// never changed, so that many sandboxes share them.
type stores struct {
	at     string // where the image has its own in PEM
	unread string // where it has some that can't be read, and no others
	linked bool   // a link leads to some of them elsewhere than trustNames
	bundle []byte // all, in PEM
	java   []namedStore
	dirs   []string      // of trustDirectories, those of the image
	hashed []driver.File // in dirs
}

// A namedStore is a store of Java in a file.
type namedStore struct {
	name string
	javaStore
}

// newStores makes the stores of an image, with certificates in PEM. With own there will be one more.
func newStores(root image.Rootfs, certificates []byte, own bool) (*stores, error) {
	s, in := new(stores), &rootReader{Rootfs: root}
	s.at, s.unread, s.bundle = in.roots()
	if len(s.bundle) > 0 && !bytes.HasSuffix(s.bundle, []byte("\n")) {
		s.bundle = append(s.bundle, '\n')
	}
	s.bundle = slices.Clip(append(s.bundle, certificates...))
	added, last := certificatesIn(certificates), 0
	if own {
		last = 1
	}
	follow := func(name string) string {
		at := in.follow(name)
		s.linked = s.linked || at != name && !slices.Contains(trustNames(), at)
		return at
	}
	for _, name := range trustStores {
		follow(name)
	}
	for _, name := range javaTrustStores {
		name = follow(name)
		if old := in.read(name); len(old) > 0 {
			s.java = append(s.java, namedStore{name, newJavaStore(old, added, s.bundle, last)})
		}
	}
	if s.java == nil {
		s.java = []namedStore{{javaTrustFile, newJavaStore(nil, nil, s.bundle, last)}}
	} else {
		s.java = append(s.java, namedStore{javaTrustFile, s.java[len(s.java)-1].javaStore})
	}
	for _, dir := range trustDirectories {
		dir = follow(dir)
		if kind, ok := in.typeOf(dir); ok && kind.IsDir() && !slices.Contains(s.dirs, dir) {
			s.dirs = append(s.dirs, dir)
		}
	}
	s.hashed = s.inDirectories(in, added)
	if in.err != nil {
		return nil, in.err
	}
	return s, nil
}

// inDirectories returns files by which OpenSSL finds certificates in the image's directories.
func (s *stores) inDirectories(in *rootReader, certificates [][]byte) []driver.File {
	files := slices.Clip(s.hashed)
	for _, dir := range s.dirs {
		for _, der := range certificates {
			if name, ok := in.unusedHash(files, dir, der); ok {
				files = append(files, driver.File{Path: name, Mode: 0o644, Data: pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})})
			}
		}
	}
	return files
}

// files returns the files of a sandbox that also trusts its own certificate, in PEM, if it has one.
func (s *stores) files(root image.Rootfs, own []byte) (files []driver.File, err error) {
	last := certificatesIn(own)
	for _, name := range [...]string{s.at, trustFile} {
		files = append(files, driver.File{Path: name, Mode: 0o644, Data: s.bundle, Rest: own})
	}
	rests := map[hash.Hash][]byte{} // the image's store and its copy are one file
	for _, java := range s.java {
		rest, done := rests[java.digest]
		if !done {
			if rest, err = java.rest(last); err != nil {
				return nil, fmt.Errorf("making the certificates of Java: %w", err)
			}
			rests[java.digest] = rest
		}
		files = append(files, driver.File{Path: java.name, Mode: 0o644, Data: java.begin, Rest: rest})
	}
	if last == nil {
		return append(files, s.hashed...), nil
	}
	in := &rootReader{Rootfs: root}
	if files = append(files, s.inDirectories(in, last)...); in.err != nil {
		return nil, in.err
	}
	return files, nil
}

// size is the memory of s in bytes.
func (s *stores) size() (n int) {
	n = len(s.bundle)
	for _, java := range s.java {
		n += len(java.begin)
	}
	return n
}

// trustCache has the stores of the images that were used last. The zero value is empty.
type trustCache struct {
	mu  sync.Mutex
	all []cachedStores // the last used first, guarded by mu
}

type cachedStores struct {
	key [sha256.Size]byte
	*stores
}

// Bounds of a trustCache.
const (
	maxCachedStores = 4
	maxStoresSize   = 2 << 20 // bytes of one
)

// storesOf returns newStores of the same arguments. Only those of the host image and of images in the
// store are cached: their layers never change, and are named by what is in them.
func (c *trustCache) storesOf(root image.Rootfs, certificates []byte, own bool) (*stores, error) {
	if !unchanging(root) {
		return newStores(root, certificates, own)
	}
	h := sha256.New()
	for _, layer := range root.Layers {
		fmt.Fprintf(h, "%q ", layer)
	}
	fmt.Fprintf(h, "%t ", own)
	h.Write(certificates)
	key := [sha256.Size]byte(h.Sum(nil))
	c.mu.Lock()
	i := slices.IndexFunc(c.all, func(s cachedStores) bool { return s.key == key })
	if i >= 0 {
		found := c.all[i]
		copy(c.all[1:], c.all[:i])
		c.all[0] = found
		c.mu.Unlock()
		return found.stores, nil
	}
	c.mu.Unlock()
	s, err := newStores(root, certificates, own)
	if err != nil || s.size() > maxStoresSize || s.linked && len(root.Binds) > 0 { // which unchanging does not see
		return s, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.Insert(c.all[:min(len(c.all), maxCachedStores-1)], 0, cachedStores{key, s})
	return s, nil
}

// trustNames are all places where an image may have certificates.
func trustNames() []string {
	return slices.Concat(trustStores[:], javaTrustStores[:], trustDirectories[:])
}

// unchanging reports whether all that stores are made of is in layers that never change: it is not
// in a directory that is used as an image, nor in one that is bound.
func unchanging(root image.Rootfs) bool {
	if root.Digest == "" && root.Reference != "host" {
		return false
	}
	names := trustNames()
	return !slices.ContainsFunc(root.Binds, func(b image.Bind) bool {
		target := path.Clean("/" + b.Target)
		return slices.ContainsFunc(names, func(name string) bool {
			return name == target || strings.HasPrefix(name, target+"/") || strings.HasPrefix(target, name+"/")
		})
	})
}

// A rootReader reads small parts of an image. What it can't read is missing.
type rootReader struct {
	image.Rootfs
	err error // the first that the image did not cause, so that what was read is not what it has
}

// note notes an error about a file, and reports whether there is one.
func (r *rootReader) note(name string, err error) bool {
	if err != nil && r.err == nil && !causedByLayer(err) {
		if at, ok := errors.AsType[*fs.PathError](err); ok { // callers do not see where layers are
			err = at.Err
		}
		r.err = fmt.Errorf("reading %s: %w", name, err)
	}
	return err != nil
}

// read returns the content of a regular file.
func (r *rootReader) read(name string) []byte {
	data, err := findFile(r.layersOf(name))
	r.note(name, err)
	return data
}

// typeOf returns the type of a file, which may be a link, and whether there is one.
func (r *rootReader) typeOf(name string) (kind fs.FileMode, ok bool) {
	_, kind, ok = r.find(name)
	return kind, ok
}

// find returns the topmost layer that has a file.
func (r *rootReader) find(name string) (layer string, kind fs.FileMode, ok bool) {
	layers, rest := r.layersOf(name)
	for _, layer := range layers {
		if kind, err := typeInLayer(layer, rest); !r.note(name, err) {
			return layer, kind, true
		}
	}
	return "", 0, false
}

// unusedHash returns the path by which OpenSSL finds a certificate in a directory of an image,
// beside others of its subject's hash there and among the files that are added.
func (r *rootReader) unusedHash(files []driver.File, dir string, der []byte) (string, bool) {
	hash, ok := subjectHash(der)
	for n := 0; ok && n < maxSameHash; n++ {
		name := fmt.Sprintf("%s/%s.%d", dir, hash, n)
		added := slices.ContainsFunc(files, func(f driver.File) bool { return f.Path == name })
		if _, exists := r.typeOf(name); !exists && !added {
			return name, true
		}
	}
	return "", false
}

// maxSameHash bounds the certificates of a directory with the same hash.
const maxSameHash = 10

// roots returns the certificates that an image trusts, and where it has them. If it returns none, unread is
// where there is something that can't be read.
func (r *rootReader) roots() (at, unread string, bundle []byte) {
	for _, name := range trustStores {
		to := r.follow(name)
		text, err := findFile(r.layersOf(to))
		r.note(to, err)
		if to != name && certificatesIn(text) == nil { // whatever it leads to must stay as it is
			text = nil
		}
		if len(text) > 0 {
			return to, "", text
		}
		if errors.Is(err, sandpit.ErrInvalid) {
			unread = cmp.Or(unread, name)
		}
	}
	return trustStores[0], unread, nil
}

// follow returns what a path of an image leads to. It follows links in the image, but never leaves it.
func (r *rootReader) follow(name string) string {
	const maxLinks = 40 // as Linux has it
	at, rest := "/", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		target, ok := r.link(next)
		if !ok {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return name
		}
		if path.IsAbs(target) {
			at = "/"
		}
		rest = slices.Concat(strings.Split(target, "/"), rest)
	}
	return at
}

// link returns where a link leads to, if the file is one.
func (r *rootReader) link(name string) (target string, ok bool) {
	layer, kind, ok := r.find(name)
	if !ok || kind&fs.ModeSymlink == 0 {
		return "", false
	}
	_, rest := r.layersOf(name)
	target, err := linkInLayer(layer, rest)
	return target, !r.note(name, err)
}

// layersOf returns the directories in which a file of an image may be, the topmost first, and its
// path in them.
func (r *rootReader) layersOf(name string) (layers []string, rest string) {
	layers, rest = r.Layers, name
	for _, b := range r.Binds {
		if target := path.Clean("/" + b.Target); name == target {
			layers, rest = []string{b.Source}, "."
		} else if inner, ok := strings.CutPrefix(name, target+"/"); ok {
			layers, rest = []string{b.Source}, inner
		}
	}
	return layers, strings.TrimPrefix(rest, "/")
}

package image

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// nobodyID is the uid and gid of nobody, on every Linux.
const nobodyID = 65534

// Bounds on what is copied from /etc; what goes over them is left out.
const (
	maxHostFile  = 16 << 20 // bytes of one file
	maxHostFiles = 20_000
	maxHostDepth = 16
	maxHostUsers = 1 << 20 // bytes of passwd or group that are read
)

// etcAllowed names what of /etc is copied, as patterns of path.Match: what
// programs of a toolchain look up, and nothing that says who uses this machine or
// whose purpose it is to say how to log in somewhere. Each pattern is as narrow as
// the programs allow: a directory is named as a whole only if all that belongs
// there is public. The same names are what is seen of /usr/etc and /usr/local/etc.
// Left out on purpose, although many hosts have them:
//
//   - environment, profile, profile.d, bash.bashrc and all other start-up files of
//     shells, and skel: tokens and passwords of proxies are exported there
//   - start-up files of editors, terminals and interpreters (vim, nano, emacs, lesskey,
//     inputrc, tmux.conf, screenrc, gdb, ghc, lua, octave, ruby, perl/sitecustomize.pl,
//     perl/Net, python*/sitecustomize.py, ant, java/java.conf): they set variables, too,
//     and everything runs without them
//   - gitconfig, npmrc, yarnrc, pip.conf and xdg/pip, wgetrc, netrc, gemrc, gradle,
//     maven/settings.xml, perl/CPAN, R/Renviron.site, R/Rprofile.site, julia, apt:
//     credentials of package registries
//   - my.cnf, odbc.ini, pg_service.conf, msmtprc, php.ini: passwords of services
//   - net.properties of Java: passwords of proxies
//   - policy.xml of ImageMagick: the secret that processes share a cache by
//   - pkcs11 and Java's nss.cfg: PINs of tokens; the authorities' certificates are found without
//   - machine-id and hostname, which tell machines apart
//
// Whoever writes a password into another file of these, where no program looks
// for one, shows it.
func etcAllowed() []string {
	allowed := []string{
		// The dynamic loader and the C library.
		"ld.so.cache", "ld.so.conf", "ld.so.conf.d/*.conf", "ld-musl-*", "gai.conf", "host.conf",
		"networks", "protocols", "services", "rpc", "ethertypes", "netconfig",
		"localtime", "timezone", "locale.alias", "locale.gen",
		// Which distribution it is.
		"os-release", "lsb-release", "debian_version", "*-release", "issue", "dpkg/origins/*",
		// Links to the chosen version of a program.
		"alternatives", "static",
		// Certificates of authorities, of which files with a private key are left out.
		"ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ssl/ct_log_list.cnf", "ssl1.1/openssl.cnf", "ca-certificates.conf",
		"ca-certificates/extracted", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/tls/ct_log_list.cnf",
		"pki/tls/openssl.d/*.cnf", "pki/ca-trust/extracted", "pki/java/cacerts", "gnutls/config",
		"crypto-policies/config", "crypto-policies/back-ends/*", "crypto-policies/state/*",
		// Shells and terminals, but nothing that they execute.
		"shells", "terminfo", "DIR_COLORS", "login.defs", "manpath.config", "man_db.conf",
		// Tools.
		"magic", "magic.mime", "mime.types", "mke2fs.conf", "papersize", "paperspecs", "xattr.conf", "fonts",
		"groff/*.local", "groff/site-tmac/*.local", "texmf/web2c/*.cnf", "sgml", "xml", "matplotlibrc", "X11/rgb.txt",
		"ImageMagick*/[a-oq-z]*.xml", "OpenCL/vendors/*.icd", "glvnd/egl_vendor.d/*.json", "libnl*/classid", "libnl*/pktloc",
		"python3/debian_config", "perl/XML/SAX/ParserDetails.ini", "R/Makeconf", "R/javaconf", "R/ldpaths",
		"maven/m2.conf", "maven/logging/*.properties",
	}
	// Java, of Debian and of Fedora.
	for _, dir := range []string{"java*/", "java/*/*/conf/", "java/*/*/lib/"} {
		for _, name := range []string{
			"jvm*.cfg", "logging.properties", "psfont*", "sound.properties", "flavormap.properties", "jfr/*.jfc",
			"content-types.properties", "calendars.properties", "images/cursors", // of Java 8
			"management/management.properties", "management/jmxremote.access", "security/java.*", "security/*.policy",
			"security/*.certs", "security/cacerts", "security/public_suffix_list.dat", "security/policy",
		} {
			allowed = append(allowed, dir+name)
		}
	}
	return allowed
}

// etcLines names files of /etc, as patterns, of which some lines are shown: those
// that match. The others may set passwords, or name code that is executed.
func etcLines() map[string]*regexp.Regexp {
	extensions := regexp.MustCompile(`^(zend_)?extension *= *"?[\w./-]+"?$`)
	language := regexp.MustCompile(`^(LANG|LANGUAGE|LC_[A-Z]+)=`)
	return map[string]*regexp.Regexp{
		// Most programs in PHP need extensions. Of Debian, Fedora, Arch and Alpine.
		"php/*/mods-available/*.ini": extensions,
		"php/*/cli/conf.d/*.ini":     extensions,
		"php.d/*.ini":                extensions,
		"php*/conf.d/*.ini":          extensions,
		"R/Renviron":                 regexp.MustCompile(`^(EDITOR|LN_S|MAKE|PAGER|SED|TAR|R_(LIBS|LIBS_SITE|LIBS_USER|PLATFORM|PAPERSIZE|PAPERSIZE_USER|BROWSER|PDFVIEWER|RD4PDF|[A-Z]+CMD))=`),
		"R/repositories":             regexp.MustCompile(`^[\w.-]+\t[^@]*(@CRAN@[^@]*)?$`), // no user of a URL
		"locale.conf":                language,
		"default/locale":             language,
	}
}

// usrHidden names, as patterns, what is not shown of /usr, beside what etcAllowed
// does not name in /usr/etc and /usr/local/etc: where tools that are installed
// there look for the machine's credentials although everybody can read it. Go's
// go.env is not among them: without its lines about proxy, checksums and toolchain
// the go command does not work.
func usrHidden() []string {
	return []string{
		// npm's built-in and global settings; what npm and yarn take for root's home.
		"lib/node_modules/npm/npmrc", "local/lib/node_modules/npm/npmrc", "share/nodejs/npm/npmrc",
		"local/*/lib/node_modules/npm/npmrc", "local/*/etc/npmrc",
		"local/lib/nodejs/lib/node_modules/npm/npmrc", "local/lib/nodejs/*/lib/node_modules/npm/npmrc",
		"local/lib/nodejs/etc/npmrc", "local/lib/nodejs/*/etc/npmrc",
		"local/share/.npmrc", "local/share/.yarnrc",
		// pip: pip.conf in sys.prefix, which virtual environments have, too.
		"pip.conf", "local/pip.conf", "local/*/pip.conf", "local/*/*/pip.conf",
		// Maven and Gradle, in their own directories.
		"share/*maven*/conf/settings.xml", "local/*maven*/conf/settings.xml",
		"share/gradle*/gradle.properties", "share/gradle*/init.gradle", "share/gradle*/init.d/*",
		"local/gradle*/gradle.properties", "local/gradle*/init.gradle", "local/gradle*/init.d/*",
		// Cargo, Bundler and conda, where images of Docker Hub install them.
		"local/cargo/credentials", "local/cargo/credentials.toml", "local/cargo/config", "local/cargo/config.toml", "local/bundle/config",
		"local/.condarc", "local/*conda*/.condarc",
		// R's environment and profile of the site.
		"lib*/R/etc/Renviron.site", "lib*/R/etc/Rprofile.site", "local/lib*/R/etc/Renviron.site", "local/lib*/R/etc/Rprofile.site",
		// Java's passwords of proxies.
		"lib/jvm/*/conf/net.properties", "lib/jvm/*/jre/lib/net.properties", "local/*/conf/net.properties",
		"local/*/*/conf/net.properties", "local/lib/jvm/*/conf/net.properties",
		// Database clients.
		"my.cnf", "local/mysql/my.cnf", "local/pgsql/etc/pg_service.conf",
	}
}

// A hostPlan lists everything that goes into a skeleton, in the order in which
// it is made.
type hostPlan struct {
	host  string // without a slash at its end
	items []hostItem
	binds []Bind
}

// A hostItem is one file of a skeleton.
type hostItem struct {
	path  string         // "etc/passwd"
	mode  uint32         // type and permissions, as in st_mode; a device hides what the host has there
	owner int            // uid and gid: 0 or UserID
	data  []byte         // of a generated file, or a link's target
	copy  bool           // the content is that of the host's file
	lines *regexp.Regexp // of a copied file: the lines that are copied, all if nil
	stamp []byte         // of a copied file: what changes when it does
}

// planHost looks at the host and decides.
func planHost(host string) *hostPlan {
	p := &hostPlan{host: host}
	for _, d := range []string{
		"boot", "dev", "dev/pts", "dev/shm", "dev/mqueue", "etc", "home", "media", "mnt", "opt", "proc", "run", "run/lock",
		"srv", "sys", "usr", "var", "var/cache", "var/lib", "var/log", "var/mail", "var/opt", "var/spool",
	} {
		p.dir(d, 0o755)
	}
	p.dir("root", 0o700)
	p.dir("tmp", 0o1777)
	p.dir("var/tmp", 0o1777)
	p.link("var/run", "/run")
	p.link("var/lock", "/run/lock")
	p.items = append(p.items,
		hostItem{path: "home/user", mode: syscall.S_IFDIR | 0o755, owner: UserID},
		hostItem{path: "workspace", mode: syscall.S_IFDIR | 0o755, owner: UserID})

	// The system itself: /usr, and where /bin and the like are not links into
	// it, those too. NixOS and Guix keep all programs in a store.
	p.bind("usr")
	for _, d := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if target, err := os.Readlink(host + "/" + d); err == nil {
			if within(path.Join("/", target), "usr") {
				p.link(d, target)
			}
			continue
		}
		p.bindDir(d)
	}
	for _, d := range []string{"nix/store", "gnu/store"} {
		p.bindDir(d)
	}

	seen := map[string]bool{}
	for _, pattern := range etcAllowed() {
		for _, name := range p.match("etc", pattern) {
			p.copyTree(path.Join("etc", name), 0, nil, seen)
		}
	}
	lines := etcLines()
	for _, pattern := range slices.Sorted(maps.Keys(lines)) {
		for _, name := range p.match("etc", pattern) {
			p.copyTree(path.Join("etc", name), 0, lines[pattern], seen)
		}
	}
	p.hideUsr()
	p.generate()
	return p
}

func (p *hostPlan) dir(name string, mode uint32) {
	p.items = append(p.items, hostItem{path: name, mode: syscall.S_IFDIR | mode})
}

func (p *hostPlan) link(name, target string) {
	p.items = append(p.items, hostItem{path: name, mode: syscall.S_IFLNK | 0o777, data: []byte(target)})
}

func (p *hostPlan) file(name, data string) {
	p.items = append(p.items, hostItem{path: name, mode: syscall.S_IFREG | 0o644, data: []byte(data)})
}

func (p *hostPlan) bind(name string) {
	p.binds = append(p.binds, Bind{Source: p.host + "/" + name, Target: "/" + name})
}

// bindDir binds a directory that is really one.
func (p *hostPlan) bindDir(name string) {
	if info, err := os.Lstat(p.host + "/" + name); err != nil || !info.IsDir() {
		return
	}
	if parent := path.Dir(name); parent != "." {
		p.dir(parent, 0o755)
	}
	p.dir(name, 0o755)
	p.bind(name)
}

// match expands a pattern to the names in a directory of the host.
func (p *hostPlan) match(dir, pattern string) []string {
	if !strings.Contains(pattern, "*") {
		return []string{pattern}
	}
	top := p.host + "/" + dir + "/"
	found, _ := filepath.Glob(top + pattern)
	for i := range found {
		found[i] = strings.TrimPrefix(found[i], top)
	}
	return found
}

// hideUsr plans what covers the parts of /usr that are not to be seen.
func (p *hostPlan) hideUsr() {
	hidden := map[string]bool{}
	for _, pattern := range usrHidden() {
		for _, name := range p.match("usr", pattern) {
			p.hide("usr/"+name, hidden)
		}
	}
	for _, etc := range []string{"usr/etc", "usr/local/etc"} {
		p.hideEtc(etc, "", etcAllowed(), hidden)
	}
	made := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(hidden)) {
		var above []string
		for d := path.Dir(name); d != "usr"; d = path.Dir(d) {
			above = append(above, d)
		}
		if slices.ContainsFunc(above, func(d string) bool { return hidden[d] }) {
			continue
		}
		for _, d := range slices.Backward(above) {
			if !made[d] {
				made[d] = true
				p.dir(d, 0o755)
			}
		}
		p.items = append(p.items, hostItem{path: name, mode: syscall.S_IFCHR})
	}
}

// hideEtc hides in a directory below etc what no pattern allows. Of a directory
// that a pattern leads through, and that is not a link, it looks at what is in there.
func (p *hostPlan) hideEtc(etc, dir string, patterns []string, hidden map[string]bool) {
	entries, _ := os.ReadDir(p.host + "/" + path.Join(etc, dir))
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		depth := strings.Count(name, "/") + 1
		var allowed, through bool
		for _, pattern := range patterns {
			parts := strings.Split(pattern, "/")
			if len(parts) < depth {
				continue
			}
			if ok, _ := path.Match(path.Join(parts[:depth]...), name); ok {
				allowed = allowed || len(parts) == depth
				through = through || e.IsDir()
			}
		}
		switch {
		case allowed:
			p.hideKeys(etc+"/"+name, hidden)
		case through:
			p.hideEtc(etc, name, patterns, hidden)
		default:
			p.hide(etc+"/"+name, hidden)
		}
	}
}

// hideKeys hides files with private keys among the allowed certificates.
func (p *hostPlan) hideKeys(name string, hidden map[string]bool) {
	if !strings.Contains(name, "/ssl") && !strings.Contains(name, "/pki/") && !strings.Contains(name, "/ca-certificates") {
		return
	}
	_ = filepath.WalkDir(p.host+"/"+name, func(file string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // what can't be read here can't be read inside
		}
		name := strings.TrimPrefix(file, p.host+"/")
		if info, err := e.Info(); err != nil || info.Size() > maxHostFile {
			p.hide(name, hidden)
		} else if data, err := os.ReadFile(file); err == nil && holdsKey(name, data) {
			p.hide(name, hidden)
		}
		return nil
	})
}

// hide adds a file or directory of /usr by its real name, if it is there.
func (p *hostPlan) hide(name string, hidden map[string]bool) {
	dir, err := filepath.EvalSymlinks(p.host + "/" + path.Dir(name))
	if err != nil {
		return
	}
	file := path.Join(dir, path.Base(name))
	name, ok := strings.CutPrefix(file, p.host+"/")
	if _, err := os.Lstat(file); err == nil && ok && strings.HasPrefix(name, "usr/") {
		hidden[name] = true
	}
}

// copyTree plans to copy a file or directory of the host that everybody may
// read, or with lines only some lines of a file. Links stay links, so nothing
// outside of /etc is ever read through one.
func (p *hostPlan) copyTree(name string, depth int, lines *regexp.Regexp, seen map[string]bool) {
	if seen[name] || depth > maxHostDepth || len(p.items) > maxHostFiles {
		return
	}
	src := p.host + "/" + name
	var st unix.Stat_t
	if unix.Lstat(src, &st) != nil {
		return
	}
	// What is in a directory that not everybody may enter is not public
	// either, although its own mode may say so.
	if depth == 0 && !p.publicParents(name, seen) {
		return
	}
	seen[name] = true
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFLNK:
		if target, err := os.Readlink(src); err == nil && linkAllowed(name, target) {
			p.link(name, target)
		}
	case syscall.S_IFREG:
		if st.Mode&0o004 == 0 || st.Size > maxHostFile {
			return
		}
		p.items = append(p.items, hostItem{
			path: name, copy: true, lines: lines, stamp: appendStat(nil, src),
			mode: syscall.S_IFREG | 0o644 | uint32(st.Mode)&0o111,
		})
	case syscall.S_IFDIR:
		if st.Mode&0o005 != 0o005 {
			return
		}
		p.dir(name, 0o755)
		entries, _ := os.ReadDir(src)
		for _, e := range entries {
			if name == "etc/alternatives" && strings.HasSuffix(e.Name(), ".gz") {
				continue // manual pages: most of them, and nobody misses them
			}
			p.copyTree(name+"/"+e.Name(), depth+1, lines, seen)
		}
	}
}

// publicParents plans the directories between /etc and name, and reports
// whether everybody may enter them.
func (p *hostPlan) publicParents(name string, seen map[string]bool) bool {
	parent := path.Dir(name)
	if parent == "etc" || parent == "." {
		return true
	}
	if !p.publicParents(parent, seen) {
		return false
	}
	var st unix.Stat_t
	if unix.Lstat(p.host+"/"+parent, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFDIR || st.Mode&0o001 == 0 {
		return false
	}
	if !seen[parent+"/"] {
		seen[parent+"/"] = true
		p.dir(parent, 0o755)
	}
	return true
}

// linkAllowed reports whether the target of a link in /etc may be told inside.
func linkAllowed(name, target string) bool {
	if !path.IsAbs(target) {
		target = path.Join("/", path.Dir(name), target)
	}
	target = path.Clean(target)
	for _, top := range []string{"usr", "etc", "bin", "sbin", "lib", "lib64", "proc", "run", "nix/store", "gnu/store"} {
		if within(target, top) {
			return true
		}
	}
	return false
}

// within reports whether a clean absolute path is in a directory of the root.
func within(p, top string) bool {
	return strings.HasPrefix(p, "/"+top+"/") || p == "/"+top
}

// generate plans the files that are not the host's.
func (p *hostPlan) generate() {
	shell := "/bin/sh"
	if _, err := os.Stat(p.host + "/bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	p.file("etc/passwd", hostPasswd(p.readUsers("passwd"), shell))
	p.file("etc/group", hostGroup(p.readUsers("group")))
	p.file("etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"+
		"protocols: files\nservices: files\nethers: files\nrpc: files\n")
	p.link("etc/mtab", "/proc/mounts")
	p.file("etc/inputrc", "set input-meta on\nset output-meta on\n\"\\e[1~\": beginning-of-line\n\"\\e[4~\": end-of-line\n"+
		"\"\\e[3~\": delete-char\n\"\\e[1;5C\": forward-word\n\"\\e[1;5D\": backward-word\n")
	p.homeFile(".profile", "PATH=\"$PATH:$HOME/.local/bin\"\nif [ -n \"$BASH_VERSION\" ]; then . \"$HOME/.bashrc\"; fi\n")
	p.homeFile(".bashrc", "PS1='\\u@\\h:\\w\\$ '\nalias ls='ls --color=auto' grep='grep --color=auto'\n")
}

func (p *hostPlan) homeFile(name, data string) {
	p.items = append(p.items, hostItem{path: "home/user/" + name, mode: syscall.S_IFREG | 0o644, owner: UserID, data: []byte(data)})
}

func (p *hostPlan) readUsers(name string) string {
	f, err := os.Open(p.host + "/etc/" + name)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, maxHostUsers))
	return string(data)
}

// hostPasswd makes a passwd from that of the host: its system users, none of
// its people, and the sandbox's own user.
func hostPasswd(host, shell string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "root:x:0:0:root:/root:%s\n", shell)
	for _, f := range systemLines(host, 7, 2) {
		gid, err := strconv.ParseUint(f[3], 10, 31)
		if err != nil || (gid >= UserID && gid != nobodyID) {
			gid = nobodyID
		}
		fmt.Fprintf(&b, "%s:x:%s:%d::%s:%s\n", f[0], f[2], gid, cmp.Or(f[5], "/"), cmp.Or(f[6], "/usr/sbin/nologin"))
	}
	fmt.Fprintf(&b, "user:x:%d:%d::%s:%s\n", UserID, UserID, hostHome, shell)
	fmt.Fprintf(&b, "nobody:x:%d:%d:nobody:/nonexistent:/usr/sbin/nologin\n", nobodyID, nobodyID)
	return b.String()
}

// hostGroup is hostPasswd for groups. Nobody is a member of any.
func hostGroup(host string) string {
	var b strings.Builder
	b.WriteString("root:x:0:\n")
	for _, f := range systemLines(host, 4, 2) {
		fmt.Fprintf(&b, "%s:x:%s:\n", f[0], f[2])
	}
	fmt.Fprintf(&b, "user:x:%d:\nnogroup:x:%d:\n", UserID, nobodyID)
	return b.String()
}

// systemLines returns the lines of a passwd or group file whose id is that of
// the system: 1 to 999.
func systemLines(text string, fields, idField int) [][]string {
	var lines [][]string
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) != fields || !userName(f[0]) || slices.Contains([]string{"root", "user", "nobody", "nogroup"}, f[0]) {
			continue
		}
		id, err := strconv.ParseUint(f[idField], 10, 31)
		if err != nil || id == 0 || id >= UserID {
			continue
		}
		f[idField] = strconv.FormatUint(id, 10)
		lines = append(lines, f)
	}
	return lines
}

// userName reports whether a name is one that useradd would take.
func userName(s string) bool {
	if s == "" || len(s) > 32 || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

// fingerprint names the skeleton that the plan makes.
func (p *hostPlan) fingerprint() string {
	h := sha256.New()
	var n [8]byte
	field := func(b []byte) {
		binary.LittleEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	field([]byte(hostVersion))
	field(appendBootID(nil))
	field(binary.LittleEndian.AppendUint32(nil, uint32(os.Getuid())))
	for _, it := range p.items {
		field([]byte(it.path))
		field(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, it.mode), uint32(it.owner)))
		field(it.data)
		field(it.stamp)
	}
	for _, b := range p.binds {
		field([]byte(b.Target))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// make makes the skeleton in an empty directory of our own.
func (p *hostPlan) make(dst string) error {
	var wd []hostItem // directories, whose modes are set when they are full
	root := os.Getuid() == 0
	for _, it := range p.items {
		to := dst + "/" + it.path
		var err error
		switch it.mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			if err = os.Mkdir(to, 0o700); os.IsExist(err) {
				err = nil
			}
			wd = append(wd, it)
		case syscall.S_IFLNK:
			err = os.Symlink(string(it.data), to)
		case syscall.S_IFCHR:
			// A whiteout, or on overlayfs, which makes none, a file that hides as well.
			if err = unix.Mknod(to, syscall.S_IFCHR, 0); err == unix.EPERM {
				err = os.WriteFile(to, nil, 0o444)
			}
		default:
			err = p.makeFile(it, to)
		}
		if err == nil && root && it.owner != 0 {
			err = os.Lchown(to, it.owner, it.owner)
		}
		if err != nil {
			return fmt.Errorf("creating the host skeleton: %w", err)
		}
	}
	for _, it := range slices.Backward(wd) {
		if err := syscall.Chmod(dst+"/"+it.path, it.mode&0o7777); err != nil {
			return fmt.Errorf("creating the host skeleton: %w", err)
		}
	}
	return nil
}

// holdsKey reports whether a file has a private key in it, by what it contains, or by its
// name where that is not text. What is extracted from the authorities' certificates has none.
func holdsKey(name string, data []byte) bool {
	switch path.Ext(name) {
	case ".key", ".p12", ".pfx", ".jks", ".keystore":
		return !strings.Contains(name, "/extracted/")
	}
	return bytes.Contains(data, []byte("PRIVATE KEY-----")) || bytes.Contains(data, []byte("PRIVATE KEY BLOCK-----"))
}

func (p *hostPlan) makeFile(it hostItem, to string) error {
	data := it.data
	if it.copy {
		f, err := os.OpenFile(p.host+"/"+it.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil // gone since it was planned: the next look will see
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Mode()&0o004 == 0 {
			return nil
		}
		if data, err = io.ReadAll(io.LimitReader(f, maxHostFile)); err != nil {
			return err
		}
		if holdsKey(it.path, data) {
			return nil // as some keep it in one file with its certificate
		}
	}
	if it.lines != nil {
		var shown []byte
		for line := range bytes.Lines(data) {
			if it.lines.Match(bytes.TrimSpace(line)) {
				shown = append(shown, line...)
			}
		}
		data = shown
	}
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	if err == nil {
		err = syscall.Fchmod(int(w.Fd()), it.mode&0o7777)
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}

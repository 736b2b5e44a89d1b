package image_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func acquire(t testing.TB, s *image.Store, ref string) *image.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), ref, image.AcquireOptions{})
	if err != nil {
		t.Fatalf("Acquire(%q): %v", ref, err)
	}
	t.Cleanup(l.Release)
	return l
}

// etcSecrets and usrSecrets are where credentials lie on many machines, although
// everybody may read them: places in /etc and in /usr. etcSettings are beside those,
// and etcLines are both, in lines of one file: what is shown of it.
var (
	etcSecrets = []string{
		"gitconfig", "npmrc", "pip.conf", "xdg/pip/pip.conf", "wgetrc", "curlrc", "netrc", "yarnrc", "gemrc", "environment",
		"profile", "profile.d/proxy.sh", "bash.bashrc", "bashrc", "bash/bashrc.d/proxy", "zsh/zshenv", "zshenv", "fish/config.fish",
		"skel/.bashrc", "skel/.profile", "gradle/gradle.properties", "gradle/init.gradle", "maven/settings.xml", "apt/auth.conf",
		"docker/config.json", "machine-id", "R/Renviron.site", "R/Rprofile.site", "perl/CPAN/Config.pm", "julia/startup.jl",
		"php/8.2/fpm/pool.d/www.conf", "my.cnf", "odbc.ini", "msmtprc", "boto.cfg", "cargo/credentials.toml",
		"php/8.2/cli/php.ini", "ant.conf", "ant/ant.conf", "inputrc.d/x", "nanorc", "java/java.conf", "java-17-openjdk/security/nss.cfg",
		"java-17-openjdk/net.properties", "java-17-openjdk/management/jmxremote.password", "pkcs11/modules/token", "python3.11/sitecustomize.py",
		"java/java-21/java-21.0/conf/net.properties", "java/java-21/java-21.0/conf/management/jmxremote.password", "java-17-openjdk/management/ssl.properties",
		"ImageMagick-6/policy.xml", "perl/Net/libnet.cfg", "mailcap", "ca-certificates/update.d/hook", "ghostscript/fontmap.d/x", "texmf/dvips/x.cfg",
		"ssl/certs/both.pem", "ssl/certs/pgp.asc", "ssl/certs/site.p12", "python3/usercustomize.py", "R/other", "crypto-policies/local.d/x", "gnutls/pkcs11.conf",
		"perl/sitecustomize.pl", "tmux.conf", "screenrc", "vim/vimrc.local", "emacs/site-start.d/50x.el", "rubyrc", "gdb/gdbinit", "luarocks/config.lua",
		"octave.conf", "ghc/ghci.conf", "lesskey",
	}
	etcSettings = []string{
		"R/Makeconf", "java-17-openjdk/security/java.security", "java-17-openjdk/jvm-amd64.cfg", "java/java-21/java-21.0/conf/security/java.security",
		"java/java-21/java-21.0/lib/security/blocked.certs", "ImageMagick-6/delegates.xml", "ImageMagick-6/type.xml", "crypto-policies/back-ends/gnutls.config",
		"maven/m2.conf", "texmf/web2c/texmf.cnf", "fonts/conf.d/10.conf", "perl/XML/SAX/ParserDetails.ini",
		"pki/java/cacerts",
	}
	etcLines = map[string]string{
		"php.d/30-curl.ini":                   "extension=curl\n",
		"php83/conf.d/x.ini":                  "extension=phar.so\n",
		"php/8.2/mods-available/newrelic.ini": "extension=newrelic.so\n",
		"php/8.2/cli/conf.d/20-mbstring.ini":  "extension = \"mbstring.so\"\n",
		"php/8.2/cli/conf.d/10-opcache.ini":   "zend_extension=opcache.so\n",
		"R/Renviron":                          "R_LIBS_SITE=${R_LIBS_SITE-'/usr/lib/R/site-library'}\nMAKE=${MAKE-'make'}\nR_UNZIPCMD=/usr/bin/unzip\n",
		"R/repositories":                      "CRAN\tCRAN\t@CRAN@\tTRUE\n",
		"default/locale":                      "LANG=C.UTF-8\nLC_TIME=C\n",
	}
	usrSecrets = []string{
		"etc/ssl/certs/site/both.pem", "local/etc/ssl/certs/site/both.pem", "etc/pki/tls/certs/pgp.asc", "local/etc/pki/tls/certs/pgp.asc", "local/etc/ssl/certs/site.p12",
		"etc/npmrc", "etc/gitconfig", "etc/profile.d/proxy.sh", "local/etc/npmrc", "local/etc/gitconfig", "local/etc/wgetrc", "local/etc/yarnrc",
		"local/etc/bash.bashrc", "local/etc/profile", "local/etc/odbc.ini", "local/etc/fish/config.fish", "local/etc/anything",
		"lib/node_modules/npm/npmrc", "local/share/.npmrc", "local/share/.yarnrc", "pip.conf", "local/pip.conf",
		"local/apache-maven-3.9/conf/settings.xml", "local/gradle-8.1/init.d/proxy.gradle", "local/gradle-8.1/gradle.properties",
		"local/cargo/credentials.toml", "local/bundle/config", "local/miniconda3/.condarc", "lib/R/etc/Renviron.site", "my.cnf",
		"local/etc/ssl/keys", "local/etc/php/8.2/fpm", "local/etc/php/8.2/cli/php.ini", "etc/python3.11/sitecustomize.py", "local/etc/tmux.conf",
		"local/lib/nodejs/node-v20/etc/npmrc", "local/lib/nodejs/node-v20/lib/node_modules/npm/npmrc", "local/node-v20/etc/npmrc",
		"local/cargo/config.toml", "local/cargo/config", "local/venv/pip.conf", "local/share/venv/pip.conf", "lib/jvm/jdk-17/conf/net.properties",
		"local/java/jdk-21/conf/net.properties", "local/lib/jvm/jdk-21/conf/net.properties",
	}
)

// fakeHost makes a directory that looks like a host with things to hide.
func fakeHost(t *testing.T) string {
	t.Helper()
	host, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(host, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, mode fs.FileMode, data string) {
		t.Helper()
		p := filepath.Join(host, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(data), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(host, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("usr/bin/true", 0o755, "")
	write("sbin/thing", 0o755, "")
	link("usr/bin", "bin")
	link("/home/alice/lib", "lib")
	write("nix/store/x", 0o644, "")
	write("home/alice/secret", 0o644, "secret")
	write("etc/passwd", 0o644, "root:x:0:0:Root:/root:/bin/zsh\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"+
		"alice:x:1000:1000:Alice Liddell:/home/alice:/bin/bash\nbad line\n+::::::\nevil:x:0:0::/:/bin/sh\nhuge:x:99999999999:1::/:/bin/sh\n"+
		"svc:x:200:1000:who:/srv:/bin/false\n")
	write("etc/group", 0o644, "root:x:0:alice\nadm:x:4:alice,bob\nalice:x:1000:\n")
	write("etc/shadow", 0o640, "root:hash")
	write("etc/nsswitch.conf", 0o644, "passwd: files systemd ldap\n")
	write("etc/ssl/certs/ca.crt", 0o644, "cert")
	write("etc/ssl/private/key.pem", 0o644, "secret")
	write("etc/fonts/readable", 0o644, "x")
	write("etc/fonts/hidden", 0o600, "secret")
	write("etc/java/closed/closed/conf/jvm.cfg", 0o644, "secret")
	if err := os.Chmod(filepath.Join(host, "etc/java/closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	link("/home/alice/vimrc", "etc/vimrc")
	link("../usr/lib/os-release", "etc/os-release")
	link("/usr/share/zoneinfo/UTC", "etc/localtime")
	for _, name := range etcSecrets {
		write("etc/"+name, 0o644, "secret")
	}
	for _, name := range etcSettings {
		write("etc/"+name, 0o644, "setting")
	}
	for name, shown := range etcLines {
		write("etc/"+name, 0o644, "password = \"secret\"\n"+shown+"preload=/secret\nCRAN\thttps://me:secret@cran.example\nextension=\"$(secret)\"\n")
	}
	write("etc/ssl/certs/both.pem", 0o644, "-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\n")
	write("etc/ssl/certs/pgp.asc", 0o644, "-----BEGIN PGP PRIVATE KEY BLOCK-----\n")
	for _, name := range usrSecrets {
		write("usr/"+name, 0o644, "secret")
	}
	for _, dir := range []string{"etc", "local/etc"} {
		write("usr/"+dir+"/ssl/certs/site/both.pem", 0o644, "-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\n")
		write("usr/"+dir+"/pki/tls/certs/pgp.asc", 0o644, "-----BEGIN PGP PRIVATE KEY BLOCK-----\n")
	}
	for _, name := range []string{
		"etc/services", "local/etc/fonts/fonts.conf", "local/share/doc", "lib/node_modules/npm/package.json",
		"local/etc/ssl/openssl.cnf", "local/etc/ssl/cert.pem", "local/etc/ssl/certs/ca.pem", "etc/pki/tls/cert.pem", "local/go/go.env",
	} {
		write("usr/"+name, 0o644, "public")
	}
	// By another name: a link in the way.
	write("usr/share/maven-3.8/conf/settings.xml", 0o644, "secret")
	link("maven-3.8", "usr/share/maven")
	// What leads elsewhere is not followed.
	link("/usr/bin", "usr/local/etc/binaries")
	link("/home/alice", "usr/local/maven")
	write("home/alice/conf/settings.xml", 0o644, "secret")
	if err := syscall.Mkfifo(filepath.Join(host, "etc/services"), 0o644); err != nil {
		t.Fatal(err)
	}
	return host
}

// tree lists a directory: type, permissions, path, and a link's target.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		line := info.Mode().String() + " " + rel
		if info.Mode()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(p)
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestHostImageHoldsOnlyWhatIsAllowed(t *testing.T) {
	host := fakeHost(t)
	s := image.Open(filepath.Join(t.TempDir(), "home", "images"), image.Options{HostDir: host})
	root := acquire(t, s, "").Rootfs()
	if len(root.Layers) != 1 || root.Reference != "host" || root.Config.WorkingDir != "/home/user" || root.Config.User != "" {
		t.Fatalf("unexpected root: %+v", root)
	}
	dir := root.Layers[0]

	var binds []string
	for _, b := range root.Binds {
		binds = append(binds, strings.TrimPrefix(b.Source, host)+" "+b.Target)
		if info, err := os.Stat(dir + b.Target); err != nil || !info.IsDir() {
			t.Errorf("target of bind %s is missing: %v", b.Target, err)
		}
	}
	if want := []string{"/usr /usr", "/sbin /sbin", "/nix/store /nix/store"}; !slices.Equal(binds, want) {
		t.Errorf("binds are %q, want %q", binds, want)
	}

	got := tree(t, dir)
	for _, want := range []string{
		"Lrwxrwxrwx bin -> usr/bin", "dtrwxrwxrwx tmp", "dtrwxrwxrwx var/tmp", "drwxr-xr-x home/user", "drwxr-xr-x workspace",
		"-rw-r--r-- etc/ssl/certs/ca.crt", "-rw-r--r-- etc/fonts/readable", "drwx------ root", "-rw-r--r-- home/user/.bashrc",
		"Lrwxrwxrwx etc/os-release -> ../usr/lib/os-release", "Lrwxrwxrwx etc/localtime -> /usr/share/zoneinfo/UTC",
		"Lrwxrwxrwx etc/mtab -> /proc/mounts", "drwxr-xr-x proc", "drwxr-xr-x dev/pts", "drwxr-xr-x .",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("missing %q", want)
		}
	}
	for _, line := range got {
		for _, bad := range []string{"shadow", "private", "hidden", "closed", "alice", "etc/services", " lib "} {
			if strings.Contains(line, bad) {
				t.Errorf("must not be there: %q", line)
			}
		}
	}
	for _, name := range etcSecrets {
		if _, err := os.Lstat(filepath.Join(dir, "etc", name)); err == nil {
			t.Errorf("READ: /etc/%s is there", name)
		}
	}
	for _, name := range etcSettings {
		if _, err := os.Lstat(filepath.Join(dir, "etc", name)); err != nil {
			t.Errorf("%s is missing: %v", name, err)
		}
	}
	for name, want := range etcLines {
		if got, err := os.ReadFile(filepath.Join(dir, "etc", name)); err != nil || string(got) != want {
			t.Errorf("READ: /etc/%s is %q (%v), want %q", name, got, err, want)
		}
	}
	if out, err := exec.Command("grep", "-rl", "secret", dir).Output(); len(out) > 0 {
		t.Errorf("READ: secrets were copied: %s %v", out, err)
	}
	for name, want := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/usr/sbin:/usr/sbin/nologin\nsvc:x:200:65534::/srv:/bin/false\n" +
			"user:x:1000:1000::/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"etc/group": "root:x:0:\nadm:x:4:\nuser:x:1000:\nnogroup:x:65534:\n",
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(b) != want {
			t.Errorf("%s is %q (%v), want %q", name, b, err, want)
		}
	}
	if os.Getuid() == 0 {
		for name, uid := range map[string]uint32{"home/user": 1000, "home/user/.bashrc": 1000, "workspace": 1000, "etc": 0, "root": 0} {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil || info.Sys().(*syscall.Stat_t).Uid != uid {
				t.Errorf("owner of %s is not %d (%v)", name, uid, err)
			}
		}
	}
}

// What covers /usr hides every place of credentials and nothing else, also where
// the store can't have whiteouts.
func TestHostImageHidesCredentialsOfUsr(t *testing.T) {
	stores := map[string]string{"store": filepath.Join(t.TempDir(), "images")}
	if os.Getuid() == 0 {
		over, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		tmp := t.TempDir()
		for _, d := range []string{"lower", "upper", "work"} {
			if err := os.Mkdir(filepath.Join(tmp, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		opts := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", tmp)
		if err := syscall.Mount("overlay", over, "overlay", 0, opts); err != nil {
			t.Fatalf("mounting an overlay: %v", err)
		}
		defer syscall.Unmount(over, syscall.MNT_DETACH)
		stores["store on an overlay"] = filepath.Join(over, "images")
	}
	for name, dir := range stores {
		t.Run(name, func(t *testing.T) {
			host := fakeHost(t)
			s := image.Open(dir, image.Options{HostDir: host})
			l := acquire(t, s, "host")
			cover := filepath.Join(l.Rootfs().Layers[0], "usr")
			want := append([]string{"share/maven-3.8/conf/settings.xml", "local/etc/binaries"}, usrSecrets...)
			for i, name := range want {
				for _, whole := range []string{"etc/profile.d", "etc/python3.11", "local/etc/fish", "local/etc/php"} {
					if strings.HasPrefix(name, whole+"/") {
						want[i] = whole // a directory of which nothing is seen
					}
				}
			}
			var got []string
			err := filepath.WalkDir(cover, func(p string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				info, err := d.Info()
				if err != nil {
					return err
				}
				if st := info.Sys().(*syscall.Stat_t); !(info.Mode()&fs.ModeCharDevice != 0 && st.Rdev == 0) && !(info.Mode().IsRegular() && info.Size() == 0) {
					t.Errorf("%s hides nothing: %v", p, info.Mode())
				}
				got = append(got, strings.TrimPrefix(p, cover+"/"))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(got)
			slices.Sort(want)
			want = slices.Compact(want)
			if !slices.Equal(got, want) {
				t.Errorf("hidden are\n%q, want\n%q", got, want)
			}
			// A new one is hidden at once.
			if err := os.WriteFile(filepath.Join(host, "usr/local/etc/netrc"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(acquire(t, s, "host").Rootfs().Layers[0], "usr/local/etc/netrc")); err != nil {
				t.Errorf("a new file is not hidden: %v", err)
			}
		})
	}
}

func TestHostImageFollowsTheHost(t *testing.T) {
	host := fakeHost(t)
	s := image.Open(filepath.Join(t.TempDir(), "images"), image.Options{HostDir: host})
	first := acquire(t, s, "host")
	again := acquire(t, s, "host")
	if first.Rootfs().Layers[0] != again.Rootfs().Layers[0] {
		t.Error("an unchanged host got a second skeleton")
	}

	// A user is added: the fingerprint changes at once.
	f, err := os.OpenFile(filepath.Join(host, "etc/passwd"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("games:x:5:60:games:/usr/games:/usr/sbin/nologin\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	second := acquire(t, s, "host")
	if second.Rootfs().Layers[0] == first.Rootfs().Layers[0] {
		t.Error("a changed host kept its skeleton")
	}
	if _, err := os.Stat(first.Rootfs().Layers[0]); err != nil {
		t.Errorf("a leased skeleton was removed: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(second.Rootfs().Layers[0], "etc/passwd"))
	if err != nil || !strings.Contains(string(b), "games:x:5:60:") {
		t.Errorf("the new skeleton lacks the new user: %v", err)
	}

	// A file deep inside is changed in place: seen when it is looked for.
	if err := os.WriteFile(filepath.Join(host, "etc/fonts/readable"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	index, err := filepath.Glob(filepath.Join(s.Dir(), "host", "*"))
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, p := range index {
		if err := os.Chtimes(p, old, old); err != nil {
			t.Fatal(err)
		}
	}
	first.Release()
	again.Release()
	third := acquire(t, s, "host")
	b, err = os.ReadFile(filepath.Join(third.Rootfs().Layers[0], "etc/fonts/readable"))
	if err != nil || string(b) != "changed" {
		t.Errorf("the skeleton has %q (%v) of a file changed in place", b, err)
	}
	if _, err := os.Stat(first.Rootfs().Layers[0]); !os.IsNotExist(err) {
		t.Errorf("a skeleton that nobody uses was kept: %v", err)
	}
	if _, err := os.Stat(second.Rootfs().Layers[0]); err != nil {
		t.Errorf("a leased skeleton was removed: %v", err)
	}
}

func TestHostImageMadeByManyAtOnce(t *testing.T) {
	host := fakeHost(t)
	dir := filepath.Join(t.TempDir(), "images")
	var wg sync.WaitGroup
	layers := make([]string, 16)
	for i := range layers {
		wg.Go(func() {
			l, err := image.Open(dir, image.Options{HostDir: host}).Acquire(t.Context(), "host", image.AcquireOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(l.Release)
			layers[i] = l.Rootfs().Layers[0]
		})
	}
	wg.Wait()
	for _, l := range layers {
		if l != layers[0] {
			t.Errorf("two skeletons: %s and %s", l, layers[0])
		}
	}
	left, err := os.ReadDir(filepath.Join(dir, "tmp"))
	if err != nil || len(left) != 0 {
		t.Errorf("left in tmp: %v, %v", left, err)
	}
}

// The real host's image runs a real program, where chroot is allowed.
func TestHostImageOfThisMachine(t *testing.T) {
	s := image.Open(filepath.Join(t.TempDir(), "images"), image.Options{})
	root := acquire(t, s, "host").Rootfs()
	for _, line := range tree(t, root.Layers[0]) {
		for _, bad := range []string{"shadow", "ssh_host", "sudoers", ".pem.key", "machine-id"} {
			if strings.Contains(line, bad) {
				t.Errorf("must not be there: %q", line)
			}
		}
	}
	testkit.NeedRoot(t, "to mount the image")
	testkit.NeedProgram(t, "unshare")
	script := `set -e; mount -t tmpfs tmpfs /mnt; mkdir /mnt/u /mnt/w /mnt/r
mount -t overlay overlay -o lowerdir=` + root.Layers[0] + `,upperdir=/mnt/u,workdir=/mnt/w /mnt/r
`
	for _, b := range root.Binds {
		script += "mount --rbind " + b.Source + " /mnt/r" + b.Target + "\n"
	}
	script += `mount -t proc proc /mnt/r/proc; exec chroot /mnt/r /bin/sh -c 'id -un 1000; ls / >/dev/null; cat /etc/passwd >/dev/null; echo ok'`
	out, err := exec.Command("unshare", "-m", "sh", "-c", script).CombinedOutput()
	if err != nil || string(out) != "user\nok\n" {
		t.Errorf("running in the host image: %v\n%s", err, out)
	}
}

func BenchmarkAcquireHost(b *testing.B) {
	s := image.Open(filepath.Join(b.TempDir(), "images"), image.Options{})
	acquire(b, s, "host").Release()
	b.ReportAllocs()
	for b.Loop() {
		l, err := s.Acquire(b.Context(), "host", image.AcquireOptions{})
		if err != nil {
			b.Fatal(err)
		}
		l.Release()
	}
}

func BenchmarkMakeHost(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		s := image.Open(filepath.Join(dir, "images"), image.Options{})
		acquire(b, s, "host").Release()
		b.StopTimer()
		os.RemoveAll(filepath.Join(dir, "images"))
		b.StartTimer()
	}
}

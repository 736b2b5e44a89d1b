package datadir

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOfOthers(t *testing.T) {
	const passwd = `root:x:0:0:root:/root:/bin/bash
ann:x:1000:1000:Ann,,,:/home/ann:/bin/sh
bob:x:1001:1001::/users/deep//bob/:/bin/sh
too:x:1002:1002::/home/ann/:/bin/sh
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
relative:x:2:2::home/x:/bin/sh
none:x:3:3:::/bin/sh
+nis
`
	links := map[string]string{"/home": "data/home", "/users": "/srv/users"}
	readlink := func(name string) (string, error) {
		if to, ok := links[name]; ok {
			return to, nil
		}
		return "", errors.New("it is not a link")
	}
	lookup := func(name string) (string, bool) {
		return map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/x"}[name], true
	}
	for uid, want := range map[int]map[string][]int{
		0: {
			"/root/.local/share/sandpit": {0}, "/data/home/ann/.local/share/sandpit": {1000, 1002}, "/srv/users/deep/bob/.local/share/sandpit": {1001},
			"/x/sandpit": {-1}, "/h/.local/share/sandpit": {-1},
		},
		1001: {"/srv/users/deep/bob/.local/share/sandpit": {1001}},
		1002: {"/data/home/ann/.local/share/sandpit": {1002}},
		1003: {},
	} {
		if diff := cmp.Diff(want, others(passwd, uid, lookup, readlink)); diff != "" {
			t.Errorf("user %d: %s", uid, diff)
		}
	}
}

func TestPrivate(t *testing.T) {
	lookup := func(name string) (string, bool) {
		return map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/x"}[name], true
	}
	byDefault := []string{"/x/sandpit", "/h/.local/share/sandpit"}
	if os.Geteuid() == 0 {
		byDefault = []string{"/var/lib/sandpit"}
	}
	for _, home := range append(byDefault, "/other") {
		want := append([]string{home}, slices.DeleteFunc(slices.Clone(byDefault), func(dir string) bool { return dir == home })...)
		if diff := cmp.Diff(want, Private(home, lookup)); diff != "" {
			t.Error(diff)
		}
	}
}

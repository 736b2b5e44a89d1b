package datadir

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHomesIn(t *testing.T) {
	const passwd = `root:x:0:0:root:/root:/bin/bash
ann:x:1000:1000:Ann,,,:/home/ann:/bin/sh
bob:x:1001:1001::/users/deep//bob/:/bin/sh
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
relative:x:2:2::home/x:/bin/sh
none:x:3:3:::/bin/sh
+nis
`
	links := map[string]string{"/home": "data/home", "/users": "/srv/users"}
	got := homesIn(passwd, func(name string) (string, error) {
		if to, ok := links[name]; ok {
			return to, nil
		}
		return "", errors.New("it is not a link")
	})
	want := []string{"/root/.local/share/sandpit", "/data/home/ann/.local/share/sandpit", "/srv/users/deep/bob/.local/share/sandpit"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPrivate(t *testing.T) {
	lookup := func(name string) (string, bool) {
		return map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/x"}[name], true
	}
	byDefault, err := Default(lookup)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/other", byDefault}, Private("/other", lookup)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{byDefault}, Private(byDefault, lookup)); diff != "" {
		t.Error(diff)
	}
}

package client

import (
	"errors"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestAddress(t *testing.T) {
	for text, want := range map[string]endpoint{
		"unix:///run/sandpit.sock":  {network: "unix", address: "/run/sandpit.sock", base: "http://localhost"},
		"unix:///a//b/../c":         {network: "unix", address: "/a/c", base: "http://localhost"},
		"https://sandpit.example":   {network: "tcp", address: "sandpit.example:443", base: "https://sandpit.example", name: "sandpit.example", secure: true},
		"https://[::1]:7070/":       {network: "tcp", address: "[::1]:7070", base: "https://[::1]:7070", name: "::1", secure: true},
		"http://127.0.0.1:7070":     {network: "tcp", address: "127.0.0.1:7070", base: "http://127.0.0.1:7070", name: "127.0.0.1"},
		"http://localhost":          {network: "tcp", address: "localhost:80", base: "http://localhost", name: "localhost"},
		"http://[::1]:1":            {network: "tcp", address: "[::1]:1", base: "http://[::1]:1", name: "::1"},
		"http://127.9.9.9:7070":     {network: "tcp", address: "127.9.9.9:7070", base: "http://127.9.9.9:7070", name: "127.9.9.9"},
		"https://sandpit.example:1": {network: "tcp", address: "sandpit.example:1", base: "https://sandpit.example:1", name: "sandpit.example", secure: true},
	} {
		got, err := parseAddress(text, false)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got.shown = ""
		if got.network != want.network || got.address != want.address || got.base != want.base || got.name != want.name || got.secure != want.secure {
			t.Errorf("%s is %+v, want %+v", text, got, want)
		}
	}
	for _, text := range []string{
		"", "unix://", "unix:run", "unix://run/s", "unix:///a\x00b", "/run/s", "localhost:80", "ftp://localhost", "http://", "https://:80",
		"https://user:pass@host", "https://host/v1", "https://host?q", "https://host#f", "https://host:port", "http://sandpit.example", "http://0.0.0.0:80",
		"http://127.0.0.1.example", "http://localhost.example", "http://2130706433", "http://127.1",
	} {
		if e, err := parseAddress(text, false); !errors.Is(err, sandpit.ErrInvalid) || sandpit.Hint(err) == "" {
			t.Errorf("%q is %+v, %v", text, e, err)
		}
	}
	if _, err := parseAddress("http://sandpit.example", true); err != nil {
		t.Errorf("asked for by name: %v", err)
	}
	if _, err := New(Options{Address: "unix:///s", Key: "a\r\nb"}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a key of two lines gives %v", err)
	}
}

package server

import (
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/oauth"
	"github.com/sandpit-dev/sandpit/internal/secret"
)

// The pauses between renewals of a secret double with each failure, up to a maximum.
func TestRenewalPausesGrow(t *testing.T) {
	for fails, want := range map[int]time.Duration{0: renewPause, 1: 2 * renewPause, 2: 4 * renewPause, 4: 8 * time.Minute, 5: renewLong, 6: renewLong, 1 << 40: renewLong} {
		if got := (&renews{fails: fails}).pause(); got != want {
			t.Errorf("after %d failures the pause is %v, want %v", fails, got, want)
		}
	}
}

// A refresh token that may be valid only once is kept, if it can be, although the value can't.
func TestRefreshTokensAreKept(t *testing.T) {
	was := secret.Secret{Namespace: "a", Name: "own", Binding: secret.Binding{Service: "own"}, Value: "was", Login: &secret.Login{Renewable: true}, Grant: &secret.Grant{RefreshToken: "was"}}
	for about, c := range map[string]struct {
		got            oauth.Tokens
		value, refresh string
		fails          bool
	}{
		"both":             {oauth.Tokens{Access: "next", Refresh: "next"}, "next", "next", false},
		"the value":        {oauth.Tokens{Access: "next"}, "next", "was", false},
		"a bad value":      {oauth.Tokens{Access: "ne\r\nxt", Refresh: "next"}, "was", "next", true},
		"too long a token": {oauth.Tokens{Access: "next", Refresh: strings.Repeat("x", secret.MaxValue+1)}, "was", "was", true},
	} {
		x, err := renewed(was, c.got)
		if (err != nil) != c.fails || x.Value != c.value || x.Grant.RefreshToken != c.refresh || was.Grant.RefreshToken != "was" {
			t.Errorf("%s: %+v with %+v, %v", about, x, x.Grant, err)
		}
	}
}

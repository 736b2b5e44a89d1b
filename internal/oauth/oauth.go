// Package oauth logs users in to services, and renews what that has brought: the authorization code with PKCE
// and a redirect to the loopback (RFC 8252), device codes (RFC 8628) and refresh tokens (RFC 6749, section 6).
//
// Providers and whatever connects to the loopback are hostile: no error has more of an answer than its error
// code, and only a redirect with the state of this login counts.
package oauth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/secret"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// App is an application that is registered at a provider.
type App struct {
	secret.OAuth
	ClientSecret string // "": it has none

	Way *upstream.Way // to the provider; nil: direct, or by the environment's proxy
}

// Tokens are what a provider gives.
type Tokens struct {
	Access    string
	Refresh   string    // "": none, or the one of before
	ExpiresAt time.Time // of Access; zero: unknown
}

const (
	answerTime = 30 * time.Second // of a provider
	loginTime  = 10 * time.Minute // of a user
)

func (a *App) config() *oauth2.Config {
	style := oauth2.AuthStyleAutoDetect
	if a.ClientSecret == "" {
		style = oauth2.AuthStyleInParams // RFC 6749, section 3.2.1
	}
	return &oauth2.Config{
		ClientID: a.ClientID, ClientSecret: a.ClientSecret, Scopes: a.Scopes,
		Endpoint: oauth2.Endpoint{AuthURL: a.Authorize, TokenURL: a.Token, DeviceAuthURL: a.OAuth.Device, AuthStyle: style},
	}
}

// bounded has requests to a provider sent by a client that waits a while, and follows no redirect: that would
// send a token elsewhere.
func (a *App) bounded(ctx context.Context) context.Context {
	transport := a.Way.Transport()
	transport.DisableKeepAlives = true
	return context.WithValue(ctx, oauth2.HTTPClient, &http.Client{
		Timeout:       answerTime,
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
}

// tokens returns what a provider has given.
func tokens(t *oauth2.Token, err error) (Tokens, error) {
	if err != nil {
		return Tokens{}, failed(err)
	}
	if err := secret.CheckValue(t.AccessToken); err != nil {
		return Tokens{}, fmt.Errorf("the access token: %w", err)
	}
	if kind := t.Type(); !strings.EqualFold(kind, "Bearer") {
		return Tokens{}, fault.Errorf(sandpit.ErrUnsupported, "the provider gives tokens of the type %q, not Bearer", fault.Clip(kind))
	}
	return Tokens{Access: t.AccessToken, Refresh: t.RefreshToken, ExpiresAt: t.Expiry.UTC()}, nil
}

// failed returns an error without a part of an answer that may be a token. It matches sandpit.ErrForbidden if
// asking again is of no use.
func failed(err error) error {
	var r *oauth2.RetrieveError
	if !errors.As(err, &r) {
		return fault.Errorf(sandpit.ErrUnavailable, "asking the provider: %w", withoutURL(err))
	}
	code := r.ErrorCode
	if len(code) > 64 || strings.Trim(code, "abcdefghijklmnopqrstuvwxyz_") != "" {
		code = "an error"
	}
	switch code { // RFC 6749, sections 4.1.2.1 and 5.2; RFC 8628, section 3.5
	case "invalid_grant", "invalid_client", "unauthorized_client", "access_denied", "expired_token", "invalid_scope", "unsupported_grant_type",
		"bad_refresh_token", "incorrect_client_credentials": // of GitHub
		return fault.Errorf(sandpit.ErrForbidden, "the provider refuses: %s", code)
	}
	status := 0
	if r.Response != nil {
		status = r.Response.StatusCode
	}
	return fault.Errorf(sandpit.ErrUnavailable, "the provider answers with %s (status %d)", cmp.Or(code, "no token"), status)
}

// withoutURL leaves out what net/http adds to an error, and what golang.org/x/oauth2 says of an answer that it
// can't read.
func withoutURL(err error) error {
	var n net.Error
	if errors.As(err, &n) || errors.Is(err, context.Canceled) {
		for u := errors.Unwrap(err); u != nil; u = errors.Unwrap(u) {
			err = u
		}
		return err
	}
	return errors.New("the answer is not what RFC 6749 says")
}

// Renew gets new tokens for a refresh token. Errors match sandpit.ErrForbidden if only another login helps, else
// sandpit.ErrUnavailable.
func (a *App) Renew(ctx context.Context, refreshToken string) (Tokens, error) {
	return tokens(a.config().TokenSource(a.bounded(ctx), &oauth2.Token{RefreshToken: refreshToken}).Token())
}

// Seconds between questions for a device's token: RFC 8628, section 3.2.
const (
	defaultInterval = 5
	maxInterval     = 60
)

// Device logs in by a code that the user enters in a browser elsewhere: show tells where, and which.
func (a *App) Device(ctx context.Context, show func(uri, code string)) (Tokens, error) {
	ctx, cancel := context.WithTimeout(ctx, loginTime)
	defer cancel()
	c := a.config()
	verifier := oauth2.GenerateVerifier()
	d, err := c.DeviceAuth(a.bounded(ctx), oauth2.S256ChallengeOption(verifier))
	if err != nil {
		return Tokens{}, failed(err)
	}
	if d.Interval < 1 || d.Interval > maxInterval { // a hostile one would panic, or never be over
		d.Interval = defaultInterval
	}
	show(d.VerificationURI, d.UserCode)
	t, err := tokens(c.DeviceAccessToken(a.bounded(ctx), d, oauth2.VerifierOption(verifier)))
	if ctx.Err() != nil {
		return Tokens{}, noLogin(ctx)
	}
	return t, err
}

// noLogin is why a login ended without a result.
func noLogin(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.Errorf(sandpit.ErrUnavailable, "nobody logged in for %s", loginTime)
	}
	return context.Cause(ctx)
}

// Browser logs in by a browser on this machine: show opens or tells the URL. The provider redirects the browser
// to a port of the loopback that is open for this login only.
func (a *App) Browser(ctx context.Context, show func(url string)) (Tokens, error) {
	ctx, cancel := context.WithTimeout(ctx, loginTime)
	defer cancel()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return Tokens{}, fmt.Errorf("waiting for the browser: %w", err)
	}
	c := a.config()
	c.RedirectURL = "http://" + l.Addr().String() + callback
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	redirected := make(chan redirect, 1)
	server := &http.Server{Handler: receiver(state, redirected), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	go func() { _ = server.Serve(l) }() // until Shutdown
	defer func() {
		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(short) // the browser gets its page
		_ = server.Close()
	}()
	show(c.AuthCodeURL(state, oauth2.AccessTypeOffline, oauth2.S256ChallengeOption(verifier)))
	select {
	case <-ctx.Done():
		return Tokens{}, noLogin(ctx)
	case r := <-redirected:
		if r.failed != "" {
			return Tokens{}, failed(&oauth2.RetrieveError{ErrorCode: r.failed})
		}
		return tokens(c.Exchange(a.bounded(ctx), r.code, oauth2.VerifierOption(verifier)))
	}
}

// callback is the path to which a provider redirects.
const callback = "/callback"

// redirect is what a provider says by a redirect: a code, or an error code.
type redirect struct{ code, failed string }

// receiver takes up the first redirect with the state of the login. All others change nothing: any page can
// send the browser here.
func receiver(state string, to chan<- redirect) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+callback, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer") // the address has the code
		got := redirect{code: q.Get("code"), failed: q.Get("error")}
		if subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 || (got.code == "") == (got.failed == "") {
			http.Error(w, "This is not the answer to the login that waits here.", http.StatusBadRequest)
			return
		}
		select {
		case to <- got:
			fmt.Fprintln(w, "The answer has arrived. You can close this page.")
		default:
			http.Error(w, "The login has ended.", http.StatusGone)
		}
	})
	return mux
}

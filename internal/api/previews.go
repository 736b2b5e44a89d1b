package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/portproxy"
	"github.com/sandpit-dev/sandpit/internal/preview"
)

// The URL of a preview has its token in the query. The first request of a browser exchanges it for
// a cookie of that host alone, and is redirected to the URL without it, so that histories, the
// Referer and the sandbox don't get it. Other programs are answered at once, and repeat the URL. The
// host name, which every page there and every resolver learns, is no secret.
const previewParam = "sandpit-preview"

func previewRoutes() []Route {
	const tag = "Previews"
	return []Route{
		{
			Method: http.MethodPost, Path: oneSandbox + "/ports/{port}/previews", ID: "createPreview", IgnoresIdempotency: true, Tag: tag, Summary: "Create a preview of a TCP port of a sandbox",
			Text: "The URL opens the HTTP server at that port in a browser, without a key, until it expires. It ends earlier when it is revoked, and with the sandbox and the key that made it. Requests with it count as requests of that key.",
			In:   v1.NewPreview{}, Status: http.StatusCreated, Out: v1.Preview{}, Guarded: true, handle: fromJSON(createPreview),
		},
		{Method: http.MethodGet, Path: oneSandbox + "/previews", ID: "listPreviews", Tag: tag, Summary: "List the previews of a sandbox", Query: pageParams(), Status: http.StatusOK, Out: v1.PreviewList{}, handle: listOf(listPreviews, previewPosition, func(part []v1.Preview, next string) v1.PreviewList { return v1.PreviewList{Previews: part, Next: next} })},
		{Method: http.MethodDelete, Path: oneSandbox + "/previews/{preview}", ID: "revokePreview", Tag: tag, Summary: "Revoke a preview", Text: "Requests, streams and WebSockets that use it are closed.", Status: http.StatusNoContent, Guarded: true, Vital: true, handle: only(revokePreview)},
	}
}

func createPreview(c *call, in *v1.NewPreview) (none v1.Preview, err error) {
	port, err := portproxy.ParsePort(c.R.PathValue("port"))
	if err != nil {
		return none, c.Untouched(err)
	}
	asked, err := in.Sandpit()
	if err != nil {
		return none, c.Untouched(err)
	}
	sb, err := c.sandbox()
	if err != nil {
		return none, err
	}
	p, base, err := c.planPreview(c.Ctx, sb, port, asked)
	if err != nil {
		return none, c.Untouched(err)
	}
	out, err := c.addPreview(c.Ctx, p, base)
	if err != nil {
		return none, err
	}
	c.Detail += " preview " + out.ID // for the audit
	c.W.Header().Set("Cache-Control", "no-store")
	return out, nil
}

// planPreview returns a preview to add, and the beginning of its URL. It changes nothing.
func (c *call) planPreview(ctx context.Context, sb sandpit.Sandbox, port uint16, asked time.Duration) (p preview.Preview, base string, err error) {
	info, err := sb.Info(ctx)
	if err != nil {
		return p, "", err
	}
	if info.State == sandpit.StateCreating {
		return p, "", fault.Errorf(sandpit.ErrState, "sandbox %q is %s", info.Name, info.State)
	}
	life, err := c.api.opts.Backend.AllowPreview(c.Caller, asked)
	if err != nil {
		return p, "", err
	}
	if base, err = c.previewBase(sb.ID(), port); err != nil {
		return p, "", err
	}
	now := time.Now().UTC()
	expires := now.Add(life)
	if end := c.Caller.Expires; !end.IsZero() && end.Before(expires) {
		expires = end
	}
	return preview.Preview{
		Sandbox: sb.ID(), Port: port, Namespace: c.Caller.Namespace, Key: c.Caller.Key, Name: c.Caller.Name, CreatedAt: now, ExpiresAt: expires,
	}, base, nil
}

// addPreview adds a preview that was planned.
func (c *call) addPreview(ctx context.Context, p preview.Preview, base string) (none v1.Preview, err error) {
	p, token, err := c.api.previews.Add(ctx, p)
	if err != nil {
		return none, err
	}
	if _, err := c.api.opts.Backend.Client(c.Caller).Get(ctx, p.Sandbox); err != nil { // it was removed meanwhile
		c.api.previews.RemoveSandbox(p.Sandbox)
		return none, err
	}
	out := previewOf(p)
	out.URL = base + "/?" + previewParam + "=" + token
	return out, nil
}

func previewOf(p preview.Preview) v1.Preview {
	return v1.Preview{ID: p.ID, Port: p.Port, CreatedAt: p.CreatedAt, ExpiresAt: p.ExpiresAt}
}

// previewBase returns the origin of a port of a sandbox, as browsers reach it in the way in which
// the request has come.
func (c *call) previewBase(sandbox string, port uint16) (string, error) {
	domain := c.api.domains[0]
	scheme, at := "http", ""
	local, _ := c.R.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local != nil && local.Network() == "unix" {
		var err error
		if scheme, at, err = c.api.opts.Web(); err != nil {
			return "", err
		}
	} else {
		if portproxy.IsSecure(c.R) {
			scheme = "https"
		}
		_, at, _ = net.SplitHostPort(c.R.Host)
		if host := gate.HostName(c.R.Host); domain == "localhost" && host != "localhost" && host != "127.0.0.1" && host != "::1" {
			return "", sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "the server has no domain for ports of sandboxes"), "ask the operator to set domain in server.yaml, or call the server as localhost if you are at that machine")
		}
	}
	if at != "" {
		at = ":" + at
	}
	return fmt.Sprintf("%s://%d-%s.%s%s", scheme, port, sandbox, domain, at), nil
}

func listPreviews(c *call) ([]v1.Preview, error) {
	sb, err := c.sandbox()
	if err != nil {
		return nil, err
	}
	var all []v1.Preview
	for _, p := range c.api.previews.List(sb.ID()) {
		all = append(all, previewOf(p))
	}
	return all, nil
}

func previewPosition(p v1.Preview) string { return byTime(p.CreatedAt, p.ID) }

func revokePreview(c *call) error {
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	p, err := c.api.previews.Revoke(sb.ID(), c.R.PathValue("preview"))
	if err != nil {
		return c.Untouched(err)
	}
	c.api.gate.EndPreview(gate.Caller{Name: p.Name, Key: p.Key, Preview: p.ID}) // also while the disk hangs
	return c.api.previews.Save(context.WithoutCancel(c.Ctx), p)
}

// exchangeKey is the key of the token of a preview, a string, in the context of a request that had
// it in its URL.
type exchangeKey struct{}

// provePreview is gate.Route.Proof of requests to the host of a port.
func (a *API) provePreview(c *gate.Call) (who gate.Caller, ok bool, err error) {
	to, _ := a.target(c.R)
	if !to.byHost {
		return who, false, nil
	}
	inURL, inCookies := takePreviews(c.R)
	tokens := inCookies
	switch key, _ := credential(c.R); {
	case len(inURL) > 1:
		return who, false, gate.Invalid("the URL has several previews", "send only one")
	case len(inURL) == 1:
		tokens = inURL
	case len(inCookies) == 0 || c.R.Header.Get(headerKey) != "":
		return who, false, nil
	default:
		defer func() {
			if err != nil && key != "" {
				err = nil // the cookie is old, and the key decides
			}
		}()
	}
	port, err := portproxy.ParsePort(to.port)
	if err != nil {
		return who, false, err
	}
	for _, token := range tokens {
		p, found := a.previews.Verify(token, to.sandbox, port)
		if !found {
			continue
		}
		if who, err = a.opts.ownerOf(c.Ctx, p); err != nil {
			continue
		}
		if len(inURL) == 1 {
			c.R = c.R.WithContext(context.WithValue(c.R.Context(), exchangeKey{}, token))
		}
		return who, true, nil
	}
	return who, false, gate.ErrPreviewEnded
}

// ownerOf returns who a request with a preview counts for: the owner of the key that made it, who is
// never an administrator in it, if its policy still allows the preview.
func (o *Options) ownerOf(ctx context.Context, p preview.Preview) (gate.Caller, error) {
	who := gate.Caller{Name: p.Name, Namespace: p.Namespace}
	if p.Key != "" {
		var err error
		if who, err = o.Keys.Holder(ctx, p.Key); err != nil {
			return who, gate.ErrPreviewEnded
		}
	}
	if _, err := o.Backend.AllowPreview(who, p.ExpiresAt.Sub(p.CreatedAt)); err != nil {
		return who, gate.ErrPreviewEnded
	}
	who.Admin, who.Preview = false, p.ID
	if who.Expires.IsZero() || p.ExpiresAt.Before(who.Expires) {
		who.Expires = p.ExpiresAt
	}
	return who, nil
}

// EndRefusedPreviews ends what previews have opened that the present policies do not allow. Call it
// when the policies have changed.
func (o *Options) EndRefusedPreviews(ctx context.Context) {
	for _, p := range o.Previews.All() {
		if _, err := o.ownerOf(ctx, p); err != nil {
			o.Gate.EndPreview(gate.Caller{Name: p.Name, Key: p.Key, Preview: p.ID})
		}
	}
}

// takePreviews takes the tokens of previews out of the URL and the cookies of a request.
func takePreviews(r *http.Request) (inURL, inCookies []string) {
	inURL = gate.TakeQuery(r, previewParam)
	ours := cookieName(r)
	lines := r.Header["Cookie"]
	r.Header.Del("Cookie")
	for _, line := range lines {
		var kept []string
		for part := range strings.SplitSeq(line, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			switch {
			case name == ours:
				inCookies = append(inCookies, value)
			case !preview.IsCookie(name):
				kept = append(kept, part)
			}
		}
		if line = strings.TrimSpace(strings.Join(kept, ";")); line != "" {
			r.Header.Add("Cookie", line)
		}
	}
	return inURL, inCookies
}

// cookieName returns the exact name of the server's cookie. With TLS it is the one that pages of
// other hosts can't add. Without, they can add as many of the other as a browser sends.
func cookieName(r *http.Request) string {
	if portproxy.IsSecure(r) {
		return preview.SecureCookie
	}
	return preview.Cookie
}

// enterPreview refuses a call whose preview has ended, or was forbidden, since it was proven, and redirects a browser
// that comes with a URL that has a token.
func (c *call) enterPreview(to target) (answered bool, err error) {
	if c.Caller.Preview == "" {
		return false, nil
	}
	p, ok := c.api.previews.Get(to.sandbox, c.Caller.Preview)
	if !ok {
		return false, gate.ErrPreviewEnded
	}
	if _, err := c.api.opts.ownerOf(c.Ctx, p); err != nil {
		return false, err
	}
	if c.R.Header.Get("Service-Worker") != "" {
		// It would see the URLs of later requests, with tokens, and answer after the end.
		return false, &gate.Refusal{Code: errcode.Forbidden, Message: "a preview can't install a service worker", Hint: "use 'sandpit forward'"}
	}
	token, _ := c.R.Context().Value(exchangeKey{}).(string)
	if token == "" || !portproxy.WantsPage(c.R) {
		return false, nil
	}
	cookie := http.Cookie{
		Name: cookieName(c.R), Value: token, Path: "/", Secure: portproxy.IsSecure(c.R), HttpOnly: true, SameSite: http.SameSiteLaxMode,
		MaxAge: max(1, int(time.Until(c.Caller.Expires).Seconds())),
	}
	where := locationOf(c.R.URL)
	if c.api.proxy.HasKey(where) {
		return false, c.api.proxy.CheckKeys(c.Call)
	}
	h := c.W.Header()
	h.Set("Set-Cookie", cookie.String())
	h.Set("Location", where)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	c.W.WriteHeader(http.StatusSeeOther)
	return true, nil
}

// locationOf returns the path and query of a URL as a redirect to them, which does not lead to
// another host.
func locationOf(u *url.URL) string {
	to := u.EscapedPath()
	switch {
	case !strings.HasPrefix(to, "/"):
		to = "/"
	case strings.HasPrefix(to, "//"):
		to = "/." + to
	}
	if u.RawQuery != "" {
		to += "?" + u.RawQuery
	}
	return to
}

// failPreview answers a browser that opens a page of a port with a page of its own, and reports
// whether it did.
func (a *API) failPreview(c *gate.Call, f *gate.Failure) bool {
	if to, ok := a.target(c.R); !ok || !to.byHost {
		return false
	}
	if key, _ := credential(c.R); f.Code == errcode.Unauthenticated && key == "" {
		f.Hint = "open a preview of the port, or send a key in the header " + headerKey + ": Authorization is the sandbox's"
	}
	portproxy.ForStranger(c, f)
	if !portproxy.WantsPage(c.R) {
		return false
	}
	title, text := "This preview can't be shown now", "Try again in a moment."
	switch f.Code {
	case errcode.PreviewInvalid, errcode.Unauthenticated:
		title, text = "This preview is not available", "The link has expired, was revoked, or is incomplete. Ask for a new one."
	case errcode.Forbidden, errcode.OriginRefused, errcode.Invalid:
		text = "The request was refused."
	case errcode.Unavailable:
		text = "Nothing answers at this port of the sandbox. Try again when its server has started."
	case errcode.State:
		text = "The sandbox is not running. Ask its owner to start it."
	}
	portproxy.ShowPage(c, f.Status, title, text)
	return true
}

package secret

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Service is what is known of a service that takes credentials.
type Service struct {
	Name      string
	Variables []string // in which its clients look for the value
	Hosts     []string
	Header    string // in which clients send it; it is replaced in all headers
	Prefix    string // of placeholders: some clients check that of the value
	Query     bool   // clients also send it in the query
	OAuth     *OAuth // how users log in to it; nil: they can't
}

// OAuth is how a login works at a service: RFC 6749, RFC 7636 (PKCE) and RFC 8628 (device).
type OAuth struct {
	Authorize string // URL that a browser opens; "": only a device code works
	Token     string // URL
	Device    string // URL that gives device codes; "": only a browser works
	ClientID  string // of the registered application; "": each login names its own
	Scopes    []string
}

// Check refuses URLs to which a token would be sent in clear. Errors match sandpit.ErrInvalid.
func (o *OAuth) Check() error {
	for _, text := range []string{o.Authorize, o.Token, o.Device} {
		if text == "" {
			continue
		}
		u, err := url.Parse(text)
		loopback := false
		if err == nil {
			ip, perr := netip.ParseAddr(u.Hostname())
			loopback = u.Hostname() == "localhost" || perr == nil && ip.IsLoopback()
		}
		if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
			return sandpit.WithHint(fault.Invalidf("%q is not a URL for logins", fault.Clip(text)), "write https://HOST/PATH; http is for localhost only")
		}
	}
	if o.Token == "" || o.Authorize == "" && o.Device == "" {
		return sandpit.WithHint(fault.Invalidf("oauth lacks a URL"), "set token, and authorize or device")
	}
	return nil
}

// Services are services by their order in lists.
type Services []Service

// The service whose secrets sign requests, and the variables of its parts.
const (
	aws       = "aws"
	awsKeyID  = "AWS_ACCESS_KEY_ID"
	awsSecret = "AWS_SECRET_ACCESS_KEY"
	awsToken  = "AWS_SESSION_TOKEN"
)

// BuiltIn returns the services that every server knows. Variables, hosts and headers are those of the
// services' own clients and API references. URLs of OAuth are those of golang.org/x/oauth2/endpoints and of
// https://huggingface.co/.well-known/openid-configuration. None of them has a public application for
// everybody: users register one.
func BuiltIn() Services {
	const bearer = "Authorization: Bearer"
	return Services{
		{Name: "anthropic", Variables: []string{"ANTHROPIC_API_KEY"}, Hosts: []string{"api.anthropic.com"}, Header: "x-api-key", Prefix: "sk-ant-api03-"},
		{Name: aws, Variables: []string{awsKeyID, awsSecret, awsToken}, Hosts: []string{"*.amazonaws.com"}, Header: "Authorization: AWS4-HMAC-SHA256, signed again", Prefix: "AKIA"},
		{Name: "cursor", Variables: []string{"CURSOR_API_KEY"}, Hosts: []string{"api.cursor.com", "api2.cursor.sh"}, Header: bearer},
		{Name: "droid", Variables: []string{"FACTORY_API_KEY"}, Hosts: []string{"api.factory.ai", "app.factory.ai"}, Header: bearer, Prefix: "fk-"},
		{Name: "github", Variables: []string{"GH_TOKEN", "GITHUB_TOKEN"}, Hosts: []string{"api.github.com", "github.com", "uploads.github.com"}, Header: "Authorization: Bearer, token or Basic", Prefix: "ghp_", OAuth: &OAuth{
			Authorize: "https://github.com/login/oauth/authorize", Token: "https://github.com/login/oauth/access_token", Device: "https://github.com/login/device/code", Scopes: []string{"repo"},
		}},
		{Name: "google", Variables: []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}, Hosts: []string{"generativelanguage.googleapis.com"}, Header: "x-goog-api-key", Prefix: "AIza", Query: true, OAuth: &OAuth{
			Authorize: "https://accounts.google.com/o/oauth2/auth", Token: "https://oauth2.googleapis.com/token", Scopes: []string{"https://www.googleapis.com/auth/cloud-platform"}, // which device codes do not get
		}},
		{Name: "groq", Variables: []string{"GROQ_API_KEY"}, Hosts: []string{"api.groq.com"}, Header: bearer, Prefix: "gsk_"},
		{Name: "huggingface", Variables: []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}, Hosts: []string{"huggingface.co", "router.huggingface.co"}, Header: bearer, Prefix: "hf_", OAuth: &OAuth{
			Authorize: "https://huggingface.co/oauth/authorize", Token: "https://huggingface.co/oauth/token", Scopes: []string{"read-repos"},
		}},
		{Name: "mistral", Variables: []string{"MISTRAL_API_KEY"}, Hosts: []string{"api.mistral.ai"}, Header: bearer},
		{Name: "nebius", Variables: []string{"NEBIUS_API_KEY"}, Hosts: []string{"api.studio.nebius.com", "api.tokenfactory.nebius.com"}, Header: bearer},
		{Name: "npm", Variables: []string{"NPM_TOKEN", "NODE_AUTH_TOKEN"}, Hosts: []string{"registry.npmjs.org"}, Header: bearer, Prefix: "npm_"},
		{Name: "openai", Variables: []string{"OPENAI_API_KEY"}, Hosts: []string{"api.openai.com"}, Header: bearer, Prefix: "sk-"},
		{Name: "openrouter", Variables: []string{"OPENROUTER_API_KEY"}, Hosts: []string{"openrouter.ai"}, Header: bearer, Prefix: "sk-or-v1-"},
		{Name: "pypi", Variables: []string{"TWINE_PASSWORD", "UV_PUBLISH_TOKEN"}, Hosts: []string{"upload.pypi.org"}, Header: "Authorization: Basic", Prefix: "pypi-"},
		{Name: "xai", Variables: []string{"XAI_API_KEY"}, Hosts: []string{"api.x.ai"}, Header: bearer, Prefix: "xai-"},
	}
}

// Find returns the service of a name.
func (all Services) Find(name string) (Service, bool) {
	i := slices.IndexFunc(all, func(s Service) bool { return s.Name == name })
	if i < 0 {
		return Service{}, false
	}
	return all[i], true
}

// With returns the services and others, which replace those of the same name. Errors match
// sandpit.ErrInvalid.
func (all Services) With(others ...Service) (Services, error) {
	all = slices.Clone(all)
	for _, s := range others {
		b := s.Binding()
		switch {
		case !notation.IsName(s.Name):
			return nil, sandpit.WithHint(fault.Invalidf("%q is not a valid name of a service", fault.Clip(s.Name)), notation.NameHint)
		case len(s.Hosts) == 0:
			return nil, fault.Invalidf("the service %s has no hosts", s.Name)
		}
		if err := b.check(); err != nil {
			return nil, err
		}
		if s.OAuth != nil {
			if err := s.OAuth.Check(); err != nil {
				return nil, fmt.Errorf("the service %s: %w", s.Name, err)
			}
		}
		all = slices.DeleteFunc(all, func(was Service) bool { return was.Name == s.Name })
		all = append(all, s)
	}
	return all, nil
}

// Binding returns where secrets of the service are used.
func (s *Service) Binding() Binding {
	return Binding{Service: s.Name, Variables: s.Variables, Hosts: s.Hosts, Prefix: s.Prefix, Query: s.Query}
}

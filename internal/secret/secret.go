// Package secret defines the credentials that a server stores for sandboxes: what they are, and to which
// hosts they are bound.
package secret

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/sigv4"
)

// Secret is a stored secret.
type Secret struct {
	Namespace string // that it belongs to; "": the server's, which all namespaces may use
	Name      string
	Binding
	Value     string // empty where only the description is needed
	CreatedAt time.Time
	RotatedAt time.Time // when it got its present value

	Login *Login // of a value that a login has brought, else nil
	Grant *Grant // with which that value is renewed; nil where only the description is needed
}

// Login says how the value that an OAuth login has brought is kept valid.
type Login struct {
	ExpiresAt time.Time // of the value; zero: the provider did not say
	Renewable bool      // the provider gave a refresh token
	Failed    string    // why the last renewal failed, or ""
	Over      bool      // only another login helps
}

// Grant is what renews the value of a secret: see RFC 6749, section 6. Like the value, it is never shown.
type Grant struct {
	RefreshToken string
	ClientID     string // "": the service's
	ClientSecret string `json:",omitempty"`
}

// Due returns when the value is to be renewed: when a fifth of its time is left, or 5 minutes. It returns
// zero if it never is.
func (s *Secret) Due() time.Time {
	if l := s.Login; l == nil || !l.Renewable || l.Over || l.ExpiresAt.IsZero() {
		return time.Time{}
	}
	return s.Login.ExpiresAt.Add(-min(s.Login.ExpiresAt.Sub(s.RotatedAt)/5, 5*time.Minute))
}

// Binding says where a secret is used.
type Binding struct {
	Service   string   // the service that the rest is from, or ""
	Variables []string // that have the placeholder; none: see Secret.variables
	Hosts     []string // HOST, HOST:PORT or *.HOST; none: each use says it
	Prefix    string   // of placeholders
	Query     bool     // replace the placeholder in the query of requests, too
	Body      bool     // and in their body
}

// Bounds of a secret.
const (
	MaxValue     = 64 << 10 // bytes: a key file of a cloud has less than 8 KiB
	maxHosts     = 64
	maxVariables = 16
	maxVariable  = 256 // bytes
)

// Check checks a secret that is to be stored. Errors match sandpit.ErrInvalid, and never have the
// value.
func (s *Secret) Check() error {
	if err := notation.CheckSecretName(s.Name); err != nil {
		return err
	}
	if err := s.Binding.check(); err != nil {
		return err
	}
	if s.Namespace == "" && len(s.Hosts) == 0 {
		return sandpit.WithHint(fault.Invalidf("a secret of the server needs hosts, as all namespaces may use it"), "name its service or its hosts")
	}
	if g := s.Grant; g != nil {
		switch {
		case s.Service == "":
			return sandpit.WithHint(fault.Invalidf("a value from a login needs a service, whose provider renews it"), "name the service")
		case !bindable(s.Value):
			return fault.Invalidf("the value from the login has control characters")
		case len(g.RefreshToken)+len(g.ClientID)+len(g.ClientSecret) > MaxValue:
			return fault.Invalidf("what the login has brought is longer than %d bytes", MaxValue)
		}
	}
	if s.Signs() {
		if _, err := sigv4.Read(s.Value); err != nil {
			return err
		}
	}
	return CheckValue(s.Value)
}

// CheckValue checks a value. Errors match sandpit.ErrInvalid, and never have the value.
func CheckValue(value string) error {
	switch {
	case value == "":
		return sandpit.WithHint(fault.Invalidf("the value is empty"), "to take a secret away, run 'sandpit secret rm'")
	case len(value) > MaxValue:
		return fault.Invalidf("the value is longer than %d bytes", MaxValue)
	case !utf8.ValidString(value), strings.ContainsRune(value, 0):
		return sandpit.WithHint(fault.Invalidf("the value is not text in UTF-8"), "encode it, as with base64")
	}
	return nil
}

// bindable reports whether a value can be part of a header: one with a line break would add another.
func bindable(value string) bool { return !strings.ContainsFunc(value, unicode.IsControl) }

func (b *Binding) check() error {
	if len(b.Variables) > maxVariables || len(b.Hosts) > maxHosts {
		return fault.Invalidf("a secret may have %d variables and %d hosts", maxVariables, maxHosts)
	}
	for _, v := range b.Variables {
		if err := checkVariable(v); err != nil {
			return err
		}
	}
	if len(b.Prefix) > maxVariable || strings.Trim(b.Prefix, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
		return fault.Invalidf("%q is not the beginning of a placeholder: use letters, digits, '_' and '-'", fault.Clip(b.Prefix))
	}
	_, err := egress.ParseHosts(b.Hosts)
	return err
}

// Signs reports whether the value signs requests instead of being sent: credentials of AWS, as
// sigv4.Read reads them. The placeholder is then each of their parts.
func (b *Binding) Signs() bool { return b.Service == aws }

// steers reports whether a variable is one by which programs, loaders and clients of the network are set
// up: a placeholder there would break them.
func steers(v string) bool {
	if strings.HasPrefix(v, "LD_") || strings.HasSuffix(strings.ToLower(v), "_proxy") {
		return true
	}
	switch v {
	case "PATH", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO",
		"NODE_EXTRA_CA_CERTS", "DENO_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "JAVA_TOOL_OPTIONS":
		return true
	}
	return false
}

func checkVariable(v string) error {
	ok := v != "" && len(v) <= maxVariable && (v[0] < '0' || v[0] > '9')
	for _, c := range []byte(v) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_')
	}
	if ok && steers(v) {
		return sandpit.WithHint(fault.Invalidf("the variable %s can't have a secret: it decides what programs in the sandbox run, trust or connect to", v), "name another variable")
	}
	if !ok {
		return sandpit.WithHint(fault.Invalidf("%q is not the name of an environment variable", fault.Clip(v)), "use letters, digits and '_', not starting with a digit")
	}
	return nil
}

// Resolved is what a sandbox gets of a secret that it uses.
type Resolved struct {
	Binding        // Hosts and Variables are those of the use; without Hosts it is given as env
	Value   string // of the stored one

	// Given has what Variables get, if they are given the value as env and it has parts. Those
	// of parts that are missing are not set.
	Given map[string]string
}

// Resolve returns what a use of a stored secret means. Errors match sandpit.ErrInvalid, or
// sandpit.ErrForbidden for a host that the secret is not bound to.
func (s *Secret) Resolve(use sandpit.Secret) (Resolved, error) {
	r := Resolved{Binding: s.Binding, Value: s.Value}
	r.Variables = s.variables(use)
	for _, v := range r.Variables {
		if err := checkVariable(v); err != nil {
			return r, err
		}
	}
	if s.Signs() && use.Variable != "" {
		return r, sandpit.WithHint(fault.Invalidf("it has several values, and %s is one variable", use.Variable), "omit the variable")
	}
	if use.Env {
		r.Hosts = nil
		if c, err := sigv4.Read(s.Value); err == nil && s.Signs() {
			r.Given = map[string]string{awsKeyID: c.KeyID, awsSecret: c.Secret, awsToken: c.Token}
		}
		return r, nil
	}
	own, err := egress.ParseHosts(s.Hosts)
	if err != nil {
		return r, err
	}
	asked, err := egress.ParseHosts(use.Hosts)
	if err != nil {
		return r, err
	}
	for i := range asked {
		if len(own) > 0 && !slices.ContainsFunc(own, func(o egress.Rule) bool { return o.Includes(&asked[i]) }) {
			return r, sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "it is not bound to %s", use.Hosts[i]), "use one of its hosts: "+strings.Join(s.Hosts, ", "))
		}
	}
	if len(use.Hosts) > 0 {
		r.Hosts = use.Hosts
	}
	switch {
	case len(r.Hosts) == 0:
		return r, sandpit.WithHint(fault.Invalidf("it is bound to no host"), "name one, as in --secret NAME@HOST, or set the secret again with --service or --host")
	case !s.Signs() && !bindable(s.Value):
		return r, sandpit.WithHint(fault.Invalidf("its value has control characters, such as line breaks, which no header can have"), "set it again without them, or give it to the sandbox with --secret-env")
	}
	return r, nil
}

// variables returns those that a use sets.
func (s *Secret) variables(use sandpit.Secret) []string {
	switch {
	case use.Variable != "":
		return []string{use.Variable}
	case len(s.Variables) > 0:
		return s.Variables
	}
	return []string{strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToUpper(s.Name))}
}

// Rules returns the rules of egress that a bound secret implies.
func (r *Resolved) Rules() []string {
	var rules []string
	for _, host := range r.Hosts {
		if !strings.Contains(host, ":") {
			host += ":443"
		}
		rules = append(rules, host)
	}
	return rules
}

package cloud

import (
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// secrets are those of a sandbox. Programs in it have a placeholder, which requests over HTTPS to the hosts of the
// secret have replaced by the value. What is sent to others has the placeholder: what the client wants to be done
// then matters only if it is more than not to send the value.
type secrets struct {
	Entries     []secretEntry `json:"entries"`
	OnViolation *violation    `json:"on_violation"`     // until 0.6
	Violation   *violation    `json:"violation_action"` // since 0.7
	Passthrough []hostPattern `json:"passthrough_hosts"`
}

// secretEntry is one secret.
type secretEntry struct {
	Variable     string        `json:"env_var"`
	Value        string        `json:"value"`
	Source       any           `json:"source"`
	Placeholder  string        `json:"placeholder"`
	Hosts        []hostPattern `json:"allowed_hosts"`
	Injection    substitution  `json:"injection"`    // until 0.6
	Substitution substitution  `json:"substitution"` // since 0.7
	Passthrough  []hostPattern `json:"passthrough_hosts"`
	OnViolation  *violation    `json:"on_violation"`
	Violation    *violation    `json:"violation_action"`
	TLS          bool          `json:"require_tls_identity"` // always so here
}

// substitution says in which parts of requests the placeholder is replaced.
type substitution struct {
	Headers      bool     `json:"headers"`
	HeaderFields []string `json:"header_fields"`
	BasicAuth    bool     `json:"basic_auth"`
	QueryParams  bool     `json:"query_params"`
	Query        bool     `json:"query"`
	Body         bool     `json:"body"`
}

type hostPattern struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

type violation struct {
	Type  string        `json:"type"`
	Hosts []hostPattern `json:"hosts"`
}

// uses returns the secrets that a sandbox is to have.
func (s *secrets) uses() ([]sandpit.Secret, error) {
	if s == nil {
		return nil, nil
	}
	var all []sandpit.Secret
	for _, e := range s.Entries {
		for _, v := range []*violation{s.OnViolation, s.Violation, e.OnViolation, e.Violation} {
			if v != nil && v.Type == "block_and_terminate" {
				return nil, dialect.Unsupported("the violation action block_and_terminate of secrets is")
			}
		}
		switch {
		case e.Source != nil:
			return nil, dialect.Unsupported("the source of a secret is")
		case e.Value == "":
			return nil, gate.Invalid(fmt.Sprintf("the secret %.80q has no value", e.Variable), "")
		case e.Placeholder != "" && e.Placeholder != "$MSB_"+e.Variable:
			return nil, dialect.Unsupported("a placeholder of the client's for a secret is")
		case e.Injection.QueryParams || e.Substitution.Query:
			return nil, dialect.Unsupported("substitution of a secret in queries is")
		case e.Injection.Body || e.Substitution.Body:
			return nil, dialect.Unsupported("substitution of a secret in bodies is")
		case len(e.Injection.HeaderFields)+len(e.Substitution.HeaderFields) > 0:
			return nil, dialect.Unsupported("substitution of a secret in some headers only is")
		case !e.Injection.Headers && !e.Substitution.Headers:
			return nil, gate.Invalid(fmt.Sprintf("the secret %.80q is not to be substituted anywhere", e.Variable), "")
		}
		use := sandpit.Secret{Name: "env." + e.Variable, Variable: e.Variable, Value: e.Value}
		for _, h := range e.Hosts {
			switch wild := strings.HasPrefix(h.Value, "*."); {
			case h.Type != "exact" && h.Type != "wildcard":
				return nil, dialect.Unsupported(fmt.Sprintf("a secret for hosts of type %.40q is", h.Type))
			case wild != (h.Type == "wildcard"): // an exact one must not become all names below it
				return nil, gate.Invalid(fmt.Sprintf("%.80q is not a host of the type %s of the secret %.80q", h.Value, h.Type, e.Variable), "use NAME for exact, and *.NAME for wildcard")
			}
			use.Hosts = append(use.Hosts, h.Value)
		}
		all = append(all, use)
	}
	return all, nil
}

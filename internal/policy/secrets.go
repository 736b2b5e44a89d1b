package policy

import (
	"path"
	"slices"
)

// AllowSecret checks whether a sandbox may use a secret. Errors match sandpit.ErrForbidden.
func (p *Policy) AllowSecret(name string) error {
	if p.Rules == nil || slices.ContainsFunc(p.Rules.Secrets, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	}) {
		return nil
	}
	hint := "ask the operator to allow it in the policy"
	if len(p.Rules.Secrets) > 0 {
		hint = "use one of: " + few(p.Rules.Secrets)
	}
	return p.refuse("secrets", "secrets", hint, "using the secret %s is not allowed", quote(name))
}

// AllowSecretEnv checks whether a sandbox may have the value of a secret. Those of the server are only
// for those who may read them anyway. Errors match sandpit.ErrForbidden.
func (p *Policy) AllowSecretEnv(name string, shared bool) error {
	if p.Rules == nil || !shared {
		return nil
	}
	return p.refuse("secrets", "secrets", "bind it to hosts, with --secret in place of --secret-env", "the value of the secret %s of the server is not for sandboxes", quote(name))
}

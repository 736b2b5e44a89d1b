package e2b

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/portproxy"
)

// Access tokens stand for a key at one sandbox. That of envd is for everything in the sandbox, that of
// traffic only for its interpreter and ports. SDKs get both when they create or connect.

// traffic is what the name of a sandbox ends with in tokens of traffic.
const traffic = ".traffic"

// token returns an access token of a sandbox for the caller, or "" for a peer of a unix socket, who
// needs none.
func (c *call) token(sandbox string) string {
	token, _, err := c.api.Tokens.Of(c.Ctx, c.Caller.Key, sandbox)
	if err != nil {
		return "" // the key has just ended, too
	}
	return token
}

// proof is gate.Route.Proof of the data plane. Some SDKs send nothing but the access token, which then
// also names the sandbox.
func (a *api) proof(c *gate.Call) (who gate.Caller, ok bool, err error) {
	token, suffix := c.R.Header.Get(headerToken), ""
	if token == "" && onInterpreter(c.R.URL.Path) { // SDKs send nothing else with requests about contexts
		token, suffix = c.R.Header.Get(headerTraffic), traffic
	}
	switch {
	case token == "" && c.R.URL.Path == filesPath:
		return a.proveSignature(c)
	case token == "":
		return who, false, nil
	}
	c.R.Header.Del(headerToken)
	c.R.Header.Del(headerTraffic)
	sandbox, who, err := a.Tokens.Verify(c.Ctx, token)
	if err != nil {
		return gate.Caller{}, false, err
	}
	sandbox, ok = strings.CutSuffix(sandbox, suffix)
	if !ok || c.Target != "" && c.Target != sandbox {
		return gate.Caller{}, false, dialect.ErrTokenEnded
	}
	c.Target = sandbox
	return who, true, nil
}

// named is gate.Route.Target of the data plane: the sandbox that a header or the host name has,
// 49983-ID.e2b.DOMAIN or 49999-ID.e2b.DOMAIN.
func (a *api) named(r *http.Request) string {
	if id := r.Header.Get(headerSandbox); id != "" {
		return id
	}
	id, port, _ := portproxy.PortOfHost(gate.HostName(r.Host), a.Domain)
	if port != envdPort && port != codePort {
		return ""
	}
	return id
}

// maxKeys bounds the keys of a sandbox whose signatures are valid.
const maxKeys = 8

// addKey returns the keys of a sandbox with another one, and whether that is new.
func addKey(keys []string, key string) ([]string, bool) {
	if key == "" || slices.Contains(keys, key) {
		return keys, false
	}
	keys = append(keys, key)
	return keys[max(len(keys)-maxKeys, 0):], true
}

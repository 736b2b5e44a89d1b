package e2b

import (
	"context"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// token returns the access token of a sandbox for a caller, or "" for a peer of a unix socket, who needs
// none.
func (a *api) token(ctx context.Context, c gate.Caller, sandbox string) string {
	token, _, err := a.Tokens.Of(ctx, c.Key, sandbox)
	if err != nil {
		return "" // the key has just ended, too
	}
	return token
}

// proof is gate.Route.Proof of the data plane. Some SDKs send nothing but the access token, which then
// also names the sandbox.
func (a *api) proof(c *gate.Call) (who gate.Caller, ok bool, err error) {
	token := c.R.Header.Get(headerToken)
	if token == "" {
		return who, false, nil
	}
	c.R.Header.Del(headerToken)
	sandbox, who, err := a.Tokens.Verify(c.Ctx, token)
	if err != nil {
		return gate.Caller{}, false, err
	}
	if c.Target != "" && c.Target != sandbox {
		return gate.Caller{}, false, dialect.ErrTokenEnded
	}
	c.Target = sandbox
	return who, true, nil
}

// named is gate.Route.Target of the data plane: the sandbox that a header or the host name has,
// 49983-ID.e2b.DOMAIN.
func (a *api) named(r *http.Request) string {
	if id := r.Header.Get(headerSandbox); id != "" {
		return id
	}
	label, _ := dialect.Label(gate.HostName(r.Host), a.Domain)
	id, ok := strings.CutPrefix(label, envdPort+"-")
	if !ok {
		return ""
	}
	return id
}

// envdPort is the port of envd in host names.
const envdPort = "49983"

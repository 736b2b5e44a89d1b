package v1

import (
	"encoding/json"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// SandboxList is a page of sandboxes, in the order of their creation.
type SandboxList struct {
	Sandboxes []Sandbox `json:"sandboxes"`
	Next      string    `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
	Seq       uint64    `json:"seq" doc:"Pass that of the first page to /v1/events as after to get all later events"`
}

// RemovedList is what a removal by filter has done, oldest first.
type RemovedList struct {
	Sandboxes []Removed `json:"sandboxes"`
	Next      string    `json:"next,omitempty" doc:"More sandboxes may match: send the request again with it as after; absent after the last one"`
}

// Removed is the removal of a sandbox.
type Removed struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Error *Error `json:"error,omitempty" doc:"Why it was not removed"`
}

// Stop describes how to stop a sandbox.
type Stop struct {
	Grace *float64 `json:"grace,omitempty" doc:"Seconds between SIGTERM and SIGKILL; default 10, at most 600; 0: SIGKILL at once"`
}

// MaxCommand bounds the JSON of a command, in bytes. A command line of 8 MiB is more than
// execve(2) takes.
const MaxCommand = 10 << 20

// Exec is a command whose caller waits for it.
type Exec struct {
	Command
	StdinData []byte `json:"stdin_data,omitempty" maxLength:"1398104" doc:"The whole standard input in base64, at most 1 MiB of bytes. For more, send a multipart body"`
}

// Executed is the result of a command. At most 16 MiB of its output are kept.
type Executed struct {
	Process  Process `json:"process"`
	Result   Result  `json:"result"`
	Stdout   string  `json:"stdout"`
	Stderr   string  `json:"stderr"`
	Lost     int64   `json:"lost_bytes,omitempty" doc:"Bytes of output that are not in the response to a repeated request, because they were no longer kept"`
	Encoding string  `json:"encoding,omitempty" enum:"base64" doc:"base64: stdout and stderr are in base64, because the output is not UTF-8. Absent: text"`
}

// SetOutput sets the output, as text if all of it is.
func (e *Executed) SetOutput(stdout, stderr []byte) {
	out, diag := string(stdout), string(stderr)
	e.Encoding = encodingFor([]string{out, diag})
	e.Stdout, e.Stderr = encode(e.Encoding, out), encode(e.Encoding, diag)
}

// ProcessList is a page of the processes of a sandbox, oldest first.
type ProcessList struct {
	Processes []Process `json:"processes"`
	Next      string    `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// Signal is sent to a process.
type Signal struct {
	Signal int  `json:"signal" minimum:"1" maximum:"64" doc:"Such as 15 for SIGTERM"`
	Group  bool `json:"group,omitempty" doc:"Send it to the process group that the process leads"`
}

// MetricsHistory is a page of the past usage of a sandbox, oldest first.
type MetricsHistory struct {
	Samples []Metrics `json:"samples"`
	Next    string    `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// EgressDecision says whether a destination is allowed.
type EgressDecision struct {
	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule,omitempty" doc:"That decided; absent if no rule is about the destination"`
	Why     string `json:"why,omitempty" doc:"One line"`
}

// EgressLog is a page of the latest connections of a sandbox, oldest first.
type EgressLog struct {
	Flows   []Flow         `json:"flows"`
	Lost    int64          `json:"lost,omitempty" doc:"Connections that are no longer in the log; in the first page"`
	Denials []EgressDenial `json:"denials" doc:"In the first page; the latest last"`
	Learns  bool           `json:"learns,omitempty" doc:"The preset learn was asked for, which a policy may have replaced: the connections say which rules suffice; in the first page"`
	Next    string         `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// Flow is a connection that a sandbox made, or tried to make.
type Flow struct {
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds" doc:"Duration, until now if it is open"`
	Open     bool      `json:"open,omitempty"`
	Protocol string    `json:"protocol" enum:"tcp,udp,ping,dns"`
	Host     string    `json:"host,omitempty" doc:"The name that it was made for; absent if it was made by address"`
	Address  string    `json:"address,omitempty" doc:"With a port; absent if nothing was connected to"`
	Port     uint16    `json:"port,omitempty"`
	EgressDecision
	Error    string `json:"error,omitempty" doc:"Why an allowed connection failed"`
	Sent     int64  `json:"sent" doc:"Bytes"`
	Received int64  `json:"received" doc:"Bytes"`
}

// EgressDenial is a destination that was denied.
type EgressDenial struct {
	Destination string `json:"destination,omitempty" doc:"Absent for all those that are no longer kept"`
	Rule        string `json:"rule,omitempty" doc:"Of the last denial"`
	Why         string `json:"why" doc:"Of the last denial"`
	Count       int64  `json:"count"`
}

// PortList is a page of the listening TCP ports of a sandbox, by number.
type PortList struct {
	Ports []sandpit.Port `json:"ports"`
	Next  string         `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// Link is the target of a symbolic link.
type Link struct {
	Target   string `json:"target"`
	Encoding string `json:"encoding,omitempty" enum:"base64" doc:"base64: target is in base64. Absent: text"`
}

// FromLink converts the target of a symbolic link to the form of the API.
func FromLink(target string) Link {
	e := encodingFor([]string{target})
	return Link{Target: encode(e, target), Encoding: e}
}

// Sandpit returns the target in Go. It returns ErrInvalid if it can't be decoded.
func (l Link) Sandpit() (string, error) {
	d := newDecoder(l.Encoding)
	return d.text("target", l.Target), d.err
}

// Image is an image in the store.
type Image struct {
	Reference string    `json:"reference" doc:"As it was requested"`
	Digest    string    `json:"digest,omitempty" doc:"Digest of its manifest"`
	Size      int64     `json:"size" doc:"Bytes on disk"`
	Layers    int       `json:"layers,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero" doc:"When it was added to the store. Callers who are not administrators get the time at which the image was built."`
	InUse     bool      `json:"in_use,omitempty" doc:"Whether a sandbox uses it"`
}

// ImageList is a page of images, by name.
type ImageList struct {
	Images []Image `json:"images"`
	Next   string  `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// ImagePull fetches an image.
type ImagePull struct {
	Image string `json:"image"`
	Pull  string `json:"pull,omitempty" enum:"missing,always" doc:"Default always"`
}

// ImageTag gives a saved image more names.
type ImageTag struct {
	Image string   `json:"image" doc:"saved:NAME or saved:NAME:TAG"`
	Names []string `json:"names" minItems:"1" maxItems:"32" doc:"NAME or NAME:TAG, each of which is then saved:NAME or saved:NAME:TAG. Images that have these names lose them"`
}

// TaggedImage is a saved image that has got names.
type TaggedImage struct {
	References []string `json:"references" doc:"saved:NAME or saved:NAME:TAG, for the image of a sandbox"`
	Digest     string   `json:"digest" doc:"Digest of its manifest"`
}

// Commit saves the changed files of a sandbox as an image.
type Commit struct {
	Name       string            `json:"name" maxLength:"127" doc:"Of the image, NAME or NAME:TAG, which is then saved:NAME or saved:NAME:TAG in the namespace. An image that has the name loses it"`
	NoPause    bool              `json:"no_pause,omitempty" doc:"Let the programs of a running sandbox run on. Files that they change meanwhile may be saved half changed"`
	Entrypoint *[]string         `json:"entrypoint,omitempty" doc:"Replaces the image's, and its command"`
	Cmd        *[]string         `json:"cmd,omitempty" doc:"Replaces the image's command"`
	Env        Env               `json:"env,omitzero" doc:"Added to the image's"`
	WorkDir    string            `json:"workdir,omitempty"`
	User       string            `json:"user,omitempty"`
	Labels     map[string]string `json:"labels,omitempty" doc:"Added to the image's"`
}

// FromCommit converts a request to the form of the API.
func FromCommit(c sandpit.Commit) Commit {
	out := Commit{Name: c.Name, NoPause: c.NoPause, Env: Env{List: c.Env}, WorkDir: c.WorkDir, User: c.User, Labels: c.Labels}
	if c.Entrypoint != nil {
		out.Entrypoint = &c.Entrypoint
	}
	if c.Cmd != nil {
		out.Cmd = &c.Cmd
	}
	return out
}

// Sandpit returns the request in Go. It returns ErrInvalid if it can't be decoded.
func (c *Commit) Sandpit() (sandpit.Commit, error) {
	d := newDecoder("")
	out := sandpit.Commit{Name: c.Name, NoPause: c.NoPause, Env: d.env(c.Env), WorkDir: c.WorkDir, User: c.User, Labels: c.Labels}
	if c.Entrypoint != nil {
		out.Entrypoint = *c.Entrypoint
	}
	if c.Cmd != nil {
		out.Cmd = *c.Cmd
	}
	return out, d.err
}

// SavedImage is an image that was saved from a sandbox.
type SavedImage struct {
	Reference string   `json:"reference" doc:"saved:NAME, for the image of a sandbox"`
	Digest    string   `json:"digest" doc:"Digest of its manifest"`
	Size      int64    `json:"size" doc:"Bytes of the files of all its layers"`
	LeftOut   []string `json:"left_out" doc:"Files that an image can't have, with the reason; the first 32"`
}

// NewKey is a request for a new key.
type NewKey struct {
	Name      string  `json:"name,omitempty" doc:"Label for people"`
	Namespace string  `json:"namespace,omitempty" doc:"The namespace whose sandboxes it can use; default: a new one"`
	Policy    string  `json:"policy,omitempty" doc:"Default: the server's default policy"`
	Admin     bool    `json:"admin,omitempty" doc:"May create and revoke keys, and read the audit log"`
	Expires   float64 `json:"expires,omitempty" doc:"Seconds from now; 0: never"`
	Format    string  `json:"format,omitempty" enum:"e2b,microsandbox" doc:"Form of the secret, for clients of other projects that check it. Default: that of Sandpit"`
}

// Key describes a key. Its secret is in the answer only when it is made.
type Key struct {
	ID        string     `json:"id" doc:"Its public prefix"`
	Name      string     `json:"name,omitempty"`
	Namespace string     `json:"namespace"`
	Policy    string     `json:"policy,omitempty"`
	Admin     bool       `json:"admin,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	Secret    string     `json:"secret,omitempty" doc:"The key itself; only in the response to its creation"`
}

// KeyList is a page of the keys, oldest first.
type KeyList struct {
	Keys []Key  `json:"keys"`
	Next string `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// ServiceHeader is a header of errors at an address that serves clients of another project: its name, such as "e2b".
const ServiceHeader = "X-Sandpit-Service"

// Namespace is a namespace of a server.
type Namespace struct {
	Name      string `json:"name"`
	Sandboxes int    `json:"sandboxes" doc:"Those in it and in the namespaces nested in it"`
}

// NamespaceList is a page of namespaces.
type NamespaceList struct {
	Namespaces []Namespace `json:"namespaces"`
	Next       string      `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// NewTicket is a request for a ticket.
type NewTicket struct {
	Path string `json:"path" maxLength:"2048" doc:"The path and query of the GET request that it is for, such as /v1/sandboxes/box/exec"`
}

// Ticket is the right to make one request without a key.
type Ticket struct {
	Ticket    string    `json:"ticket" doc:"Add it to the query of the path as the parameter ticket"`
	ExpiresAt time.Time `json:"expires_at"`
}

// NewPreview is a request for a preview.
type NewPreview struct {
	Expires *float64 `json:"expires,omitempty" null:"refused" exclusiveMinimum:"0" doc:"Seconds from now; default: 3600, or the policy's maximum if that is less"`
}

// Preview is the right to use a port of a sandbox without a key. Its URL is in the answer only when
// it is made.
type Preview struct {
	ID        string    `json:"id"`
	Port      uint16    `json:"port"`
	URL       string    `json:"url,omitempty" doc:"Opens in a browser without a key; keep it secret from all others"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
}

// PreviewList is a page of previews.
type PreviewList struct {
	Previews []Preview `json:"previews"`
	Next     string    `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// NewWebhook is a request for a new webhook.
type NewWebhook struct {
	URL    string   `json:"url" doc:"An https URL with a public address; others only if the server allows private webhooks"`
	Kinds  []string `json:"kinds,omitempty" doc:"Kinds of events; default: all"`
	Secret string   `json:"secret,omitempty" doc:"Signs the events; default: a new secret"`
}

// Webhook describes a webhook.
type Webhook struct {
	ID        string    `json:"id"`
	URL       string    `json:"url"`
	Kinds     []string  `json:"kinds,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	Secret    string    `json:"secret,omitempty" doc:"Only in the response to its creation"`
	Failures  int       `json:"failures,omitempty" doc:"Consecutive failures"`
	LastError string    `json:"last_error,omitempty"`
}

// WebhookList is a page of the webhooks of the caller's namespace, oldest first.
type WebhookList struct {
	Webhooks []Webhook `json:"webhooks"`
	Next     string    `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// WebhookTest is the outcome of a test of a webhook.
type WebhookTest struct {
	Delivered bool    `json:"delivered" doc:"Whether the receiver has accepted the message, with a status of 2xx"`
	Status    int     `json:"status,omitempty" doc:"Of the receiver's response; absent if there was none"`
	Error     string  `json:"error,omitempty" doc:"Why it was not delivered"`
	Took      float64 `json:"took_seconds"`
}

// NewSecret is a secret to store.
type NewSecret struct {
	Value     string   `json:"value" maxLength:"65536" doc:"The value itself: text, which no response contains"`
	Service   string   `json:"service,omitempty" doc:"A service of /v1/services, which has the defaults of the other fields. Default: the service with the name of the secret, if hosts and variables are absent"`
	Hosts     []string `json:"hosts,omitempty" doc:"Hosts to which the value may be sent: HOST, HOST:PORT or *.HOST. If there are none, each sandbox that uses the secret names its own"`
	Variables []string `json:"variables,omitempty" doc:"Environment variables with the placeholder. Default: the name in capital letters"`
	Query     *bool    `json:"query,omitempty" null:"refused" doc:"Replace the placeholder in the query of requests, too"`
	Body      bool     `json:"body,omitempty" doc:"Replace the placeholder in the body of requests and in messages of WebSockets, too"`
	Login     *Login   `json:"login,omitempty" doc:"The value is an access token of the service's OAuth provider, which the server renews"`
}

// Login is what an OAuth login has brought, beside the access token.
type Login struct {
	RefreshToken string     `json:"refresh_token,omitempty" maxLength:"65536" doc:"No response contains it. Absent: the value can't be renewed"`
	ExpiresAt    *time.Time `json:"expires_at,omitempty" doc:"When the access token expires. Absent: it does not, or nobody knows; then it is renewed only after a response with 401"`
	ClientID     string     `json:"client_id,omitempty" maxLength:"4096" doc:"Of the application that the tokens were given to. Default: the service's"`
	ClientSecret string     `json:"client_secret,omitempty" maxLength:"4096" doc:"Of the same, if it has one. No response contains it"`
}

// SecretValue is the new value of a secret.
type SecretValue struct {
	Value string `json:"value" maxLength:"65536" doc:"The value itself: text, which no response contains"`
}

// Secret describes a stored secret.
type Secret struct {
	Name      string    `json:"name"`
	Scope     string    `json:"scope" enum:"namespace,server,sandbox" doc:"Whose it is: the caller's namespace, the server, or the sandbox"`
	Service   string    `json:"service,omitempty"`
	Hosts     []string  `json:"hosts,omitempty"`
	Variables []string  `json:"variables,omitempty"`
	Query     bool      `json:"query,omitempty"`
	Body      bool      `json:"body,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	RotatedAt time.Time `json:"rotated_at" doc:"When it got its present value"`

	Login *LoginState `json:"login,omitempty" doc:"Of a value that an OAuth login has brought"`
}

// LoginState says how the value of a login is kept valid.
type LoginState struct {
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"When the present access token expires, if that is known"`
	Renewable bool       `json:"renewable" doc:"Whether there is a refresh token"`
	Failed    string     `json:"failed,omitempty" doc:"Why the last renewal failed"`
	Over      bool       `json:"over,omitempty" doc:"The provider refuses to renew it: log in again"`
}

// SecretList is a page of secrets, by name.
type SecretList struct {
	Secrets []Secret `json:"secrets"`
	Next    string   `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// Service is a service whose hosts and variables are known.
type Service struct {
	Name      string   `json:"name"`
	Variables []string `json:"variables,omitempty"`
	Hosts     []string `json:"hosts"`
	Header    string   `json:"header,omitempty" doc:"Where its clients send the value"`
	OAuth     *OAuth   `json:"oauth,omitempty" doc:"How to log in to it; absent: that does not work"`
}

// OAuth is how a login to a service works.
type OAuth struct {
	Authorize string   `json:"authorize,omitempty" doc:"URL for a browser (RFC 6749, section 4.1, with PKCE)"`
	Token     string   `json:"token" doc:"URL that gives tokens"`
	Device    string   `json:"device,omitempty" doc:"URL that gives device codes (RFC 8628)"`
	ClientID  string   `json:"client_id,omitempty" doc:"Of the application; absent: each login names its own"`
	Scopes    []string `json:"scopes,omitempty" doc:"What a login asks for by default"`
}

// ServiceList is a page of services, by name.
type ServiceList struct {
	Services []Service `json:"services"`
	Next     string    `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// Dialect is an API of another project that the server serves.
type Dialect struct {
	Name      string           `json:"name" doc:"Of the service in server.yaml"`
	Title     string           `json:"title" doc:"Of the project"`
	URL       string           `json:"url,omitempty" doc:"Where it is served; absent: no address has it"`
	KeyFormat string           `json:"key_format,omitempty" doc:"The format of keys that its clients expect; see POST /v1/keys"`
	Settings  []DialectSetting `json:"settings,omitempty" doc:"Point its clients at this server"`
}

// DialectSetting is an environment variable of clients.
type DialectSetting struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	Key   bool   `json:"key,omitempty" doc:"Its value is the key of the caller"`
}

// DialectList is a page of dialects, by name.
type DialectList struct {
	Dialects []Dialect `json:"dialects"`
	Next     string    `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// Audit is an entry of the audit.
type Audit struct {
	Seq       uint64    `json:"seq"`
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id,omitempty"`
	Phase     string    `json:"phase,omitempty" enum:"intent,end" doc:"intent: before it takes effect; end: when it has ended; absent: of the audit itself"`
	Caller    string    `json:"caller,omitempty"`
	Key       string    `json:"key,omitempty" doc:"Its public prefix"`
	Namespace string    `json:"namespace,omitempty"`
	Remote    string    `json:"remote,omitempty"`
	Action    string    `json:"action" doc:"The operationId in this document"`
	Sandbox   string    `json:"sandbox,omitempty"`
	Detail    string    `json:"detail,omitempty"`
	Allowed   bool      `json:"allowed"`
	Rule      string    `json:"rule,omitempty" doc:"The rule that decided"`
	Status    int       `json:"status,omitempty"`
	Code      string    `json:"code,omitempty"`
	Took      float64   `json:"took_seconds,omitempty"`
	Bytes     int64     `json:"bytes,omitempty" doc:"Bytes sent to the caller"`
}

// AuditList is a page of the audit, oldest first.
type AuditList struct {
	Entries []Audit `json:"entries"`
	Next    string  `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// NamedPolicy is the caller's policy. Its fields are those of the policy file.
type NamedPolicy struct {
	Name   string          `json:"name"`
	Policy json.RawMessage `json:"policy"`
}

// Capabilities describes what this server can enforce and do on its machine.
type Capabilities struct {
	Driver     string          `json:"driver"`
	Enforced   map[string]bool `json:"enforced" doc:"Limits and features, and whether each is enforced"`
	Changeable map[string]bool `json:"changeable" doc:"Limits, and whether each can be changed while a sandbox lives"`
	Gaps       []Gap           `json:"gaps,omitempty" doc:"What is not enforced, why, and how to fix it"`
	Features   []string        `json:"features" doc:"Parts of the API that this server supports"`
}

// Version describes the server.
type Version struct {
	Version string `json:"version"`
	API     string `json:"api" doc:"The newest version of the API"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// Health says that the server answers.
type Health struct {
	// Status is degraded while an operation is stuck, and unavailable when so many are
	// that no sandboxes are created.
	Status string `json:"status" enum:"ok,degraded,unavailable"`

	// Stuck is the number of operations that the server has given up waiting for.
	Stuck int `json:"stuck,omitempty"`
}

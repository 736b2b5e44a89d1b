// Package webhook sends events to other servers by HTTP POST.
//
// Messages follow Standard Webhooks 1.0 (standardwebhooks.com), so receivers in most languages have
// a library to verify them. The body is
//
//	{"type":"sandbox.created","timestamp":"2026-01-02T03:04:05Z","data":{…}}
//
// with the event as data, and the headers are
//
//	webhook-id         the same in every attempt at one event and hook
//	webhook-timestamp  Unix seconds of the attempt
//	webhook-signature  "v1," and, in base64, the HMAC-SHA256 of ID.TIMESTAMP.BODY
//
// Each hook gets its events in order, one at a time. If an attempt is not answered with 2xx, it is
// repeated with increasing delays. After the last attempt the event is dropped, and the next one
// tried. The queue is bounded; when it is full, the oldest event is dropped. "lost" beside data is
// the number of events dropped before. Events that wait when the server ends are lost without a
// report.
package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Hook is a receiver of events.
type Hook struct {
	ID        string // 16 characters of [a-z2-7]
	Namespace string // the namespace whose events it gets
	URL       string // https, or http where that is allowed
	Secret    string // "whsec_" and base64; see NewSecret
	Kinds     []sandpit.EventKind
	CreatedAt time.Time
}

// Bounds of a hook.
const (
	maxURL    = 2048 // bytes
	maxKinds  = 32
	secretLen = 32 // bytes; the standard asks for 24 to 64
	minSecret = 24
	maxSecret = 64

	secretPrefix = "whsec_"
)

// NewSecret returns a new secret to sign with.
func NewSecret() string {
	secret := make([]byte, secretLen)
	_, _ = rand.Read(secret) // never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// secretBytes returns the key that a secret stands for.
func secretBytes(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < minSecret || len(key) > maxSecret {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the secret is not whsec_ and %d to %d bytes in base64", minSecret, maxSecret), "omit it to get a generated secret")
	}
	return key, nil
}

// Check checks a hook. Each attempt checks the addresses of its URL again. Errors match
// sandpit.ErrInvalid.
func (h *Hook) Check(plainHTTP bool) error {
	if len(h.URL) > maxURL {
		return fault.Errorf(sandpit.ErrInvalid, "the webhook's URL is longer than %d bytes", maxURL)
	}
	u, err := url.Parse(h.URL)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "":
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the webhook's URL is invalid"), "write it as https://example.com/path")
	case u.User != nil || u.Fragment != "":
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the webhook's URL has a user or a fragment"), "omit them: the signature proves the sender")
	case u.Scheme != "https" && (u.Scheme != "http" || !plainHTTP):
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the webhook's URL is not https"), "use https, or ask the operator to allow private webhooks")
	}
	if _, err := secretBytes(h.Secret); err != nil {
		return err
	}
	if len(h.Kinds) > maxKinds {
		return fault.Errorf(sandpit.ErrInvalid, "the webhook names more than %d kinds of events", maxKinds)
	}
	for _, kind := range h.Kinds {
		if !slices.Contains(sandpit.EventKinds(), kind) {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "unknown event kind %.40q", string(kind)), "omit the kinds to get all events")
		}
	}
	return nil
}

// wants reports whether the hook gets an event.
func (h *Hook) wants(namespace string, kind sandpit.EventKind) bool {
	return h.Namespace == namespace && (len(h.Kinds) == 0 || slices.Contains(h.Kinds, kind))
}

// Header names of Standard Webhooks.
const (
	headerID        = "webhook-id"
	headerTime      = "webhook-timestamp"
	headerSignature = "webhook-signature"
)

// sign returns the signature of a message.
func sign(key []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

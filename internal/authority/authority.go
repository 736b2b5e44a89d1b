// Package authority makes the certificate authority with which the TLS of one sandbox is
// intercepted, and the certificates that it issues. Only that sandbox trusts it.
package authority

import (
	"container/list"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

const (
	life     = 10 * 365 * 24 * time.Hour // of an authority; it ends with its sandbox
	leafLife = 7 * 24 * time.Hour        // of what it issues
	renew    = 24 * time.Hour            // before a certificate ends, another is issued
	skew     = time.Hour                 // by which the clock of a sandbox may be late
	maxLeafs = 256                       // that are kept
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// New makes an authority for a sandbox, and returns its certificate and its key in PEM.
func New() ([]byte, error) {
	failed := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("making the certificate authority of a sandbox: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return failed(err)
	}
	template, err := certificate(pkix.Name{Organization: []string{"Sandpit"}, CommonName: "Sandpit: the authority of one sandbox"}, life)
	if err != nil {
		return failed(err)
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return failed(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return failed(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: secret})...), nil
}

// Certificate returns the certificate of what New returned, without the key, in PEM; nil if
// there is none.
func Certificate(text []byte) []byte {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == pemCertificate {
			return pem.EncodeToMemory(block)
		}
	}
	return nil
}

func certificate(subject pkix.Name, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // RFC 5280, section 4.1.2.2
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: subject, NotBefore: now.Add(-skew), NotAfter: now.Add(life)}, err
}

// Authority issues certificates. It is safe for concurrent use.
type Authority struct {
	pair tls.Certificate
	leaf *ecdsa.PrivateKey // of all that it issues, as all serve the same place

	mu     sync.Mutex
	byName map[string]*list.Element // guarded by mu; its values are in used
	used   list.List                // of *tls.Certificate, the last used first; guarded by mu
}

// Read reads what New returned. Errors match sandpit.ErrInvalid, and say nothing of the text.
func Read(text []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil || !pair.Leaf.IsCA {
		return nil, fault.Invalidf("the certificate authority is not a certificate and a key of one in PEM")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of certificates: %w", err)
	}
	return &Authority{pair: pair, leaf: key, byName: map[string]*list.Element{}}, nil
}

// Issue returns a certificate for a host name, from before if it holds for long enough.
func (a *Authority) Issue(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.byName[name]; e != nil {
		if c := e.Value.(*tls.Certificate); time.Until(c.Leaf.NotAfter) > renew {
			a.used.MoveToFront(e)
			return c, nil
		}
		a.forget(e)
	}
	c, err := a.issue(name)
	if err != nil {
		return nil, fmt.Errorf("issuing a certificate for %s: %w", name, err)
	}
	if a.used.Len() >= maxLeafs {
		a.forget(a.used.Back())
	}
	a.byName[name] = a.used.PushFront(c)
	return c, nil
}

// forget forgets a certificate. Precondition: a.mu is held.
func (a *Authority) forget(e *list.Element) {
	delete(a.byName, e.Value.(*tls.Certificate).Leaf.DNSNames[0])
	a.used.Remove(e)
}

func (a *Authority) issue(name string) (*tls.Certificate, error) {
	template, err := certificate(pkix.Name{Organization: []string{"Sandpit"}}, leafLife)
	if err != nil {
		return nil, err
	}
	template.DNSNames = []string{name}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.pair.Leaf, &a.leaf.PublicKey, a.pair.PrivateKey)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leaf, Leaf: leaf}, err
}

package server

import (
	"crypto/tls"
	"os"
	"sync"
)

// certificate is a certificate in files that may be replaced.
type certificate struct {
	cert, key string

	mu     sync.Mutex
	loaded *tls.Certificate // guarded by mu
	file   os.FileInfo      // the certificate's when it was loaded; guarded by mu
}

// get is for tls.Config.GetCertificate. It checks whether the files have changed, which
// takes a thousandth of the time of a handshake. While they can't be read, or do not match
// yet, the previous certificate is used.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := os.Stat(c.cert)
	if err == nil && c.loaded != nil && os.SameFile(info, c.file) && info.ModTime().Equal(c.file.ModTime()) && info.Size() == c.file.Size() {
		return c.loaded, nil
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(c.cert, c.key)
	}
	switch {
	case err == nil:
		c.loaded, c.file = &pair, info
	case c.loaded == nil:
		return nil, err
	}
	return c.loaded, nil
}

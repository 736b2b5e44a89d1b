package server

import (
	"crypto/tls"
	"os"
	"sync"
	"time"
)

// certificate is a certificate in files that may be replaced.
type certificate struct {
	cert, key string

	mu      sync.Mutex
	loaded  *tls.Certificate // guarded by mu
	looked  time.Time        // at the files; guarded by mu
	changed time.Time        // of the certificate's file when it was loaded; guarded by mu
}

// lookEvery is how often the files are looked at, at most.
const lookEvery = 10 * time.Second

// get is for tls.Config.GetCertificate. While the files can't be read, what was
// read before is used.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded != nil && time.Since(c.looked) < lookEvery {
		return c.loaded, nil
	}
	c.looked = time.Now()
	info, err := os.Stat(c.cert)
	if err == nil && c.loaded != nil && info.ModTime().Equal(c.changed) {
		return c.loaded, nil
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(c.cert, c.key)
	}
	switch {
	case err == nil:
		c.loaded, c.changed = &pair, info.ModTime()
	case c.loaded == nil:
		return nil, err
	}
	return c.loaded, nil
}

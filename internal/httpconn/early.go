package httpconn

import (
	"net"
	"sync"
	"time"
)

// A server that refuses a large request may answer and close the connection
// while the rest is being sent. http.Transport then takes what it hears of first,
// the answer or the failed write. On a connection of HearAnswer it hears of the answer
// first.

// wait is how long a write that has failed waits for what may still be read.
const wait = time.Second

// hearing is a connection whose failed writes wait until nothing more can be read.
type hearing struct {
	net.Conn
	once sync.Once
	deaf chan struct{} // closed when nothing more can be read
}

// HearAnswer returns a connection for a client that reads and writes at the same time.
// A Write that fails returns when Read has come to the end, or Close was called;
// after a second in any case.
func HearAnswer(c net.Conn) net.Conn { return &hearing{Conn: c, deaf: make(chan struct{})} }

// Hold is that of a Conn beneath.
func (c *hearing) Hold() { Find(c.Conn).Hold() }

// Release is that of a Conn beneath. It fails as Write does.
func (c *hearing) Release() error {
	err := Find(c.Conn).Release()
	if err != nil {
		c.hearOut()
	}
	return err
}

func (c *hearing) over() { c.once.Do(func() { close(c.deaf) }) }

// Read notes the end.
func (c *hearing) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.over()
	}
	return n, err
}

// Write returns a failure when the reader has come to the end.
func (c *hearing) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.hearOut()
	}
	return n, err
}

// hearOut waits until nothing more can be read, or long enough.
func (c *hearing) hearOut() {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.deaf:
	case <-timer.C:
	}
}

// Close ends Read and Write.
func (c *hearing) Close() error {
	c.over()
	return c.Conn.Close()
}

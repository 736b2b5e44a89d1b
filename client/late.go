package client

import (
	"context"
	"net"
	"sync"
	"time"
)

// lastWord is how long a write that has failed waits for what may still be read.
const lastWord = time.Second

// listening is a connection whose failed writes wait until nothing more can be
// read. A server that refuses a large request may answer and close the
// connection while the rest is being sent. http.Transport takes what it hears of
// first, the answer or the failure to send: so it hears of the answer first.
type listening struct {
	net.Conn
	once sync.Once
	deaf chan struct{} // closed when nothing more can be read
}

// listen makes a connection with dial.
func listen(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	return &listening{Conn: conn, deaf: make(chan struct{})}, nil
}

func (l *listening) over() { l.once.Do(func() { close(l.deaf) }) }

// Read notes the end.
func (l *listening) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if err != nil {
		l.over()
	}
	return n, err
}

// Write returns a failure when the reader has come to the end.
func (l *listening) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	if err != nil {
		timer := time.NewTimer(lastWord)
		defer timer.Stop()
		select {
		case <-l.deaf:
		case <-timer.C:
		}
	}
	return n, err
}

// Close ends Read and Write.
func (l *listening) Close() error {
	l.over()
	return l.Conn.Close()
}

package server_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestTenantsRegistries has a registry of the server's own network named by
// tenants: it is connected to for one whose policy names it, not for one who may
// use any.
func TestTenantsRegistries(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var asked atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			conn.Close()
		}
	}()
	image := l.Addr().String() + "/x:1"
	s := newServed(t)
	s.policy("policies:\n  default: {images: ['*']}\n  ours: {images: ['" + l.Addr().String() + "/*']}\n")
	s.start()
	create := func(key string) error {
		c := s.with(key)
		defer c.Close()
		_, err := c.Create(context.WithoutCancel(t.Context()), sandpit.Spec{Image: image})
		return err
	}
	stranger := s.keyOf("strangers", "")
	if err := create(stranger); !errors.Is(err, sandpit.ErrForbidden) || sandpit.Hint(err) == "" {
		t.Errorf("a registry that nobody vouches for: %v (hint: %s)", err, sandpit.Hint(err))
	}
	if status, body, _ := s.get("POST", "http://sandpit/v1/images/pull", stranger, `{"image":"`+image+`"}`); status != 403 {
		t.Errorf("pulled from a registry that nobody vouches for: %d %s", status, body)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("it was connected to %d times", n)
	}
	for name, key := range map[string]string{"named by the policy": s.keyOf("we", "ours"), "the server's own user": ""} {
		before := asked.Load()
		if err := create(key); !errors.Is(err, sandpit.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if asked.Load() == before {
			t.Errorf("%s: it was not connected to", name)
		}
	}
}

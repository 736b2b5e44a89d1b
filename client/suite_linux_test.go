package client_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/sandpittest"
)

// Over each way to a server, a client behaves as the engine in-process.
func TestClient(t *testing.T) {
	testkit.NeedFull(t, "it runs the suite of clients again, which TestDriver runs")
	nested := func(opt client.Options) func(*testing.T, string) sandpit.Client {
		return func(t *testing.T, namespace string) sandpit.Client {
			opt.Namespace = namespace
			return connect(t, opt)
		}
	}
	features := linux.New(linux.Options{}).Probe(t.Context()).Features
	t.Run("unix", func(t *testing.T) {
		s := serve(t)
		sandpittest.Suite(t, func(t *testing.T) sandpit.Client { return s.overUnix(t) },
			sandpittest.Options{Nested: nested(s.unixOptions()), Local: true, Features: features, Shared: true, Previews: s.address.Host, Except: sandpittest.Languages()})
	})
	t.Run("tls", func(t *testing.T) {
		s := serve(t)
		// The requests, and the server that answers them, are those of the other way. What is left out has no kind of
		// request that the rest lacks: the other languages have those of Code.
		sandpittest.Suite(t, func(t *testing.T) sandpit.Client { return s.overTLS(t) }, sandpittest.Options{
			Nested: nested(s.tlsOptions()), Features: features, Shared: true, Previews: s.address.Host, // the policy of keys allows nothing of the machine
			Except: append(sandpittest.Languages(), "Kill", "User", "Writing", "Limits"),
		})
	})
}

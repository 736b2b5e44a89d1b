package server_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestDenialsAreCounted has a sandbox ask for many names that it may not reach: the metrics have a total of
// its namespace, also once it is gone, and the audit has few entries, however many names there were.
func TestDenialsAreCounted(t *testing.T) {
	testkit.NeedTUN(t)
	s := newServed(t)
	s.change = func(o *server.Options) { o.Network = network.InProcess{} }
	s.start()
	c := s.unix()
	sb, err := c.Create(t.Context(), sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"good.test"}}})
	if err != nil {
		t.Fatal(err)
	}
	const names = 100
	res, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"sh", "-c", "i=0; while [ $i -lt 100 ]; do getent hosts n$i.test; i=$((i+1)); done; for i in 1 2 3; do getent hosts often.test; done; true"}})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%v, %+v", err, res)
	}
	const total = `sandpit_egress_denials_total{namespace="local"}`
	before := s.figure(total)
	if before < names+3 {
		t.Errorf("%d denials were counted", before)
	}
	if err := c.Remove(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
	if after := s.figure(total); after < before {
		t.Errorf("%d denials became %d", before, after)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(server.AuditDir(s.home), "*.jsonl"))
	var found []audit.Record
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var r audit.Record
			if json.Unmarshal([]byte(line), &r) == nil && r.Action == "egress.denied" {
				found = append(found, r)
			}
		}
	}
	if len(found) < 2 || len(found) > 2*17 { // at most two intervals
		t.Fatalf("the audit has %d entries", len(found))
	}
	often := false
	for _, r := range found {
		often = often || strings.HasPrefix(r.Detail, "often.test: denied ") && r.Sandbox == sb.ID() && r.Namespace == "local" && !r.Allowed
	}
	if !often {
		t.Errorf("what was denied most is missing: %+v", found)
	}
}

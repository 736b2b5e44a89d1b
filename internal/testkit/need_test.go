package testkit_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// outcome is a test that ends as it is told.
type outcome struct {
	testing.TB
	got string
}

func (o *outcome) Helper()               { /* nothing is reported */ }
func (o *outcome) Skip(...any)           { o.end("skipped") }
func (o *outcome) Skipf(string, ...any)  { o.end("skipped") }
func (o *outcome) Fatalf(string, ...any) { o.end("failed") }
func (o *outcome) end(how string)        { o.got = how; runtime.Goexit() }
func (o *outcome) of(f func(testing.TB)) string {
	done := make(chan struct{})
	o.got = "passed"
	go func() { defer close(done); f(o) }()
	<-done
	return o.got
}

// Where sandboxes are expected to work, one that can't be made fails the test.
func TestNeeds(t *testing.T) {
	forbidden, other := errors.New("making namespaces: operation not permitted"), errors.New("out of room")
	for _, tt := range []struct {
		name    string
		need    func(testing.TB)
		outcome map[string]string // by SANDPIT_TEST_EXPECT
	}{
		{"none can be made", func(t testing.TB) { testkit.NeedSandboxes(t, false, "forbidden") }, map[string]string{"works": "failed", "refused": "skipped", "": "skipped"}},
		{"they can be made", func(t testing.TB) { testkit.NeedSandboxes(t, true, nil) }, map[string]string{"works": "passed", "refused": "passed", "": "passed"}},
		{"namespaces are forbidden", func(t testing.TB) { testkit.Made(t, forbidden) }, map[string]string{"works": "failed", "refused": "skipped", "": "skipped"}},
		{"another failure", func(t testing.TB) { testkit.Made(t, other) }, map[string]string{"works": "failed", "refused": "failed", "": "failed"}},
		{"one was made", func(t testing.TB) { testkit.Made(t, nil) }, map[string]string{"works": "passed", "refused": "passed", "": "passed"}},
		{"a host that may refuse", testkit.NeedWorkingHost, map[string]string{"works": "passed", "refused": "skipped", "": "passed"}},
	} {
		for expect, want := range tt.outcome {
			t.Setenv("SANDPIT_TEST_EXPECT", expect)
			if got := (&outcome{TB: t}).of(tt.need); got != want {
				t.Errorf("%s, with %q expected: it %s, want %s", tt.name, expect, got, want)
			}
		}
	}
}

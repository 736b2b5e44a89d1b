package errcode

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// A code names one kind of error, and its status says whether trying again helps.
func TestCodes(t *testing.T) {
	seen := map[string]bool{}
	for _, code := range All() {
		if seen[code] {
			t.Errorf("%s is there twice", code)
		}
		seen[code] = true
		kind, status := Kind(code), Status(code)
		if (kind == nil) != (code == Internal) || status < 400 || status > 599 {
			t.Errorf("%s is %v, %d", code, kind, status)
		}
		if (status == 429) != errors.Is(kind, sandpit.ErrRateLimited) {
			t.Errorf("%s is %d: %v", code, status, kind)
		}
		if status == 503 && errors.Is(kind, sandpit.ErrQuota) {
			t.Errorf("%s is %d: waiting does not help", code, status)
		}
	}
	for kind, want := range map[error]string{
		sandpit.ErrExhausted: Overloaded, sandpit.ErrQuota: QuotaExceeded, sandpit.ErrRateLimited: RateLimited, sandpit.ErrDiskFull: DiskFull,
		sandpit.ErrNoSpace: "no_space", sandpit.ErrForbidden: Forbidden, context.DeadlineExceeded: "timeout", errors.New("x"): Internal,
	} {
		if got := Of(fmt.Errorf("doing: %w", kind)); got != want {
			t.Errorf("%v is %s", kind, got)
		}
	}
	exhausted := fmt.Errorf("doing: %w", sandpit.ErrExhausted)
	for _, kind := range []error{sandpit.ErrQuota, sandpit.ErrRateLimited, sandpit.ErrDiskFull} {
		if !errors.Is(kind, sandpit.ErrExhausted) || errors.Is(exhausted, kind) {
			t.Errorf("%v is not a case of ErrExhausted", kind)
		}
	}
	if Kind("new") != nil || Status("new") != 500 {
		t.Error("a code is known that nobody has")
	}
}

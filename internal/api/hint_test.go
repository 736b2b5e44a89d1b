package api

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// A refusal says what to do also where it is told in another form, as a run is.
func TestHintOfRefusal(t *testing.T) {
	err := fmt.Errorf("asking: %w", gate.Invalid("that can't be", "ask for something else"))
	if got := fastrun.EncodeError(err); got.Hint != "ask for something else" || got.Message == "" {
		t.Errorf("got %+v", got)
	}
	if got := sandpit.Hint(err); got != "ask for something else" || !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("got %q", got)
	}
	if got := sandpit.Hint(gate.Invalid("that can't be", "")); got != "" {
		t.Errorf("without one, got %q", got)
	}
}

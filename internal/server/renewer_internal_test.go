package server

import (
	"testing"
	"time"
)

// The pauses between renewals of a secret double with each failure, up to a maximum.
func TestRenewalPausesGrow(t *testing.T) {
	for fails, want := range map[int]time.Duration{0: renewPause, 1: 2 * renewPause, 2: 4 * renewPause, 4: 8 * time.Minute, 5: renewLong, 6: renewLong, 1 << 40: renewLong} {
		if got := (&renews{fails: fails}).pause(); got != want {
			t.Errorf("after %d failures the pause is %v, want %v", fails, got, want)
		}
	}
}

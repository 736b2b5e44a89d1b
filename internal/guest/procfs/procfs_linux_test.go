package procfs

import (
	"os"
	"strings"
	"testing"
)

func TestScanner(t *testing.T) {
	var s Scanner
	s.read()
	self, parent := os.Getpid(), os.Getppid()
	found := false
	for _, p := range s.all {
		if p.PID == self {
			// Its first thread may run, sleep, or wait for a disk.
			found = p.Parent == parent && strings.IndexByte("RSD", p.State) >= 0
		}
	}
	if !found {
		t.Errorf("this process (%d, child of %d) is not in %+v", self, parent, s.all)
	}
}

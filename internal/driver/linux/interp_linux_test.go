package linux

import (
	"bytes"
	"os"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestNeedsInterpreter(t *testing.T) {
	sh := testkit.NeedProgram(t, "true")
	f, err := os.Open(sh)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if needs, err := needsInterpreter(f); !needs || err != nil {
		t.Errorf("%s: %v, %v", sh, needs, err)
	}
	for name, data := range map[string]string{
		"empty":   "",
		"script":  "#!/bin/sh\n",
		"32 bits": "\x7fELF\x01\x01" + string(make([]byte, 64)),
		"cut":     "\x7fELF\x02\x01" + string(make([]byte, 26)) + "\x01\x01\x01\x01\x00\x00\x00\x00" + string(make([]byte, 16)) + "\x01\x01\x01\x01\x01\x01\x01\x01",
	} {
		if needs, err := needsInterpreter(bytes.NewReader([]byte(data))); err == nil {
			t.Errorf("%s: %v", name, needs)
		}
	}
}

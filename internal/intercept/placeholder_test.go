package intercept

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/engine"
)

// Of secrets that were replaced, the latest are kept.
func TestFormerSecretsAreBounded(t *testing.T) {
	var ss secrets
	for i := range 3 * maxFormer {
		next, err := compileSecrets([]engine.Secret{{Name: "a", Placeholder: "sandpit-the-placeholder", Value: fmt.Append(nil, i), Hosts: []string{"good.test"}}})
		if err != nil {
			t.Fatal(err)
		}
		ss = next.with(ss)
	}
	if len(ss) != 1+maxFormer || string(ss[1].Value) != fmt.Sprint(3*maxFormer-2) {
		t.Errorf("%d are kept, the latest is %s", len(ss), ss[1].Value)
	}
}

// Large former values are bounded by their size.
func TestFormerSecretsAreSmall(t *testing.T) {
	const size = 64 << 10
	value := func(i int) []byte { return append(make([]byte, size), fmt.Sprint(i)...) }
	var ss secrets
	for i := range maxFormer {
		ss = secrets{{Secret: engine.Secret{Value: value(i)}}}.with(ss)
	}
	if len(ss) != 1+maxFormerSize/size-1 || !bytes.Equal(ss[1].Value, value(maxFormer-2)) {
		t.Errorf("%d secrets are kept", len(ss))
	}
}

package e2b

import (
	"encoding/json"
	"testing"
)

// A state that this version does not understand grants nothing, whatever part of it can be read.
func TestUnknownStateGrantsNothing(t *testing.T) {
	for _, data := range []string{`{"keys":["k"],"autoResume":true,"private":"all"}`, `{"private":{"ports":[1]},"keys":["k"]}`, `{"keys":["k"]`, `7`} {
		if s := readState(json.RawMessage(data)); !s.Private || s.AutoResume || len(s.Keys) > 0 {
			t.Errorf("%s: %+v", data, s)
		}
	}
	if s := readState(nil); s.Private || len(s.Keys) > 0 {
		t.Errorf("without data: %+v", s)
	}
	if s := readState(json.RawMessage(`{"keys":["k"],"later":1}`)); s.Private || len(s.Keys) != 1 {
		t.Errorf("with keys: %+v", s)
	}
}

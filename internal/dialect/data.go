package dialect

import (
	"encoding/json"
	"fmt"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Recall decodes data of a dialect about a sandbox (Box.Dialect) into v. Without data, v stays as it is. After an error, v may
// have a part of it and must not be used: data that a later version has written may take rights away that the rest grants.
func Recall(data json.RawMessage, v any) error {
	if len(data) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%w: %w", errData, err)
	}
	return nil
}

// errData is the error of data that can't be understood.
var errData error = &gate.Refusal{Code: errcode.State, Message: "this version of the server does not understand what another one has stored about the sandbox", Hint: "make the sandbox again, or ask the operator to run the version that made it"}

// WarnOfData logs which sandboxes have data of a dialect that Recall can't decode into values of v. It is for the start of a
// server: later, only this version writes data.
func WarnOfData[V any](s Server, name string) {
	for _, sb := range s.Sandboxes() {
		if err := Recall(sb.Dialect(name), new(V)); err != nil {
			s.Log.Warn("the data of a sandbox can't be understood; it grants nothing", "dialect", name, "sandbox", sb.ID(), "error", err)
		}
	}
}

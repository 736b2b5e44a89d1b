package openapi

import (
	"slices"

	"github.com/danielgtaylor/huma/v2"
)

// enums names lists of values. A generated client has one type for each, instead of one for
// each parameter and field that has it.
func enums() map[string][]any {
	return map[string][]any{
		"Encoding":        {"base64"},
		"ExpiryAction":    {"remove", "stop", "pause"},
		"ImagePullPolicy": {"missing", "always"},
		"OutputStream":    {"stdout", "stderr"},
		"PullPolicy":      {"missing", "always", "never"},
		"SandboxState":    {"created", "creating", "running", "paused", "stopped", "failed"},
	}
}

// nameEnums replaces these lists in a document by references to schemas.
func nameEnums(doc *huma.OpenAPI) {
	all, schemas := enums(), doc.Components.Schemas.Map()
	name := func(s *huma.Schema) {
		for n, values := range all {
			if slices.Equal(s.Enum, values) {
				*s = huma.Schema{Ref: "#/components/schemas/" + n, Description: s.Description}
			}
		}
	}
	for _, s := range schemas {
		walk(s, name)
	}
	for _, path := range doc.Paths {
		for _, op := range []*huma.Operation{path.Get, path.Put, path.Post, path.Delete, path.Patch} {
			if op == nil {
				continue
			}
			for _, p := range op.Parameters {
				walk(p.Schema, name)
			}
		}
	}
	for n, values := range all {
		schemas[n] = &huma.Schema{Type: huma.TypeString, Enum: values}
	}
}

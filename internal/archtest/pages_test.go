package archtest

import (
	"go/ast"
	"path/filepath"
	"strings"
	"testing"
)

// A list of the API comes in pages, of which a client must not take the first for the whole: a
// function that gets one has to look for the next.
func TestClientsReadAllPages(t *testing.T) {
	all := sources(t)
	paged := map[string]bool{} // types of /v1 with a field Next
	for _, file := range all[filepath.Join("../..", "internal/api/v1")].files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if fields, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range fields.Fields.List {
					paged[spec.Name.Name] = paged[spec.Name.Name] || len(f.Names) == 1 && f.Names[0].Name == "Next"
				}
			}
			return false
		})
	}
	found := 0
	for dir, src := range all {
		rel, _ := filepath.Rel("../..", dir)
		if rel != "client" && !strings.HasPrefix(rel, "internal/cli") {
			continue
		}
		for _, file := range src.files {
			for _, d := range file.Decls {
				list, next := "", false
				ast.Inspect(d, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok {
						if x, ok := s.X.(*ast.Ident); ok && x.Name == "v1" && paged[s.Sel.Name] {
							list = s.Sel.Name
						}
						next = next || s.Sel.Name == "Next"
					}
					return true
				})
				if list == "" {
					continue
				}
				if found++; !next {
					t.Errorf("%s: it gets a %s and does not read Next", src.fset.Position(d.Pos()), list)
				}
			}
		}
	}
	if len(paged) < 8 || found < 8 {
		t.Errorf("only %d lists were found, with %d uses", len(paged), found)
	}
}

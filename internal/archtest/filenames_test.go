package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Files that doc comments name exist: in the folder of the package, or below the root of the module.
func TestFilesOfCommentsExist(t *testing.T) {
	name := regexp.MustCompile(`(?:^|[\s(])([a-z0-9][a-z0-9_/.-]*\.(?:go|py|js|R))\b`)
	checked := 0
	for dir, src := range sources(t) {
		check := func(doc *ast.CommentGroup) {
			for _, m := range name.FindAllStringSubmatch(doc.Text(), -1) {
				checked++
				_, here := os.Stat(filepath.Join(dir, m[1]))
				_, below := os.Stat(filepath.Join("../..", m[1]))
				if here != nil && below != nil {
					t.Errorf("%s: %s does not exist", src.fset.Position(doc.Pos()), m[1])
				}
			}
		}
		for _, file := range src.files {
			check(file.Doc)
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					check(d.Doc)
				case *ast.GenDecl:
					check(d.Doc)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no comment names a file")
	}
}

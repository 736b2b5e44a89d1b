package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// source is the parsed files of one folder, without tests.
type source struct {
	fset  *token.FileSet
	files []*ast.File
}

// sources parses every folder of the module, whatever its build constraints.
func sources(t *testing.T) map[string]*source {
	t.Helper()
	found := map[string]*source{}
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != "../.." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" || e.Name() == "tools"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		dir := filepath.Dir(path)
		if found[dir] == nil {
			found[dir] = &source{fset: token.NewFileSet()}
		}
		file, err := parser.ParseFile(found[dir].fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		found[dir].files = append(found[dir].files, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Wiring is written down in cmd, and nothing runs before main.
func TestNoInit(t *testing.T) {
	for _, src := range sources(t) {
		for _, file := range src.files {
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
					t.Errorf("%s: func init runs before main, in every start of the program", src.fset.Position(f.Pos()))
				}
			}
		}
	}
}

// suites are tests in packages of their own: no program carries them.
var suites = map[string]bool{"sandpittest": true, "internal/driver/drivertest": true, "internal/image/imagetest": true}

// ofTheProcess names variables of packages that stand for what is the process's own, with the
// reason: one for each user of the package would be wrong.
var ofTheProcess = map[string]string{
	"internal/api/codec.known":              "the fields of types are the program's own, and each is found once",
	"internal/driver/linux.processDumpable": "PR_SET_DUMPABLE is a right of the process, which all drivers in it change and restore",
}

// A variable of a package is shared by all that the process does, and one that
// must be computed costs every start. What stays is fixed: errors, tables that
// the compiler lays out, what was embedded, lazy values, and pools.
func TestNoGlobalState(t *testing.T) {
	for dir, src := range sources(t) {
		if suites[filepath.ToSlash(strings.TrimPrefix(dir, "../../"))] {
			continue
		}
		vars := map[string]*ast.ValueSpec{}
		for _, file := range src.files {
			for _, d := range file.Decls {
				decl, ok := d.(*ast.GenDecl)
				if !ok || decl.Tok != token.VAR {
					continue
				}
				for _, spec := range decl.Specs {
					v := spec.(*ast.ValueSpec)
					for i, name := range v.Names {
						if name.Name == "_" || ofTheProcess[filepath.ToSlash(strings.TrimPrefix(dir, "../../"))+"."+name.Name] != "" {
							continue
						}
						vars[name.Name] = v
						if why := notFixed(file.Name.Name, decl, v, i); why != "" {
							t.Errorf("%s: var %s: %s", src.fset.Position(name.Pos()), name.Name, why)
						}
					}
				}
			}
		}
		for _, file := range src.files {
			for _, w := range writes(file, vars) {
				t.Errorf("%s: %s is a variable of the package and is changed here", src.fset.Position(w.Pos()), w.Name)
			}
		}
	}
}

// notFixed says why a variable of a package is not allowed, or "".
func notFixed(pkg string, decl *ast.GenDecl, v *ast.ValueSpec, i int) string {
	for _, doc := range []*ast.CommentGroup{decl.Doc, v.Doc} {
		if doc != nil && strings.Contains(rawText(doc), "//go:embed ") {
			return ""
		}
	}
	if i >= len(v.Values) {
		// The linker sets it: -X main.version.
		if pkg == "main" && decl.Doc != nil && strings.Contains(decl.Doc.Text(), "linker") {
			return ""
		}
		return "it has no value, so something changes it later"
	}
	// An error may be put together from others.
	if name := strings.ToLower(v.Names[i].Name); strings.HasPrefix(name, "err") {
		return ""
	}
	return notFixedValue(v.Values[i])
}

func rawText(group *ast.CommentGroup) string {
	var text strings.Builder
	for _, c := range group.List {
		text.WriteString(c.Text + "\n")
	}
	return text.String()
}

func notFixedValue(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.BasicLit, *ast.Ident, *ast.SelectorExpr, *ast.FuncLit:
		return ""
	case *ast.BinaryExpr:
		return first(notFixedValue(x.X), notFixedValue(x.Y))
	case *ast.ParenExpr:
		return notFixedValue(x.X)
	case *ast.KeyValueExpr:
		return notFixedValue(x.Value)
	case *ast.UnaryExpr:
		return notFixedValue(x.X)
	case *ast.CompositeLit:
		switch typ := x.Type.(type) {
		case *ast.MapType:
			return "a map is filled at every start; use a switch or a sorted table"
		case *ast.SelectorExpr:
			if name := fmt.Sprint(typ.X) + "." + typ.Sel.Name; strings.HasPrefix(name, "sync.") && name != "sync.Pool" || strings.HasPrefix(name, "atomic.") {
				return name + " is shared state"
			}
		}
		for _, element := range x.Elts {
			if why := notFixedValue(element); why != "" {
				return why
			}
		}
		return ""
	case *ast.CallExpr:
		if len(x.Args) == 1 {
			switch fun := x.Fun.(type) {
			case *ast.ArrayType, *ast.ParenExpr: // []byte("…"), (*T)(nil)
				return notFixedValue(x.Args[0])
			case *ast.Ident:
				// A conversion to a type, or len of an array.
				return first(notFixedValue(fun), notFixedValue(x.Args[0]))
			}
		}
		if fun, ok := x.Fun.(*ast.SelectorExpr); ok {
			switch fmt.Sprint(fun.X) + "." + fun.Sel.Name {
			case "errors.New", "fmt.Errorf", "sync.OnceValue", "sync.OnceValues", "sync.OnceFunc":
				return ""
			case "syscall.Errno", "unix.Errno":
				return ""
			}
		}
		return "it is computed at every start; compute it where it is used, or once with sync.OnceValue"
	}
	return fmt.Sprintf("a %T as its value", x)
}

func first(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}

// writes are the places of a file where a variable of the package is assigned,
// also in part.
func writes(file *ast.File, vars map[string]*ast.ValueSpec) []*ast.Ident {
	var found []*ast.Ident
	target := func(x ast.Expr) {
		for {
			switch y := x.(type) {
			case *ast.IndexExpr:
				x = y.X
				continue
			case *ast.SelectorExpr:
				x = y.X
				continue
			case *ast.ParenExpr:
				x = y.X
				continue
			case *ast.StarExpr:
				x = y.X
				continue
			case *ast.Ident:
				// A local name of the same spelling has an object that is not
				// the package's; one of another file has none.
				if spec, ok := vars[y.Name]; ok && (y.Obj == nil || y.Obj.Decl == spec) {
					found = append(found, y)
				}
			}
			return
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, x := range n.Lhs {
					target(x)
				}
			}
		case *ast.IncDecStmt:
			target(n.X)
		case *ast.UnaryExpr:
			if _, literal := n.X.(*ast.CompositeLit); n.Op == token.AND && !literal {
				target(n.X)
			}
		}
		return true
	})
	return found
}

// Names that others use say what they are. Methods that an interface of the
// standard library defines need no second explanation.
func TestExportedNamesAreDocumented(t *testing.T) {
	wellKnown := map[string]bool{
		"Error": true, "Unwrap": true, "Is": true, "As": true, "String": true, "Close": true, "Read": true, "Write": true,
		"ReadFrom": true, "WriteTo": true, "ReadAt": true, "WriteAt": true, "Seek": true,
		"Len": true, "Less": true, "Swap": true, "Name": true, "Size": true, "Mode": true, "ModTime": true, "IsDir": true, "Sys": true,
		"MarshalJSON": true, "UnmarshalJSON": true, "MarshalText": true, "UnmarshalText": true,
		"Type": true, "Info": true, "Set": true, "LogValue": true,
	}
	for _, src := range sources(t) {
		for _, file := range src.files {
			if file.Name.Name == "main" {
				continue
			}
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Doc != nil || !d.Name.IsExported() || d.Recv != nil && (wellKnown[d.Name.Name] || !exportedReceiver(d.Recv)) {
						continue
					}
					t.Errorf("%s: %s has no comment", src.fset.Position(d.Pos()), d.Name.Name)
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						if s, ok := spec.(*ast.TypeSpec); ok && s.Name.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
							t.Errorf("%s: type %s has no comment", src.fset.Position(s.Pos()), s.Name.Name)
						}
					}
				}
			}
		}
	}
}

func exportedReceiver(fields *ast.FieldList) bool {
	x := fields.List[0].Type
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	switch y := x.(type) {
	case *ast.IndexExpr:
		x = y.X
	case *ast.IndexListExpr:
		x = y.X
	}
	name, ok := x.(*ast.Ident)
	return ok && name.IsExported()
}

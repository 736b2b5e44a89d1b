package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TypeScript runs with the package typescript of the working directory, if node can't strip types.
func TestTypeScript(t *testing.T) {
	npm := testkit.NeedProgram(t, "npm")
	testkit.NeedProgram(t, "node") // and so in the host image
	modules := newGenerator(t, "typescript", nil).modules(npm)
	sb, err := newServed(t).start().unix().Create(t.Context(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	const dir = "/tmp/ts"
	if res, err := sandpit.Exec(t.Context(), sb, "mkdir", "-p", dir+"/node_modules/typescript/lib"); err != nil || !res.Success() {
		t.Fatalf("%+v, %v", res, err)
	}
	for _, name := range []string{"package.json", "lib/typescript.js"} {
		content, err := os.ReadFile(filepath.Join(modules, "typescript", name))
		if err == nil {
			err = sandpit.WriteFile(t.Context(), sb, filepath.Join(dir, "node_modules/typescript", name), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "ts", Language: sandpit.TypeScript, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ source, text, failure string }{
		{"interface P { a: number }\nenum Color { Red, Green = 5 }\nconst p: P = { a: 41 }\np.a + Color.Green", "46", ""},
		{"import fs, { type Stats } from 'node:fs'\nimport type { X } from './missing'\nconst s: Stats = fs.statSync('/tmp')\ns.isDirectory() as boolean", "true", ""},
		{"fs.existsSync('/tmp') && (await Promise.resolve<number>(p.a))", "41", ""},
		{"export class Box<T> { constructor(readonly value: T) {} }\nnew Box<string>('b').value", "'b'", ""},
		{"function fail(x: number): never { throw new RangeError('e' + x) }\nfail(1)", "", "RangeError: e1"},
		{"const bad: = 3", "", "SyntaxError"},
	} {
		text := ""
		got, err := sb.RunCode(t.Context(), sandpit.Code{Source: step.source, Context: "ts", Output: func(o sandpit.CodeOutput) { text = o.Text }})
		if err != nil || text != step.text || (got.Error != nil) != (step.failure != "") || got.Error != nil && !strings.Contains(got.Error.Traceback, step.failure) {
			t.Errorf("%q: %q, %+v, error %+v, %v", step.source, text, got, got.Error, err)
		}
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

package sandpittest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var javascriptProperties = []property{
	{"JavaScript keeps its state, and names may be declared again", testNodeState},
	{"JavaScript passes on all output, also of children, before a run ends", testNodeOutput},
	{"JavaScript displays values in rich formats", testNodeFormats},
	{"JavaScript loads modules from the working directory", testNodeModules},
	{"an error of JavaScript has a name, a value and a traceback of its lines", testNodeError},
	{"an error outside of runs does not end JavaScript, and is printed", testNodeUncaught},
	{"input of JavaScript is at its end", testNodeInput},
	{"JavaScript that ends says why, and the next run begins afresh", testNodeEnds},
	{"JavaScript whose heap is full says so, and the next run begins afresh", testNodeHeap},
	{"JavaScript that is out of memory says so, and the next run begins afresh", testNodeMemory},
	{"a timeout interrupts JavaScript, which keeps the state", testNodeTimeout},
	{"TypeScript runs if node can strip its types, and else the error says what it needs", testTypeScript},
	{"what JavaScript does to its channel does not hold RunCode up", testNodeChannel},
}

func node(t *testing.T, e *env) speaker {
	t.Helper()
	return program(t, e, "node", sandpit.JavaScript)
}

func testNodeState(t *testing.T, e *env) {
	n := node(t, e)
	n.steps(t, []step{
		{"const x = 20; let l = 1; class A { g() { return 'ü' } }; function f(n) { return n + 1 }", ""},
		{"x + f(x) + l", "42"},
		{"const x = 21; let l = 2; class A { g() { return 'üü' } }", ""},
		{"[x, l, new A().g()]", "[ 21, 2, 'üü' ]"},
		{"_.length", "3"},
		{"undefined", ""},
		{"", ""},
		{"// only a comment", ""},
		{"null", "null"},
		{"({a: 1, b: {c: [1, 2]}})", "{ a: 1, b: { c: [ 1, 2 ] } }"},
		{"const [p, {q}] = [1, {q: await Promise.resolve(2)}]; p + q", "3"},
		{"if (true) { 7 }", "7"},
		{"async function later() { await null; return 'later' }\nlater()", "'later'"},
		{"for await (const v of [1, 2]) globalThis.sum = (globalThis.sum ?? 0) + v\nsum", "3"},
		{"const fs = require('fs'), _ = 5; fs.existsSync('/tmp')", "true"},
		{"_", "5"},
		{"10n ** 20n", "100000000000000000000n"},
		{"var ticks = 0; const timer = setInterval(() => ticks++, 1)", ""},
	})
	eventually(t, "timers go on between runs", func() bool { return n.run(t, "ticks > 20").text() == "true" })
	n.variable(t, "await null; process.env.A + x", "'b=c21'", "process.env.A")
}

func testNodeOutput(t *testing.T, e *env) {
	n := node(t, e)
	got := n.run(t, `
const {execSync, spawnSync} = require('child_process');
console.log("one", {a: 1});
console.error("warn");
spawnSync("sh", ["-c", "echo two"], {stdio: "inherit"});
process.stdout.write("three");
process.stdout.end("four");
await new Promise(done => setTimeout(done, 1));
console.log();
execSync("echo five >&2", {stdio: ["ignore", process.stdout, process.stderr]});
require('fs').writeSync(1, Buffer.from([0xff]));
`)
	if want := "one { a: 1 }\ntwo\nthreefour\n\xff"; !got.Success() || got.stdout != want || got.stderr != "warn\nfive\n" {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
	inOrder(t, n, "console.log('a')\ndisplay(1)\nconsole.log('b')\ndisplay(2)\nprocess.stdout.write('c')\ndisplay(3)\nconsole.log('d')\n4")
	n.long(t, "for (let i = 0; i < 128; i++) process.stdout.write('x'.repeat(65536))")
}

func testNodeFormats(t *testing.T, e *env) {
	n := node(t, e)
	got := n.run(t, `
class All {
  [Symbol.for('Jupyter.display')]() {
    return {'text/plain': 'plain', 'text/html': '<b>', 'text/markdown': '*m*', 'image/svg+xml': '<svg/>', 'text/latex': '$l$',
      'image/png': Buffer.from('\x89PNG', 'latin1'), 'image/jpeg': '/9g=', 'application/pdf': new Uint8Array([37, 80]),
      'application/json': {a: [1, null]}, 'application/javascript': 'js()', 'application/x-own': {b: 1}}
  }
}
class Later { async [Symbol.for('Jupyter.display')]() { return {'text/html': '<u>'} } }
display('first');
display({'text/html': '<i>'}, {raw: true});
display({_toHtml: () => '<p>', _toPng: () => 'UE5H', _toMime: () => ({'text/markdown': '#'})});
display({outerHTML: '<svg></svg>', toString: () => 'e'});
await display(new Later());
new All()
`)
	if !got.Success() || len(got.outputs) != 6 || !strings.HasPrefix(got.text(), "'first'||{") || !strings.HasSuffix(got.text(), "plain") {
		t.Fatalf("%+v, error %+v", got, got.Error)
	}
	all := got.outputs[5]
	if !all.Main || all.HTML != "<b>" || all.Markdown != "*m*" || all.SVG != "<svg/>" || all.LaTeX != "$l$" || all.JavaScript != "js()" ||
		string(all.PNG) != "\x89PNG" || string(all.JPEG) != "\xff\xd8" || string(all.PDF) != "%P" || string(all.JSON) != `{"a":[1,null]}` || all.Extra["application/x-own"] != `{"b":1}` {
		t.Errorf("%+v", all)
	}
	if o := got.outputs; o[1].HTML != "<i>" || o[1].Main || o[2].HTML != "<p>" || string(o[2].PNG) != "PNG" || o[2].Markdown != "#" || o[3].SVG != "<svg></svg>" || o[4].HTML != "<u>" {
		t.Errorf("%+v", o)
	}
	if got := n.run(t, "'x'.repeat(20 << 20)"); !got.Success() || !got.Truncated || len(got.outputs) != 1 || !strings.Contains(got.text(), "can't be displayed") {
		t.Errorf("of a long value comes %.200s, %+v", got.text(), got.CodeResult)
	}
	if got := n.run(t, "display({'application/json': 1n}, {raw: true}); for (let i = 0; i < 1010; i++) display(i)"); !got.Success() || !got.Truncated || len(got.outputs) != sandpit.MaxCodeOutputs {
		t.Errorf("of many values come %d, %+v", len(got.outputs), got.CodeResult)
	}
}

func testNodeModules(t *testing.T, e *env) {
	n := node(t, e)
	for name, content := range map[string]string{
		"common.js":                      "module.exports = {a: 1, dir: __dirname}",
		"own.mjs":                        "export default 'd'; export const a = 2, b = 3",
		"data.json":                      `{"c": 4}`,
		"node_modules/some/package.json": `{"name": "some", "main": "m.js"}`,
		"node_modules/some/m.js":         "exports.s = 's'",
	} {
		run(t, n.sb, sandpit.Command{Argv: []string{"sh", "-c", `mkdir -p node_modules/some && printf %s "$2" >"$1"`, "sh", name, content}})
	}
	for source, text := range map[string]string{
		"require('./common').a + require('./data.json').c":                                                                                   "5",
		"require('some').s + (await import('some')).default.s":                                                                               "'ss'",
		"(await import('./own.mjs')).a":                                                                                                      "2",
		"import d, { a as x, b } from './own.mjs'\n[d, x, b]":                                                                                "[ 'd', 2, 3 ]",
		"import d from './own.mjs';import * as all from \"./own.mjs\"; d + all.b":                                                            "'d3'",
		"import d, * as all from './own.mjs'; d + all.a":                                                                                     "'d2'",
		"import {\n  a,\n  b as c,\n} from './own.mjs'\na + c":                                                                               "5",
		"import './own.mjs'; import fs, {existsSync as e} from 'node:fs'; e === fs.existsSync":                                               "true",
		"const text = `\nimport x from 'y'\nimport(1)`, re = /import('x')/, o = {import: 1}; /* import z from 'w' */ text.length + o.import": "29",
		"const f = async () => (await import('os')).EOL; `${await f()}${(await import('path')).sep}`":                                        "'\\n/'",
		"export const e1 = 1; export default function e2() { return 2 }\ne1 + e2() + 'export const'.length":                                  "15",
		"typeof import.meta.url + import.meta.dirname.length":                                                                                "'string" + "",
	} {
		if got := n.run(t, source); !got.Success() || !strings.HasPrefix(got.text(), text) {
			t.Errorf("%q: %+v, error %+v", source, got, got.Error)
		}
	}
	if got := n.run(t, "import x from './missing.mjs'"); got.Error == nil || !strings.Contains(got.Error.Value, "missing.mjs") {
		t.Errorf("a missing module: %+v, error %+v", got, got.Error)
	}
}

func testNodeError(t *testing.T, e *env) {
	n := node(t, e)
	n.mistakes(t, map[string]mistake{
		"var x = 1\nx()": {"TypeError", "x is not a function", "run-", "inspector"},
		"function f() {\n  throw new RangeError('r')\n}\nf()": {"RangeError", "r", "throw new RangeError('r')", "[stdin]"},
		"await null\nthrow new Error('late')":                 {"Error", "late", "throw new Error('late')", "[stdin]"},
		"Promise.reject(new Error('rejected'))":               {"Error", "rejected", "Error: rejected", "[stdin]"},
		"console.log('before'":                                {"SyntaxError", "missing )", "console.log('before'\n", "inspector"},
		"throw 'text'":                                        {"String", "text", "Uncaught 'text'", ""},
		"throw {a: 1}":                                        {"Object", "{ a: 1 }", "", ""},
		"throw null":                                          {"object", "null", "", ""},
		"class E extends Error { get message() { throw this } }; throw new E()": {"Error", "(its text can't be made)", "", ""},
		"function r() { r() }; r()":                             {"RangeError", "Maximum call stack", "", ""},
		"throw new Error('outer', {cause: new Error('inner')})": {"Error", "outer", "inner", "[stdin]"},
		"require('fs').readFileSync('/nonexistent')":            {"Error", "ENOENT", "readFileSync", "[stdin]"},
	})
	if got := n.run(t, "x"); got.text() != "1" {
		t.Errorf("after the errors x is %q", got.text())
	}
}

func testNodeUncaught(t *testing.T, e *env) {
	n := node(t, e)
	n.run(t, "var x = 1")
	got := n.run(t, `
setTimeout(() => { throw new Error('in a timer') }, 1);
Promise.reject(new Error('in a promise'));
new (require('events'))().emit('error', new Error('of an emitter'))`)
	if got.Error == nil || got.Error.Value != "of an emitter" || got.InterpreterEnd != "" {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
	got = n.run(t, "setTimeout(() => { throw new Error('later') }, 1); Promise.reject(7); await new Promise(done => setTimeout(done, 20)); x")
	if !got.Success() || got.text() != "1" || !strings.Contains(got.stderr, "Uncaught Error: later") || !strings.Contains(got.stderr, "throw new Error('later')") || !strings.Contains(got.stderr, "7") {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
}

func testNodeInput(t *testing.T, e *env) {
	n := node(t, e)
	for range 2 {
		got := n.run(t, `
const fs = require('fs');
const lines = [];
for await (const line of require('readline').createInterface({input: process.stdin})) lines.push(line);
[fs.readFileSync(0).length, lines.length, await new Promise(done => process.stdin.on('end', () => done('end')).resume())]`)
		if got.text() != "[ 0, 0, 'end' ]" {
			t.Errorf("%+v, error %+v", got, got.Error)
		}
	}
}

func testNodeEnds(t *testing.T, e *env) {
	node(t, e).ends(t, "var x = 1", "'x' in globalThis", "false", []end{
		{"process.stdout.write('last'); process.exit(3)", "the interpreter exited with code 3"},
		{"process.stdout.write('last'); setTimeout(() => process.exit(4)); await new Promise(() => {})", "the interpreter exited with code 4"},
		{"process.stdout.write('last'); process.abort()", "the interpreter was killed by signal 6 (aborted)"},
		{"process.stdout.write('last'); process.kill(process.pid, 'SIGSEGV'); while (true);", "the interpreter was killed by signal 11 (segmentation fault)"},
		{"process.stdout.write('last'); require('child_process').spawn('sleep', ['1000'], {stdio: 'inherit'}); process.exit(5)", "the interpreter exited with code 5"},
		{"display('shown'); process.stdout.write('last'); process.reallyExit(6)", "the interpreter exited with code 6"},
	})
}

// A heap of node has a limit of its own, below that of the sandbox.
func testNodeHeap(t *testing.T, e *env) {
	n := node(t, e)
	_, err := n.sb.CreateContext(guarded(t), sandpit.NewContext{ID: "small", Language: n.language, Env: []string{"NODE_OPTIONS=--max-old-space-size=32"}})
	must(t, err)
	run := func(source string) coded {
		t.Helper()
		return runsIn(t, n.sb, sandpit.Code{Source: source, Context: "small"})
	}
	run("var x = 1")
	const why = "the interpreter was killed by signal 6 (aborted)"
	got := run("process.stdout.write('last'); const all = []; while (true) all.push(new Array(1000).fill(0.5))")
	if got.InterpreterEnd != why || !strings.HasPrefix(got.stdout, "last") || !strings.Contains(got.stderr, "heap out of memory") || got.Success() {
		t.Errorf("%+v", got)
	}
	if got = run("'x' in globalThis"); got.text() != "false" || !strings.HasSuffix(got.StateLost, why) {
		t.Errorf("after that: %+v", got)
	}
}

func testNodeMemory(t *testing.T, e *env) {
	node(t, e).memory(t, e, "var x = 1", "console.log('last'); const y = Buffer.alloc(1 << 30, 1)", "'x' in globalThis", "false")
}

func testNodeTimeout(t *testing.T, e *env) {
	n := node(t, e)
	n.run(t, "var x = 1")
	for _, source := range []string{
		"while (true);",
		"try { while (true); } catch { x = 2 } finally { x = 3 }",
		"await new Promise(() => {})",
		"await null; while (true);",
		"setTimeout(() => { while (true); }); await new Promise(() => {})",
		"while (true) await null",
		"process.nextTick(() => { while (true); }); await new Promise(() => {})",
		"Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
		"require('child_process').execSync('sleep 1000')",
		"({[Symbol.for('Jupyter.display')]() { while (true); }})",
	} {
		if got := n.late(t, source); got.Error == nil {
			t.Errorf("%q: %+v", source, got)
		}
	}
	if got := n.run(t, "x"); got.text() != "1" || got.StateLost != "" {
		t.Errorf("after interrupts x is %q, %+v", got.text(), got)
	}
	var out written
	var wg sync.WaitGroup
	wg.Go(func() {
		got, err := n.sb.RunCode(guarded(t), sandpit.Code{Source: "console.log('begun'); while (true);", Language: n.language, Stdout: &out})
		if err != nil || got.Error == nil || got.Error.Name != "Interrupted" || got.InterpreterEnd != "" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	eventually(t, "the run has begun", func() bool { return strings.Contains(out.String(), "begun") })
	must(t, n.sb.InterruptContext(guarded(t), sandpit.JavaScript))
	wg.Wait()
	if got := n.run(t, "x"); got.text() != "1" {
		t.Errorf("after an interrupt x is %q", got.text())
	}
}

func testNodeChannel(t *testing.T, e *env) {
	n := node(t, e)
	n.run(t, "1")
	for source, ended := range map[string]bool{
		"require('fs').closeSync(1); require('fs').closeSync(2)":                                                                     false,
		"process.stdout.destroy(); process.stderr.end()":                                                                             false,
		"delete globalThis.console; process.removeAllListeners()":                                                                    false,
		"Object.defineProperty(process, 'stdout', {value: null})":                                                                    false,
		"JSON.stringify = String.prototype.split = null":                                                                             false,
		"Promise.prototype.then = Promise = null":                                                                                    false,
		"process._getActiveHandles().forEach(h => h.destroy?.())":                                                                    false,
		"for (let fd = 3; fd < 60; fd++) try { require('fs').writeSync(fd, '\\0{}\\n[[\\n') } catch {}\nawait new Promise(() => {})": true,
	} {
		must(t, n.sb.RestartContext(guarded(t), sandpit.JavaScript))
		got, err := runCode(guarded(t), n.sb, sandpit.Code{Source: source, Language: n.language, Timeout: time.Minute})
		if err != nil || (got.InterpreterEnd != "") != ended {
			t.Errorf("%q: %+v, error %+v, %v", source, got, got.Error, err)
		}
		// What the code has broken can make a run fail.
		if got := n.run(t, "6 * 7"); got.text() != "42" && got.Error == nil || got.InterpreterEnd != "" || (got.StateLost != "") != ended {
			t.Errorf("after %q: %+v, error %+v", source, got, got.Error)
		}
	}
	must(t, n.sb.RestartContext(guarded(t), sandpit.JavaScript))
	n.run(t, "require('fs').closeSync(1); require('fs').closeSync(0)")
	if got := n.run(t, "console.log(42); 1"); !got.Success() || got.text() != "1" || got.StateLost != "" {
		t.Errorf("after it has closed its output: %+v, error %+v", got, got.Error)
	}
}

func testTypeScript(t *testing.T, e *env) {
	n := program(t, e, "node", sandpit.TypeScript)
	const source = "import type { X } from './missing'\ninterface P { a: number }\nconst p: P = { a: 41 }\np.a + 1"
	if can := run(t, n.sb, sandpit.Command{Argv: []string{"node", "-p", "!!require('module').stripTypeScriptTypes"}}); strings.TrimSpace(string(can.Stdout)) != "true" {
		_, err := n.sb.RunCode(guarded(t), sandpit.Code{Source: source, Language: sandpit.TypeScript})
		wantKind(t, err, sandpit.ErrNotFound)
		if err != nil && (!strings.Contains(err.Error(), "no interpreter for typescript: its node can't run it") || !strings.Contains(sandpit.Hint(err), "node 22.13")) {
			t.Errorf("%v; hint: %s", err, sandpit.Hint(err))
		}
		return
	}
	got := n.run(t, source)
	if !got.Success() || got.text() != "42" {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
}

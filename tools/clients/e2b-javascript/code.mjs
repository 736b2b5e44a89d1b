// Uses the code interpreter of E2B, unmodified, against a server of Sandpit, and reports on its methods. The environment
// says where the server is.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { NotFoundError, Sandbox, TimeoutError } from '@e2b/code-interpreter'
import { Sandbox as Base } from 'e2b'
import { Report, since } from './report.mjs'

const types = 'node_modules/@e2b/code-interpreter'
const report = new Report('@e2b/code-interpreter (JavaScript)', JSON.parse(readFileSync(`${types}/package.json`, 'utf8')).version, `${types}/dist/index.d.ts`)
report.class('Sandbox', Sandbox, Sandbox.prototype, ['Sandbox'], Base)

// A figure as matplotlib makes one, which is not everywhere where this runs.
const figure = `
import sys, types
class Figure:
    def savefig(self, to, **options): to.write(b"\\x89PNG")
class Wedge:
    theta1, theta2, r = 0, 90, 1
    def get_label(self): return "u"
axes = types.SimpleNamespace(containers=[], patches=[Wedge()], collections=[], lines=[], get_title=lambda: "T")
sys.modules["matplotlib.figure"] = types.SimpleNamespace(Figure=Figure)
figure = Figure()
figure.axes = [axes]
figure`

const sbx = await Sandbox.create({ timeoutMs: 600_000 })
try {
  await report.works('Sandbox#runCode', code)
  if ('handleRequestError' in Sandbox.prototype) await ends() // old versions can't tell
  await languages()
  if (since(report.version, '2.3.0')) {
    await report.works('Sandbox#createCodeContext Sandbox#listCodeContexts Sandbox#restartCodeContext Sandbox#removeCodeContext', contexts)
  } else {
    await report.lacks('this version sends no access token', 'Sandbox#createCodeContext', () => assert.rejects(sbx.createCodeContext({ language: 'python' }), /401/))
  }
} finally {
  await sbx.kill()
}
await assert.rejects(sbx.runCode('1'), TimeoutError)
report.end()
process.exit(0) // the SDK has timers left

async function code() {
  const first = await sbx.runCode('x = 1; x += 1; x')
  assert.deepEqual([first.text, first.results.length, first.error], ['2', 1, undefined])
  assert.equal((await sbx.runCode("'quoted'")).text, 'quoted')
  const pieces = []
  await sbx.runCode('print(1)', { onStdout: (m) => { pieces.push(m.line) } })
  assert.deepEqual(pieces, ['1\n'])
  let seen = ''
  const second = await sbx.runCode('import sys\nprint("hü", x)\nprint("problem", file=sys.stderr)', { onStdout: (m) => { seen += m.line } })
  assert.deepEqual([second.logs.stdout.join(''), second.logs.stderr.join(''), seen, second.text], ['hü 2\n', 'problem\n', 'hü 2\n', undefined])
  const failed = await sbx.runCode('1/0')
  assert.deepEqual([failed.error.name, failed.error.value], ['ZeroDivisionError', 'division by zero'])
  assert.match(failed.error.traceback, /1\/0/)
  const rich = await sbx.runCode('class A:\n  def _repr_html_(self): return "<b>x</b>"\nA()')
  assert.equal(rich.results[0].html, '<b>x</b>')
  const shown = (await sbx.runCode(figure)).results[0]
  assert.deepEqual([shown.png, shown.chart.type, shown.chart.title, shown.chart.elements], ['iVBORw==', 'pie', 'T', [{ label: 'u', angle: 90, radius: 1 }]])
  assert.equal((await sbx.runCode('import os; os.environ["A"]', { envs: { A: 'b' } })).text, 'b')

  await assert.rejects(sbx.runCode('import time; time.sleep(1000)', { timeoutMs: 2000 }), TimeoutError)
  assert.equal((await sbx.runCode('1 + 1')).text, '2')
  assert.equal((await sbx.runCode('import sys; z = 7; sys.exit()')).error, undefined)
  const left = await sbx.runCode('sys.exit(3)')
  assert.deepEqual([left.error.name, left.error.value, (await sbx.runCode('z')).text], ['SystemExit', '3', '7'])
  assert.equal((await sbx.runCode('import os; os._exit(3)')).error.name, 'InterpreterEnded')
  assert.equal((await sbx.runCode('2 + 2')).text, '4')
}

// A run and a command that meet the end of their sandbox, by a kill or at its time-out.
async function ends() {
  for (const [timeoutMs, cut] of [[600_000, (box) => box.kill()], [4000, () => {}], [600_000, (box) => box.setTimeout(0)]]) {
    const box = await Sandbox.create({ timeoutMs })
    const handle = await box.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
    const ended = assert.rejects(handle.wait(), (e) => e instanceof TimeoutError && !/exceeding 'timeoutMs'/.test(e.message))
    let done
    const begun = () => { done ??= cut(box) }
    await assert.rejects(box.runCode("import time\nprint('begun')\ntime.sleep(1000)", { onStdout: begun }), (e) => e instanceof TimeoutError && /sandbox was killed/.test(e.message))
    await Promise.all([ended, done])
    assert.equal(await box.isRunning(), false)
  }
}

async function contexts() {
  const made = await sbx.createCodeContext({ cwd: '/tmp/made/for/code' })
  assert.equal((await sbx.runCode('import os; os.getcwd()', { context: made })).text, '/tmp/made/for/code')
  if (sbx.removeCodeContext) await sbx.removeCodeContext(made) // not in old versions
  const context = await sbx.createCodeContext({ cwd: '/tmp', language: 'python' })
  assert.deepEqual([context.language, context.cwd], ['python', '/tmp'])
  assert.equal((await sbx.runCode('import os; y = 3; os.getcwd()', { context })).text, '/tmp')
  assert.equal((await sbx.runCode('x', { context })).error.name, 'NameError')
  await sbx.restartCodeContext(context)
  assert.equal((await sbx.runCode('y', { context })).error.name, 'NameError')
  assert.ok((await sbx.listCodeContexts()).some((c) => c.id === context.id))
  await sbx.removeCodeContext(context)
  assert.ok(!(await sbx.listCodeContexts()).some((c) => c.id === context.id))
  await assert.rejects(sbx.runCode('1', { context }), NotFoundError)
  const node = await sbx.createCodeContext({ cwd: '/tmp', language: 'javascript' })
  assert.deepEqual([node.language, (await sbx.runCode('process.cwd()', { context: node })).text], ['javascript', '/tmp'])
}

async function languages() {
  const lacking = await Sandbox.create({ timeoutMs: 600_000, envs: { PATH: '/nowhere' } })
  assert.match((await lacking.runCode('1', { language: 'javascript' })).error.value, /the sandbox has no interpreter for javascript/)
  await lacking.kill()
  const js = await sbx.runCode("const n = 20; console.log('hü'); (await Promise.resolve(n)) + 1", { language: 'js' })
  assert.deepEqual([js.text, js.logs.stdout.join(''), js.error], ['21', 'hü\n', undefined])
  assert.equal((await sbx.runCode("import os from 'node:os'; const n = 2; n + os.EOL.length", { language: 'javascript' })).text, '3')
  assert.deepEqual((({ name, value }) => [name, value])((await sbx.runCode("throw new RangeError('r')", { language: 'js' })).error), ['RangeError', 'r'])
  const ts = await sbx.runCode('const s: string = "typed"; s', { language: 'ts' }) // which an older node can't
  assert.ok(ts.text === 'typed' || /its node can't run it/.test(ts.error.value), JSON.stringify(ts))
  const r = await sbx.runCode('x <- 2\nplot(x)\nx + 1', { language: 'r' })
  assert.deepEqual([r.text, r.results.length, r.results[1].png.slice(0, 8), r.error], ['[1] 3', 2, 'iVBORw0K', undefined])
  assert.equal((await sbx.runCode('stop("no")', { language: 'r' })).error.value, 'no')
  assert.equal((await sbx.runCode('x=5; cd /tmp', { language: 'bash' })).error, undefined)
  const shell = await sbx.runCode('echo "$x $PWD"; (exit 7)', { language: 'bash' })
  assert.deepEqual([shell.logs.stdout.join(''), shell.error.name, shell.error.value], ['5 /tmp\n', '', '7'])
}

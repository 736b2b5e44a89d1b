// Uses the code interpreter of E2B, unmodified, against a server of Sandpit. The environment says where that is.
import assert from 'node:assert/strict'
import { NotFoundError, Sandbox, TimeoutError } from '@e2b/code-interpreter'

const sbx = await Sandbox.create({ timeoutMs: 600_000 })
try {
  const first = await sbx.runCode('x = 1; x += 1; x')
  assert.deepEqual([first.text, first.results.length, first.error], ['2', 1, undefined])
  let seen = ''
  const second = await sbx.runCode('import sys\nprint("hü", x)\nprint("problem", file=sys.stderr)', { onStdout: (m) => { seen += m.line } })
  assert.deepEqual([second.logs.stdout.join(''), second.logs.stderr.join(''), seen, second.text], ['hü 2\n', 'problem\n', 'hü 2\n', undefined])
  const failed = await sbx.runCode('1/0')
  assert.deepEqual([failed.error.name, failed.error.value], ['ZeroDivisionError', 'division by zero'])
  assert.match(failed.error.traceback, /1\/0/)
  const rich = await sbx.runCode('class A:\n  def _repr_html_(self): return "<b>x</b>"\nA()')
  assert.equal(rich.results[0].html, '<b>x</b>')
  assert.equal((await sbx.runCode('import os; os.environ["A"]', { envs: { A: 'b' } })).text, "'b'")

  const context = await sbx.createCodeContext({ cwd: '/tmp', language: 'python' })
  assert.deepEqual([context.language, context.cwd], ['python', '/tmp'])
  assert.equal((await sbx.runCode('import os; y = 3; os.getcwd()', { context })).text, "'/tmp'")
  assert.equal((await sbx.runCode('x', { context })).error.name, 'NameError')
  await sbx.restartCodeContext(context)
  assert.equal((await sbx.runCode('y', { context })).error.name, 'NameError')
  assert.ok((await sbx.listCodeContexts()).some((c) => c.id === context.id))
  await sbx.removeCodeContext(context)
  assert.ok(!(await sbx.listCodeContexts()).some((c) => c.id === context.id))
  await assert.rejects(sbx.runCode('1', { context }), NotFoundError)

  await assert.rejects(sbx.runCode('import time; time.sleep(1000)', { timeoutMs: 2000 }), TimeoutError)
  assert.equal((await sbx.runCode('1 + 1')).text, '2')
  assert.equal((await sbx.runCode('import os; os._exit(3)')).error.name, 'InterpreterEnded')
  assert.equal((await sbx.runCode('2 + 2')).text, '4')
} finally {
  await sbx.kill()
}
await assert.rejects(sbx.runCode('1'), TimeoutError)
process.exit(0) // the SDK has timers left

// Uses the SDK of E2B, unmodified, against a server of Sandpit. The environment says where that is.
import assert from 'node:assert/strict'
import { CommandExitError, Sandbox, SandboxError, TimeoutError } from 'e2b'

// fails returns the error of a promise, which must be of a class.
async function fails(kind, promise) {
  const error = await promise.then(() => undefined, (e) => e)
  assert.ok(error instanceof kind, `${error?.stack ?? 'no error'}, want ${kind.name}`)
  return error
}

const sbx = await Sandbox.create({ metadata: { suite: 'a b/ü' }, envs: { FOO: 'bär' }, timeoutMs: 600_000 })
try {
  await processes()
  await terminals()
  await life()
} finally {
  assert.equal(await sbx.kill(), true)
}
assert.equal(await sbx.isRunning(), false)
assert.equal(await Sandbox.kill(sbx.sandboxId), false)
assert.match((await fails(SandboxError, sbx.commands.run('true'))).message, /not running/)
await fails(SandboxError, Sandbox.connect(sbx.sandboxId))
assert.match((await fails(SandboxError, Sandbox.create('no-such-template'))).message, /no-such-template/)
assert.match((await fails(SandboxError, Sandbox.create({ volumeMounts: { '/data': 'vol' } }))).message, /volumes are not supported/)

async function processes() {
  const { commands } = sbx
  const run = await commands.run('echo "$FOO $X"; pwd; echo problem >&2', { envs: { X: 'y' }, cwd: '/tmp' })
  assert.deepEqual(run, { exitCode: 0, error: undefined, stdout: 'bär y\n/tmp\n', stderr: 'problem\n' })
  const failed = await fails(CommandExitError, commands.run('echo out; exit 3'))
  assert.deepEqual([failed.exitCode, failed.stdout, failed.error], [3, 'out\n', 'exit status 3'])
  await fails(TimeoutError, commands.run('sleep 1000', { timeoutMs: 1000 }))
  await fails(SandboxError, commands.run('true', { cwd: '/nonesuch' }))

  const large = await commands.run('head -c 3000001 /dev/zero | tr "\\0" x')
  assert.equal(large.stdout.length, 3000001)

  let seen = ''
  const cat = await commands.run('cat; echo end', { background: true, stdin: true, onStdout: (s) => { seen += s } })
  await commands.sendStdin(cat.pid, 'liné\n')
  const listed = (await commands.list()).find((p) => p.pid === cat.pid)
  assert.deepEqual([listed.cmd, listed.args], ['/bin/bash', ['-l', '-c', 'cat; echo end']])
  await commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'liné\nend\n')
  assert.equal(seen, 'liné\nend\n')

  const sleep = await commands.run('sleep 1000', { background: true })
  await sleep.disconnect()
  const again = await commands.connect(sleep.pid)
  assert.equal(await commands.kill(sleep.pid), true)
  assert.match((await fails(CommandExitError, again.wait())).message, /killed/)
  assert.equal(await commands.kill(sleep.pid), false)
  assert.ok(!(await commands.list()).some((p) => p.pid === sleep.pid))
}

async function terminals() {
  let seen = ''
  const term = await sbx.pty.create({ cols: 90, rows: 30, onData: (b) => { seen += Buffer.from(b).toString() } })
  await sbx.pty.resize(term.pid, { cols: 91, rows: 31 })
  await sbx.pty.sendInput(term.pid, new TextEncoder().encode('stty size; exit 0\n'))
  assert.equal((await term.wait()).exitCode, 0)
  assert.match(seen, /31 91/)
}

async function life() {
  const info = await sbx.getInfo()
  assert.deepEqual([info.sandboxId, info.templateId, info.state, info.metadata], [sbx.sandboxId, 'base', 'running', { suite: 'a b/ü' }])
  await sbx.setTimeout(1_200_000)
  assert.ok((await sbx.getInfo()).endAt - info.endAt > 500_000)
  assert.deepEqual((await Sandbox.list({ query: { metadata: { suite: 'a b/ü' }, state: ['running'] } }).nextItems()).map((s) => s.sandboxId), [sbx.sandboxId])
  assert.deepEqual(await Sandbox.list({ query: { metadata: { suite: 'other' } } }).nextItems(), [])

  const second = await Sandbox.create({ timeoutMs: 600_000, lifecycle: { onTimeout: 'pause' } })
  try {
    assert.deepEqual((await second.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: false })
    const pages = Sandbox.list({ limit: 1 })
    const ids = [...(await pages.nextItems()), ...(await pages.nextItems())].map((s) => s.sandboxId)
    assert.deepEqual(ids, [second.sandboxId, sbx.sandboxId])
  } finally {
    await second.kill()
  }

  assert.equal(await sbx.pause(), true)
  assert.equal(await sbx.pause(), false)
  assert.equal(await sbx.isRunning(), false)
  assert.equal((await sbx.getInfo()).state, 'paused')
  const resumed = await Sandbox.connect(sbx.sandboxId)
  assert.equal((await resumed.commands.run('echo back')).stdout, 'back\n')
  const metrics = await sbx.getMetrics()
  assert.ok(metrics.length > 0 && metrics[0].memTotal > 0)
}

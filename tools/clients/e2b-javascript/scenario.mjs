// Uses the SDK of E2B, unmodified, against a server of Sandpit. The environment says where that is.
import assert from 'node:assert/strict'
import { CommandExitError, FileNotFoundError, InvalidArgumentError, Sandbox, SandboxError, TimeoutError, Volume } from 'e2b'

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
  await files()
  await signatures()
  await watch()
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

  const third = await Sandbox.create({ timeoutMs: 600_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  try {
    assert.equal(await third.pause(), true)
    assert.equal((await third.commands.run('echo resumed')).stdout, 'resumed\n')
  } finally {
    await third.kill()
  }

  for (const lacking of [() => sbx.createSnapshot(), () => sbx.fork(), () => Sandbox.listSnapshots().nextItems(), () => Volume.create('v'), () => Volume.list()]) {
    assert.match((await fails(Error, lacking())).message, /^501: .* not supported by this server/)
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

async function files() {
  const { files } = sbx
  const name = 'dir/ü "x" 100%.txt'
  const info = await files.write(name, 'héllo')
  assert.deepEqual([info.path, info.name], [`/home/user/${name}`, 'ü "x" 100%.txt'])
  assert.equal(await files.read(`/home/user/${name}`), 'héllo')
  const two = await files.write([{ path: '/tmp/t/1', data: 'a' }, { path: '/tmp/t/sub/2', data: new Uint8Array([0, 255]).buffer }])
  assert.deepEqual(two.map((f) => f.path), ['/tmp/t/1', '/tmp/t/sub/2'])
  assert.deepEqual(await files.read('/tmp/t/sub/2', { format: 'bytes' }), new Uint8Array([0, 255]))
  await files.write('/tmp/t/empty', '')
  assert.equal(await files.read('/tmp/t/empty'), '')

  const large = new Uint8Array(3_000_001).map((_, i) => i * 7)
  for (const gzip of [false, true]) {
    await files.write('/tmp/large', large.buffer, { gzip })
    assert.ok(Buffer.from(await files.read('/tmp/large', { format: 'bytes', gzip })).equals(Buffer.from(large)))
  }
  let size = 0
  for await (const piece of await files.read('/tmp/large', { format: 'stream' })) size += piece.length
  assert.equal(size, large.length)

  assert.deepEqual((await files.list('/tmp/t')).map((e) => [e.name, e.type]), [['1', 'file'], ['empty', 'file'], ['sub', 'dir']])
  assert.deepEqual((await files.list('/tmp/t', { depth: 2 })).map((e) => e.path), ['/tmp/t/1', '/tmp/t/empty', '/tmp/t/sub', '/tmp/t/sub/2'])
  assert.equal(await files.makeDir('/tmp/t/new/deep'), true)
  assert.equal(await files.makeDir('/tmp/t/new/deep'), false)
  assert.equal((await files.rename('/tmp/t/1', '/tmp/t/other/one')).path, '/tmp/t/other/one')
  assert.deepEqual([await files.exists('/tmp/t/1'), await files.exists('/tmp/t/other/one')], [false, true])
  await sbx.commands.run('ln -s other /tmp/t/link')
  const link = await files.getInfo('/tmp/t/link')
  assert.deepEqual([link.type, link.symlinkTarget, link.owner], ['dir', '/tmp/t/other', 'user'])
  assert.deepEqual((await files.list('/tmp/t/link')).map((e) => e.path), ['/tmp/t/link/one'])
  await files.remove('/tmp/t')
  assert.equal(await files.exists('/tmp/t'), false)

  if (process.getuid() === 0) { // otherwise only one user exists in a sandbox
    await files.write('/etc/of-root', 'x', { user: 'root' })
    assert.equal((await files.getInfo('/etc/of-root')).owner, 'root')
    assert.equal((await sbx.commands.run('id -u', { user: 'root' })).stdout, '0\n')
    await fails(SandboxError, files.remove('/etc/of-root'))
  }
  await fails(SandboxError, files.exists('/tmp', { user: 'nobody-at-all' }))
  await fails(FileNotFoundError, files.read('/nonesuch'))
  await fails(FileNotFoundError, files.list('/nonesuch'))
  await fails(FileNotFoundError, files.getInfo('/nonesuch'))
  await fails(InvalidArgumentError, files.list('/etc/passwd'))
  await fails(InvalidArgumentError, files.read('/tmp'))
  await fails(SandboxError, files.write('/etc/x', 'x'))
  await fails(SandboxError, files.write('/tmp/x', 'x', { metadata: { a: 'b' } }))
}

async function watch() {
  await sbx.files.makeDir('/tmp/w')
  await fails(FileNotFoundError, sbx.files.watchDir('/nonesuch', () => {}))
  const seen = []
  let removed
  const done = new Promise((resolve) => { removed = resolve })
  const handle = await sbx.files.watchDir('/tmp/w', (e) => {
    seen.push(`${e.name} ${e.type}`)
    if (e.type === 'remove') removed()
  }, { recursive: true })
  await sbx.files.write('/tmp/w/a', 'x')
  await sbx.commands.run('mv /tmp/w/a /tmp/w/b; chmod 600 /tmp/w/b; rm /tmp/w/b')
  await done
  assert.deepEqual(seen, ['a create', 'a write', 'a rename', 'b create', 'b chmod', 'b remove'])
  await handle.stop()
}

async function signatures() {
  const form = new FormData()
  form.append('file', new Blob(['signed']), 'ignored')
  const up = await fetch(await sbx.uploadUrl('/tmp/sïgned', { useSignatureExpiration: 600 }), { method: 'POST', body: form })
  assert.equal(up.status, 200, await up.text())
  const url = await sbx.downloadUrl('/tmp/sïgned')
  assert.equal(await (await fetch(url)).text(), 'signed')
  const again = await Sandbox.connect(sbx.sandboxId)
  assert.equal(await (await fetch(await again.downloadUrl('/tmp/sïgned', { user: 'user', useSignatureExpiration: 600 }))).text(), 'signed')
  const others = [url.replace('path=', 'path=/etc/passwd&x='), url.replace('signature=v1_', 'signature=v1_x'), await sbx.downloadUrl('/tmp/sïgned', { useSignatureExpiration: -10 })]
  for (const other of others) assert.equal((await fetch(other)).status, 401, other)
  assert.equal((await fetch(url, { method: 'POST', body: form })).status, 401)
}

// Uses the SDK of E2B, unmodified, in cases that its documentation does not show. The argument names a part; "long" as
// the next one has it work on more. The environment says where the server is.
import assert from 'node:assert/strict'
import { createInterface } from 'node:readline'
import { CommandExitError, FileNotFoundError, Sandbox, SandboxError, SandboxNotFoundError } from 'e2b'

const [part, ...args] = process.argv.slice(2)
const long = args.includes('long')

// fails returns the error of a promise, which must be of a class.
async function fails(kind, promise) {
  const error = await promise.then(() => undefined, (e) => e)
  assert.ok(error instanceof kind, `${error?.stack ?? 'no error'}, want ${kind.name}`)
  return error
}

// until waits until a condition holds.
async function until(condition) {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 50))
}

const parts = {
  async content() {
    const sbx = await Sandbox.create({ timeoutMs: 600_000 })
    try {
      const bytes = new Uint8Array(256).map((_, i) => i)
      for (const name of ['a\nb', ' ü ☃ 🎉 ', 'quote"\'\\', '-rf', '%41 +&=', 'tab\t', '$(id)`']) {
        const path = `/tmp/names/${name}`
        assert.equal((await sbx.files.write(path, bytes.buffer)).path, path)
        assert.deepEqual(await sbx.files.read(path, { format: 'bytes' }), bytes)
        assert.equal((await sbx.files.getInfo(path)).name, name)
        assert.deepEqual((await sbx.files.list('/tmp/names')).map((e) => e.name), [name])
        const moved = await sbx.files.rename(path, `/tmp/moved/${name}`)
        assert.equal(moved.name, name)
        await sbx.files.remove(moved.path)
      }
      const text = 'aü☃🎉'.repeat(long ? 2_000_000 : 200_000)
      await sbx.files.write('/tmp/text', text)
      assert.ok((await sbx.commands.run('cat /tmp/text')).stdout === text)
      const size = long ? 100_000_000 : 5_000_000
      assert.equal((await sbx.commands.run(`head -c ${size} /dev/zero | tr '\\0' x`)).stdout.length, size)
      const large = Buffer.alloc(size, 'large ')
      await sbx.files.write('/tmp/large', large.buffer.slice(large.byteOffset, large.byteOffset + size))
      assert.ok(Buffer.from(await sbx.files.read('/tmp/large', { format: 'bytes' })).equals(large))
    } finally {
      await sbx.kill()
    }
  },

  async watch() {
    const count = long ? 5000 : 200
    const sbx = await Sandbox.create({ timeoutMs: 600_000 })
    try {
      await sbx.files.makeDir('/tmp/w')
      const made = new Set()
      const handle = await sbx.files.watchDir('/tmp/w', (e) => { if (e.type === 'create') made.add(e.name) })
      await sbx.commands.run(`for i in $(seq ${count}); do echo $i > /tmp/w/$i; done`)
      await until(() => made.size === count)
      await handle.stop()
    } finally {
      await sbx.kill()
    }
  },

  async ends() {
    const sbx = await Sandbox.create({ timeoutMs: 600_000 })
    const running = await sbx.commands.run('sleep 1000', { background: true })
    const waiting = fails(SandboxError, running.wait())
    const watcher = await sbx.files.watchDir('/tmp', () => {}, { onExit: () => {} })
    assert.equal(await (await Sandbox.connect(sbx.sandboxId)).kill(), true)
    await waiting
    await watcher.stop()
    await fails(SandboxError, sbx.files.read('/tmp/x'))

    const short = await Sandbox.create({ timeoutMs: 600_000 })
    await short.setTimeout(1000)
    await until(async () => !(await short.isRunning()))
    await fails(SandboxError, short.commands.run('true'))
    await fails(SandboxNotFoundError, short.setTimeout(1000))
    await fails(SandboxNotFoundError, Sandbox.connect(short.sandboxId))
    await short.kill() // whether it is just being removed, or is gone
  },

  async many() {
    const all = await Promise.all(Array.from({ length: long ? 50 : 12 }, async (_, i) => {
      const sbx = await Sandbox.create({ timeoutMs: 600_000, metadata: { many: String(i) } })
      await sbx.files.write('mine', String(i))
      assert.equal((await sbx.commands.run('cat mine')).stdout, String(i))
      return sbx
    }))
    assert.equal(new Set(all.map((sbx) => sbx.sandboxId)).size, all.length)
    await Promise.all(all.map((sbx) => sbx.kill()))
  },

  async tenants() {
    const other = { apiKey: process.env.OTHER_KEY }
    const sbx = await Sandbox.create({ timeoutMs: 600_000 })
    const theirs = await Sandbox.create({ ...other, timeoutMs: 600_000 })
    try {
      assert.deepEqual((await Sandbox.list(other).nextItems()).map((s) => s.sandboxId), [theirs.sandboxId])
      await fails(SandboxNotFoundError, Sandbox.connect(sbx.sandboxId, other))
      await fails(SandboxNotFoundError, Sandbox.getInfo(sbx.sandboxId, other))
      await fails(SandboxNotFoundError, Sandbox.setTimeout(sbx.sandboxId, 1000, other))
      await fails(SandboxNotFoundError, Sandbox.pause(sbx.sandboxId, other))
      assert.equal(await Sandbox.kill(sbx.sandboxId, other), false)
      await sbx.files.write('/tmp/secret', 'mine')
      await fails(FileNotFoundError, theirs.files.read('/tmp/secret'))
      const url = (await sbx.downloadUrl('/tmp/secret')).replace(/signature=[^&]*/, (await theirs.downloadUrl('/tmp/secret')).match(/signature=[^&]*/)[0])
      assert.notEqual((await fetch(url)).status, 200)
      assert.ok(await sbx.isRunning())
    } finally {
      await theirs.kill()
      await sbx.kill()
    }
  },

  // Makes a sandbox, for the SDK of another language.
  async make() {
    const sbx = await Sandbox.create({ timeoutMs: 600_000 })
    await sbx.files.write('from', 'JavaScript')
    await (await sbx.commands.run('sleep 1000', { background: true })).disconnect()
    console.log(sbx.sandboxId)
  },

  // Waits at a prompt while the server is killed and started again.
  async survive() {
    const sbx = await Sandbox.create({ timeoutMs: 600_000 })
    await sbx.files.write('kept', 'content')
    const url = await sbx.downloadUrl('kept')
    const running = await sbx.commands.run('echo one; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo two; exit 7', { background: true })
    const broken = fails(Error, running.wait())
    await sbx.commands.run('true')
    console.log('ready')
    for await (const _ of createInterface({ input: process.stdin })) break
    await broken
    await until(() => sbx.isRunning().catch(() => false))
    assert.equal(await sbx.files.read('kept'), 'content')
    assert.equal(await (await fetch(url)).text(), 'content')
    assert.ok((await sbx.commands.list()).some((p) => p.pid === running.pid))
    const again = await sbx.commands.connect(running.pid)
    await sbx.files.write('/tmp/go', '')
    const end = await fails(CommandExitError, again.wait())
    assert.deepEqual([end.exitCode, end.stdout], [7, 'two\n'])
    assert.deepEqual((await Sandbox.list().nextItems()).map((s) => s.sandboxId), [sbx.sandboxId])
    assert.equal(await sbx.kill(), true)
  },
}

await parts[part]()

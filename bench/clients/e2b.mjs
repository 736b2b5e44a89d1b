// The SDK of E2B, unmodified.
import { Sandbox } from '@e2b/code-interpreter'
import { check, content, creator, once, serve } from './turns.mjs'

const succeed = async (sandbox) => check((await sandbox.commands.run('true')).exitCode === 0, 'the command has failed')

const make = async () => {
  const sandbox = await Sandbox.create({ timeoutMs: 600_000 })
  await succeed(sandbox)
  return sandbox
}

let sandbox
await serve({
  open: async () => { sandbox = await make() },
  close: async () => { await sandbox.kill() },
  create: creator(make, (made) => made.kill()),
  exec: async () => [(await once(() => succeed(sandbox)))[0]],
  up: async (size) => {
    const data = content(size)
    return [(await once(() => sandbox.files.write('/tmp/data', new Blob([data]), { useOctetStream: true })))[0]]
  },
  down: async (size) => {
    const [took, data] = await once(() => sandbox.files.read('/tmp/data', { format: 'bytes' }))
    check(data.length === size, `${data.length} bytes arrived of ${size}`)
    return [took]
  },
  code: async () => {
    const [took, run] = await once(() => sandbox.runCode('1+1'))
    check(run.text === '2', run.text)
    return [took]
  },
})

// The SDK of microsandbox, unmodified, with its cloud's API.
import { Sandbox } from 'microsandbox'
import { check, content, creator, once, serve } from './turns.mjs'

const succeed = async (sandbox) => check((await sandbox.exec('true')).code === 0, 'the command has failed')

let count = 0
const make = async () => {
  const sandbox = await Sandbox.builder(`js-${count++}`).image('microsandbox/python').memory(256).cpus(1).create()
  await succeed(sandbox)
  return sandbox
}

const remove = async (sandbox) => {
  await sandbox.stop()
  await Sandbox.remove(sandbox.name)
}

let sandbox
await serve({
  open: async () => { sandbox = await make() },
  close: async () => { await remove(sandbox) },
  create: creator(make, remove),
  exec: async () => [(await once(() => succeed(sandbox)))[0]],
  up: async (size) => {
    const data = content(size)
    return [(await once(() => sandbox.fs().write('/tmp/data', data)))[0]]
  },
  down: async (size) => {
    const [took, data] = await once(() => sandbox.fs().read('/tmp/data'))
    check(data.length === size, `${data.length} bytes arrived of ${size}`)
    return [took]
  },
})

// The same as with an SDK, by requests to /v1 of Sandpit.
import { check, content, creator, once, serve } from './turns.mjs'

// What the SDK makes, and the command as it sends it.
const spec = JSON.parse(process.env.SPEC)
const argv = JSON.parse(process.env.ARGV)

const headers = { authorization: `Bearer ${process.env.SANDPIT_KEY}` }

async function call(method, path, body) {
  const json = body !== undefined && !Buffer.isBuffer(body)
  const answer = await fetch(process.env.SANDPIT_URL + path, {
    method,
    headers: json ? { ...headers, 'content-type': 'application/json' } : headers,
    body: json ? JSON.stringify(body) : body,
  })
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`)
  return answer
}

const succeed = async (id) => check((await (await call('POST', `/v1/sandboxes/${id}/exec`, { argv })).json()).result.exit_code === 0, 'the command has failed')

const make = async () => {
  const { id } = await (await call('POST', '/v1/sandboxes', spec)).json()
  await succeed(id)
  return id
}

const remove = (id) => call('DELETE', `/v1/sandboxes/${id}`)

let sandbox
await serve({
  open: async () => { sandbox = await make() },
  close: async () => { await remove(sandbox) },
  create: creator(make, remove),
  exec: async () => [(await once(() => succeed(sandbox)))[0]],
  up: async (size) => {
    const data = content(size)
    return [(await once(async () => (await call('PUT', `/v1/sandboxes/${sandbox}/files?path=/tmp/data`, data)).arrayBuffer()))[0]]
  },
  down: async (size) => {
    const [took, data] = await once(async () => (await call('GET', `/v1/sandboxes/${sandbox}/files?path=/tmp/data`)).arrayBuffer())
    check(data.byteLength === size, `${data.byteLength} bytes arrived of ${size}`)
    return [took]
  },
  code: async () => {
    const [took, run] = await once(async () => (await call('POST', `/v1/sandboxes/${sandbox}/code`, { code: '1+1' })).json())
    check(run.outputs[0].text === '2', JSON.stringify(run))
    return [took]
  },
})

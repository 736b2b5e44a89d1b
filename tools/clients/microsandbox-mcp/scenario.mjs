// Uses microsandbox-mcp with the reference client of the Model Context Protocol at a server of Sandpit, and reports on each of its
// tools. The environment says where the server is.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import * as fsp from 'node:fs/promises'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'

const { version } = JSON.parse(readFileSync('node_modules/microsandbox-mcp/package.json', 'utf8'))
const client = new Client({ name: 'sandpit', version: '1' })
await client.connect(new StdioClientTransport({ command: process.execPath, args: ['--import', './sdk.mjs', 'node_modules/microsandbox-mcp/bin/microsandbox-mcp.js'], env: { ...process.env, MICROSANDBOX_MCP_ENABLE_DANGEROUS: '1' } }))
const tools = new Set((await client.listTools()).tools.map((tool) => tool.name))
const statuses = new Map()

// call calls a tool, and returns its result and whether it has failed.
async function call(name, args) {
  assert.ok(tools.has(name), name)
  const { isError, content } = await client.callTool({ name, arguments: args })
  let result = content[0].text
  try {
    result = JSON.parse(result)
  } catch {
    throw new Error(`${name}: ${result}`)
  }
  return [result, !!isError]
}

// works calls a tool that works, and returns its data.
async function works(name, args) {
  const [result, failed] = await call(name, args)
  assert.ok(!failed && result.ok, `${name}: ${JSON.stringify(result)}`)
  statuses.set(name, { status: 'works' })
  return result.data
}

// refused calls tools for which the SDK sends no request.
async function refused(reason, text, ...names) {
  for (const [name, args] of names) {
    const [result, failed] = await call(name, args)
    assert.ok(failed && text.test(result.error?.message), `${name}: ${JSON.stringify(result)}`)
    statuses.set(name, { status: 'refused by the client', reason })
  }
}

// lacks calls tools that the server refuses by name.
async function lacks(reason, ...names) {
  for (const [name, args] of names) {
    const [result, failed] = await call(name, args)
    assert.ok(failed && /501.* not supported by this server/.test(result.error?.message), `${name}: ${JSON.stringify(result)}`)
    statuses.set(name, { status: 'not yet', reason })
  }
}

const m = { name: 'm' }
assert.deepEqual(await works('sandbox_create', { ...m, image: 'microsandbox/python', env: { FOO: 'bär' }, memoryMib: 256, labels: { suite: 'mcp' } }), { name: 'm', status: 'running' })
const run = await works('sandbox_exec', { ...m, command: 'sh', args: ['-c', 'echo $FOO; echo problem >&2; exit 3'] })
assert.deepEqual([run.stdout, run.stderr, run.exitCode], ['bär\n', 'problem\n', 3])
assert.equal((await works('sandbox_shell', { ...m, command: 'cat', stdin: 'input' })).stdout, 'input')
const { execSessionId } = await works('sandbox_exec_start', { ...m, command: 'cat' })
await works('sandbox_exec_write_stdin', { execSessionId, data: 'liné\n' })
let seen = ''
for (let cursor = 0; !seen.includes('liné');) {
  const polled = await works('sandbox_exec_poll', { execSessionId, cursor })
  seen = JSON.stringify(polled)
}
await works('sandbox_exec_signal', { execSessionId, signal: 15 })
await works('sandbox_exec_close', { execSessionId })
assert.equal((await works('sandbox_list', {})).length, 1)
assert.equal((await works('sandbox_status', m))[0].status, 'running')
assert.equal((await works('sandbox_inspect', m)).config.image.reference, 'microsandbox/python')

await works('sandbox_fs_mkdir', { ...m, path: '/tmp/d' })
await works('sandbox_fs_write', { ...m, path: '/tmp/d/a', content: 'ä' })
assert.equal((await works('sandbox_fs_read', { ...m, path: '/tmp/d/a' })).content, 'ä')
await works('sandbox_fs_copy', { ...m, from: '/tmp/d/a', to: '/tmp/d/b' })
await works('sandbox_fs_rename', { ...m, from: '/tmp/d/b', to: '/tmp/d/c' })
assert.deepEqual((await works('sandbox_fs_list', { ...m, path: '/tmp/d' })).map((e) => e.path), ['/tmp/d/a', '/tmp/d/c'])
assert.equal(Number((await works('sandbox_fs_stat', { ...m, path: '/tmp/d/a' })).size), 2)
assert.match(JSON.stringify(await works('sandbox_fs_exists', { ...m, path: '/tmp/d/b' })), /false/)
await works('sandbox_fs_remove', { ...m, path: '/tmp/d/c' })
await fsp.writeFile('up', 'from the host')
await works('sandbox_fs_copy_from_host', { ...m, hostPath: 'up', guestPath: '/tmp/d/up' })
await works('sandbox_fs_copy_to_host', { ...m, guestPath: '/tmp/d/up', hostPath: 'down' })
assert.equal(await fsp.readFile('down', 'utf8'), 'from the host')

assert.match(JSON.stringify(await works('sandbox_ssh_exec', { ...m, command: 'echo over ssh' })), /over ssh/)
await works('sandbox_sftp_mkdir', { ...m, path: '/tmp/s' })
await works('sandbox_sftp_write', { ...m, path: '/tmp/s/a', content: 'x' })
assert.equal((await works('sandbox_sftp_read', { ...m, path: '/tmp/s/a' })).content, 'x')
await works('sandbox_sftp_rename', { ...m, from: '/tmp/s/a', to: '/tmp/s/b' })
await works('sandbox_sftp_symlink', { ...m, target: '/tmp/s/b', linkPath: '/tmp/s/l' })
assert.match(JSON.stringify(await works('sandbox_sftp_readlink', { ...m, path: '/tmp/s/l' })), /"\/tmp\/s\/b"/)
assert.match(JSON.stringify(await works('sandbox_sftp_realpath', { ...m, path: '/tmp/s/l' })), /"\/tmp\/s\/b"/)
await works('sandbox_sftp_remove', { ...m, path: '/tmp/s/l', kind: 'file' })
assert.match(JSON.stringify(await works('sandbox_logs_stream', { ...m, follow: true, followTimeoutMs: 60_000, limit: 1 })), /b[^]*r/)

const v = { name: 'v' }
const at = { ...v, path: '/x' }
await lacks('volumes', ['volume_create', v], ['volume_list', {}], ['volume_inspect', v], ['volume_remove', v], ['volume_fs_read', at], ['volume_fs_write', { ...at, content: 'x' }], ['volume_fs_list', at], ['volume_fs_mkdir', at], ['volume_fs_remove', at], ['volume_fs_copy', { ...v, from: '/x', to: '/y' }], ['volume_fs_rename', { ...v, from: '/x', to: '/y' }], ['volume_fs_stat', at], ['volume_fs_exists', at])
const local = /local backend|not supported by this backend/
const snapshot = { pathOrName: 'x' }
await refused('local only', local, ['sandbox_drain', m], ['sandbox_logs_read', m], ['sandbox_metrics', m], ['sandbox_metrics_all', {}], ['sandbox_metrics_stream', { ...m, samples: 1 }], ['image_list', {}], ['image_inspect', { reference: 'x' }], ['image_remove', { reference: 'x', confirm: true }], ['image_prune', { confirm: true }], ['sandbox_restore', { ...m, snapshot: 'x' }], ['snapshot_create', { name: 'x', fromSandbox: 'm' }], ['snapshot_list', {}], ['snapshot_inspect', snapshot], ['snapshot_verify', snapshot], ['snapshot_remove', { ...snapshot, confirm: true }], ['snapshot_reindex', {}], ['snapshot_save', { ...snapshot, out: 'x.tar' }], ['snapshot_load', { archive: 'up' }])
for (const name of ['runtime_check', 'runtime_install']) statuses.set(name, { status: 'refused by the client', reason: 'about a local runtime' })

await works('sandbox_stop', m)
assert.equal((await works('sandbox_status', m))[0].status, 'stopped')
await works('sandbox_wait', m)
await works('sandbox_start', m)
await works('sandbox_stop', m)
await works('sandbox_remove', m)
assert.equal((await works('sandbox_run', { image: 'microsandbox/python', command: 'echo once' })).stdout, 'once\n')
assert.deepEqual(await works('sandbox_list', {}), [])
await client.close()

assert.deepEqual([...tools].filter((name) => !statuses.has(name)), [], 'tools that are not reported')
for (const [method, status] of statuses) console.log(JSON.stringify({ client: 'microsandbox-mcp', version, method, ...status }))

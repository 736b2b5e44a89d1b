// Uses the SDK of E2B, unmodified, against a server of Sandpit, and reports on its methods. The environment says where
// the server is.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import http from 'node:http'
import https from 'node:https'
import * as e2b from 'e2b'
import { Report, since, unchecked } from './report.mjs'

const { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, SandboxError, Secret, TimeoutError, Volume } = e2b
const FileNotFoundError = e2b.FileNotFoundError ?? NotFoundError // in old versions
const { version } = JSON.parse(readFileSync('node_modules/e2b/package.json', 'utf8'))
const report = new Report('e2b (JavaScript)', version, 'node_modules/e2b/dist/index.d.ts')

// fails returns the error of a promise, which must be of a class.
async function fails(kind, promise) {
  const error = await promise.then(() => undefined, (e) => e)
  assert.ok(error instanceof kind, `${error?.stack ?? 'no error'}, want ${kind.name}`)
  return error
}

// lacks checks that the server refuses methods by name, as far as this version has them.
async function lacks(what, calls) {
  for (const [method, call] of Object.entries(calls)) {
    await report.lacks(what.split(' ').slice(0, -1).join(' '), method, async () =>
      assert.match((await fails(Error, call())).message, new RegExp(`^(501: )?.*${what} not supported by this server`)))
  }
}

const sbx = await Sandbox.create({ metadata: { suite: 'a b/ü' }, envs: { FOO: 'bär' }, timeoutMs: 600_000 })
report.class('Sandbox', Sandbox, Sandbox.prototype, ['Sandbox', 'SandboxApi', 'ClientFactory'])
const handle = await sbx.commands.run('sleep 1000', { background: true })
const watcher = await sbx.files.watchDir('/tmp', () => {})
for (const [name, value] of Object.entries({ CommandHandle: handle, WatchHandle: watcher, Filesystem: sbx.files, Commands: sbx.commands, Pty: sbx.pty, Git: sbx.git, SandboxPaginator: Sandbox.list(), SnapshotPaginator: Sandbox.listSnapshots?.(), SecretPaginator: Secret?.list() })) {
  if (value) report.class(name, null, Object.getPrototypeOf(value), [name, 'Paginator', 'BasePaginator'])
}
report.class('Volume', Volume, Volume?.prototype, ['Volume', 'ClientFactory'])
report.class('Secret', Secret, Secret?.prototype, ['Secret', 'ClientFactory'])
try {
  await watcher.stop()
  await handle.kill()
  await report.works('Commands#run Commands#list Commands#connect Commands#kill Commands#sendStdin Commands#closeStdin CommandHandle#wait CommandHandle#kill CommandHandle#disconnect CommandHandle#sendStdin CommandHandle#closeStdin', processes)
  await report.works('Pty#create Pty#connect Pty#kill Pty#resize Pty#sendInput', terminals)
  await report.works('Filesystem#read Filesystem#write Filesystem#writeFiles Filesystem#list Filesystem#makeDir Filesystem#rename Filesystem#remove Filesystem#exists Filesystem#getInfo', files)
  await report.works('Sandbox#uploadUrl Sandbox#downloadUrl', signatures)
  await report.works('Filesystem#watchDir WatchHandle#stop', watch)
  await report.works('Git#*', git)
  await report.works('Sandbox.betaCreate Sandbox#getInfo Sandbox.getInfo Sandbox.getFullInfo Sandbox#setTimeout Sandbox.setTimeout Sandbox#pause Sandbox.pause Sandbox#betaPause Sandbox.betaPause Sandbox#connect Sandbox.connect Sandbox#isRunning Sandbox#getMetrics Sandbox.getMetrics Sandbox.list SandboxPaginator#nextItems', life)
  await report.works('Sandbox#updateNetwork Sandbox.updateNetwork', network)
  await report.works('Sandbox#getHost', ports)
  await lacks('the MCP gateway is', { 'Sandbox#getMcpToken': () => Sandbox.create({ mcp: { exa: { apiKey: 'x' } } }) })
  await report.lacks('the MCP gateway', 'Sandbox#getMcpUrl Sandbox#getMcpToken', async () => {
    assert.match(sbx.getMcpUrl(), /\/mcp$/)
    await fails(SandboxError, sbx.getMcpToken())
  })
  await lacks('snapshots are', {
    'Sandbox#createSnapshot': () => sbx.createSnapshot(),
    'Sandbox.createSnapshot': () => Sandbox.createSnapshot(sbx.sandboxId),
    'Sandbox#listSnapshots': () => sbx.listSnapshots().nextItems(),
    'Sandbox.listSnapshots': () => Sandbox.listSnapshots().nextItems(),
    'SnapshotPaginator#nextItems': () => Sandbox.listSnapshots().nextItems(),
  })
  await lacks('forking a sandbox is', { 'Sandbox#fork': () => sbx.fork(), 'Sandbox.fork': () => Sandbox.fork(sbx.sandboxId) })
  await lacks('volumes are', {
    'Volume.create': () => Volume.create('v'),
    'Volume.connect': () => Volume.connect('v'),
    'Volume.getInfo': () => Volume.getInfo('v'),
    'Volume.list': () => Volume.list(),
    'Volume.destroy': () => Volume.destroy('v'),
  })
  await report.lacks('volumes', 'Volume#*')
  await report.lacks('snapshots', 'Sandbox.deleteSnapshot', async () => assert.equal(await Sandbox.deleteSnapshot('nonesuch'), false))
  await lacks('stored secrets are', {
    'Secret.create': () => Secret.create('s', 'v'),
    'Secret.update': () => Secret.update('s', 'v'),
    'Secret.getInfo': () => Secret.getInfo('s'),
    'Secret.list': () => Secret.list().nextItems(),
    'SecretPaginator#nextItems': () => Secret.list().nextItems(),
    'Secret.exists': () => Secret.exists('s'),
    'Secret.destroy': () => Secret.destroy('s'),
  })
  await report.lacks('stored secrets', 'Secret.fill Secret.iamToken', () => {
    assert.match(Secret.fill('s'), /s/)
    assert.ok(Secret.iamToken({}))
  })
} finally {
  await report.works('Sandbox#kill', async () => assert.ok([true, undefined].includes(await sbx.kill()))) // old versions return nothing
}
await report.works('Sandbox.create Sandbox.kill', async () => {
  assert.equal(await sbx.isRunning(), false)
  assert.equal(await Sandbox.kill(sbx.sandboxId), false)
  assert.match((await fails(SandboxError, sbx.commands.run('true'))).message, /not running/)
  await fails(SandboxError, Sandbox.connect(sbx.sandboxId))
  assert.match((await fails(SandboxError, Sandbox.create('no-such-template'))).message, /no-such-template/)
  if (Volume) assert.match((await fails(SandboxError, Sandbox.create({ volumeMounts: { '/data': 'vol' } }))).message, /volumes are not supported/)
})
report.end()

async function processes() {
  const { commands } = sbx
  const run = await commands.run('echo "$FOO $X"; pwd; echo problem >&2', { envs: { X: 'y' }, cwd: '/tmp' })
  assert.deepEqual(run, { exitCode: 0, error: undefined, stdout: 'bär y\n/tmp\n', stderr: 'problem\n' })
  const failed = await fails(CommandExitError, commands.run('echo out; exit 3'))
  assert.deepEqual([failed.exitCode, failed.stdout, failed.error], [3, 'out\n', 'exit status 3'])
  await fails(TimeoutError, commands.run('sleep 1000', { timeoutMs: 1000 }))
  await fails(SandboxError, commands.run('true', { cwd: '/nonesuch' }))
  const known = 'echo "$E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID"'
  assert.equal((await commands.run(known)).stdout, `true ${sbx.sandboxId} base\n`)
  assert.equal((await commands.run(known, { envs: { E2B_SANDBOX_ID: 'other' } })).stdout, 'true other base\n')

  const large = await commands.run('head -c 3000001 /dev/zero | tr "\\0" x')
  assert.equal(large.stdout.length, 3000001)

  let seen = ''
  const cat = await commands.run('read x; echo "$x"; echo end', { background: true, stdin: true, onStdout: (s) => { seen += s } })
  const listed = (await commands.list()).find((p) => p.pid === cat.pid)
  assert.deepEqual([listed.cmd, listed.args], ['/bin/bash', ['-l', '-c', 'read x; echo "$x"; echo end']])
  await commands.sendStdin(cat.pid, 'liné\n')
  assert.equal((await cat.wait()).stdout, 'liné\nend\n')
  assert.equal(seen, 'liné\nend\n')

  if (commands.closeStdin) { // not in old versions
    const second = await commands.run('cat', { background: true, stdin: true })
    await commands.sendStdin(second.pid, 'x')
    await commands.closeStdin(second.pid)
    assert.equal((await second.wait()).stdout, 'x')
  }
  if (cat.closeStdin) {
    const second = await commands.run('cat', { background: true, stdin: true })
    await second.sendStdin('x')
    await second.closeStdin()
    assert.equal((await second.wait()).stdout, 'x')
  }

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
  // Before a prompt, bash reads the size and sets it again: a change between the two would be lost.
  await sbx.pty.sendInput(term.pid, new TextEncoder().encode('touch /tmp/reads; read; stty size; exit 0\n'))
  while (!(await sbx.files.exists('/tmp/reads')));
  await sbx.pty.resize(term.pid, { cols: 91, rows: 31 })
  await sbx.pty.sendInput(term.pid, new TextEncoder().encode('\n'))
  assert.equal((await term.wait()).exitCode, 0)
  assert.match(seen, /31 91/)

  const other = await sbx.pty.create({ cols: 90, rows: 30, onData: () => {} })
  if (!sbx.pty.connect) return assert.equal(await sbx.pty.kill(other.pid), true) // in old versions
  await other.disconnect()
  let echoed
  const printed = new Promise((resolve) => { echoed = resolve })
  let text = ''
  const again = await sbx.pty.connect(other.pid, { onData: (b) => { if ((text += Buffer.from(b)).includes('a1b')) echoed() } })
  await sbx.pty.sendInput(other.pid, new TextEncoder().encode('echo a$((1))b\n'))
  await printed
  assert.equal(await sbx.pty.kill(other.pid), true)
  await fails(CommandExitError, again.wait())
}

async function life() {
  const info = await sbx.getInfo()
  assert.deepEqual([info.sandboxId, info.templateId, info.state, info.metadata], [sbx.sandboxId, 'base', 'running', { suite: 'a b/ü' }])
  const many = Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`k${i}`, 'x']))
  assert.match((await fails(SandboxError, Sandbox.create({ metadata: many }))).message, /metadata/)
  const metadata = { prompt: 'two\nlines\t\u0000', 'a=b': 'x' }
  const told = await Sandbox.create({ metadata })
  assert.deepEqual((await told.getInfo()).metadata, metadata)
  assert.deepEqual((await Sandbox.list({ query: { metadata } }).nextItems()).map((s) => [s.sandboxId, s.metadata]), [[told.sandboxId, metadata]])
  await told.kill()
  await sbx.setTimeout(1_200_000)
  assert.ok((await sbx.getInfo()).endAt - info.endAt > 500_000)
  assert.deepEqual((await Sandbox.list({ query: { metadata: { suite: 'a b/ü' }, state: ['running'] } }).nextItems()).map((s) => s.sandboxId), [sbx.sandboxId])
  assert.deepEqual(await Sandbox.list({ query: { metadata: { suite: 'other' } } }).nextItems(), [])

  const second = await Sandbox.create({ timeoutMs: 600_000, lifecycle: { onTimeout: 'pause' } })
  try {
    if (since(version, '2.45.0')) assert.deepEqual((await second.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: false })
    const pages = Sandbox.list({ limit: 1 })
    const ids = [...(await pages.nextItems()), ...(await pages.nextItems())].map((s) => s.sandboxId)
    assert.deepEqual(ids, [second.sandboxId, sbx.sandboxId])
  } finally {
    await second.kill()
  }

  if (since(version, '2.45.0')) {
    const third = await Sandbox.create({ timeoutMs: 60_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
    try {
      assert.equal(await (third.betaPause ?? third.pause).call(third), true)
      assert.equal((await third.commands.run('echo resumed')).stdout, 'resumed\n')
      const { startedAt, endAt } = await third.getInfo()
      assert.ok(endAt - startedAt >= 300_000)
    } finally {
      await third.kill()
    }
  }
  if (Sandbox.betaCreate) {
    const fourth = await Sandbox.betaCreate({ timeoutMs: 600_000, autoPause: true })
    assert.equal(await fourth.betaPause(), true)
    await fourth.kill()
  }

  const pause = sbx.pause ?? sbx.betaPause
  assert.equal(await pause.call(sbx), true)
  assert.equal(await pause.call(sbx), false)
  assert.equal(await sbx.isRunning(), false)
  assert.equal((await sbx.getInfo()).state, 'paused')
  const resumed = await Sandbox.connect(sbx.sandboxId)
  assert.equal((await resumed.commands.run('echo back')).stdout, 'back\n')
  if (Sandbox.betaPause) assert.equal(await Sandbox.betaPause(sbx.sandboxId), true)
  await sbx.connect()
  assert.equal(await (Sandbox.pause ?? Sandbox.betaPause).call(Sandbox, sbx.sandboxId), true)
  await sbx.connect()
  assert.equal((await (Sandbox.getFullInfo ?? Sandbox.getInfo).call(Sandbox, sbx.sandboxId)).state, 'running')
  await Sandbox.setTimeout(sbx.sandboxId, 600_000)
  assert.ok((await Sandbox.getMetrics(sbx.sandboxId)).length > 0)
  const metrics = await sbx.getMetrics()
  assert.ok(metrics.length > 0 && metrics[0].memTotal > 0)
}

async function files() {
  const { files } = sbx
  const name = 'dir/ü "x" 100%.txt'
  const info = await files.write(name, 'héllo')
  assert.deepEqual([info.path, info.name], [`/home/user/${name}`, 'ü "x" 100%.txt'])
  assert.equal(await files.read(`/home/user/${name}`), 'héllo')
  const two = await (files.writeFiles ?? files.write).call(files, [{ path: '/tmp/t/1', data: 'a' }, { path: '/tmp/t/sub/2', data: new Uint8Array([0, 255]).buffer }])
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
  assert.equal((await files.rename('/tmp/t/other', '/home/user/other')).path, '/home/user/other') // another file system
  assert.equal((await files.rename('/home/user/other', '/tmp/t/other')).path, '/tmp/t/other')
  assert.deepEqual([await files.exists('/tmp/t/1'), await files.exists('/tmp/t/other/one')], [false, true])
  await sbx.commands.run('ln -s other /tmp/t/link')
  const link = await files.getInfo('/tmp/t/link')
  assert.deepEqual([link.type, link.symlinkTarget, link.owner], ['dir', '/tmp/t/other', 'user'])
  assert.deepEqual((await files.list('/tmp/t/link')).map((e) => e.path), ['/tmp/t/link/one'])
  await files.remove('/tmp/t')
  assert.equal(await files.exists('/tmp/t'), false)

  // Without subordinate ids, a server of an ordinary user makes sandboxes with one user.
  if (process.getuid() === 0 || (await sbx.commands.run('command -v sudo || true')).stdout !== '') {
    await files.write('/etc/of-root', 'x', { user: 'root' })
    assert.equal((await files.getInfo('/etc/of-root')).owner, 'root')
    assert.equal((await sbx.commands.run('id -un', { user: 'root' })).stdout, 'root\n')
    await files.write('of-root', 'x', { user: 'root' })
    await files.write('~/of-root-too', 'x', { user: 'root' })
    assert.deepEqual((await files.list('/root')).map((e) => e.name).filter((n) => n.startsWith('of-root')), ['of-root', 'of-root-too'])
    await files.remove('/root/of-root')
    await files.remove('/root/of-root-too')
    assert.equal((await sbx.commands.run('id -u; sudo id -u')).stdout, '1000\n0\n')

    // Files are written by root, and belong to the user.
    const owner = async (path) => (await files.getInfo(path)).owner
    for (const [name, content] of [['small', 'x'], ['large', 'x'.repeat(3_000_000)]]) {
      await files.write(`/path/to/${name}`, content)
      assert.equal(await files.read(`/path/to/${name}`), content)
      assert.deepEqual([await owner('/path'), await owner('/path/to'), await owner(`/path/to/${name}`)], ['user', 'user', 'user'])
    }
    await files.write('/etc/of-root', 'mine')
    assert.deepEqual([await files.read('/etc/of-root'), await owner('/etc/of-root'), await owner('/etc')], ['mine', 'user', 'root'])
    assert.equal((await files.rename('/etc/of-root', '/opt/new/of-root')).path, '/opt/new/of-root')
    assert.deepEqual([await owner('/opt'), await owner('/opt/new')], ['root', 'user'])
    await files.makeDir('/srv/a/b')
    assert.deepEqual([await owner('/srv'), await owner('/srv/a'), await owner('/srv/a/b')], ['root', 'user', 'user'])
    await sbx.commands.run('mkdir -m 700 /srv/secret && echo x > /srv/secret/f', { user: 'root' })
    assert.deepEqual((await files.list('/srv/secret')).map((e) => e.path), ['/srv/secret/f'])
    assert.equal(await files.read('/srv/secret/f'), 'x\n')
    await sbx.commands.run('ln -s /srv/secret/g /tmp/planted')
    await files.write('/tmp/planted', 'x')
    assert.equal((await sbx.commands.run('stat -c %U /srv/secret/g', { user: 'root' })).stdout, 'user\n') // links are followed
    for (const path of ['/path', '/opt/new', '/srv/a', '/srv/secret', '/tmp/planted']) await files.remove(path)
    assert.equal(await files.exists('/srv/secret'), false)
    let seen = ''
    const term = await sbx.pty.create({ cols: 80, rows: 24, user: 'root', onData: (b) => { seen += Buffer.from(b) } })
    await sbx.pty.sendInput(term.pid, new TextEncoder().encode('echo i$((1))-$(id -u)-$HOME; exit\n'))
    await term.wait()
    assert.match(seen, /i1-0-\/root/)
  }
  await fails(AuthenticationError, files.exists('/tmp', { user: 'nobody-at-all' }))
  await fails(AuthenticationError, files.read('/etc/hostname', { user: 'nobody-at-all' }))
  await fails(AuthenticationError, sbx.commands.run('true', { user: 'nobody-at-all' }))
  await fails(FileNotFoundError, files.read('/nonesuch'))
  await fails(FileNotFoundError, files.list('/nonesuch'))
  await fails(FileNotFoundError, files.getInfo('/nonesuch'))
  await fails(InvalidArgumentError, files.list('/etc/passwd'))
  await fails(InvalidArgumentError, files.read('/tmp'))
  await fails(SandboxError, files.write('/proc/x', 'x'))
  await fails(InvalidArgumentError, files.makeDir('/etc/passwd'))
  if (since(version, '2.45.0')) {
    const metadata = { author: 'a b', 'x-!#$': '~' }
    assert.deepEqual((await files.write('/tmp/meta/x', 'x', { metadata: { Author: 'a b', 'x-!#$': '~' } })).metadata, metadata)
    assert.deepEqual((await files.getInfo('/tmp/meta/x')).metadata, metadata)
    assert.deepEqual((await files.list('/tmp/meta')).map((e) => e.metadata), [metadata])
    assert.deepEqual((await files.rename('/tmp/meta/x', '/home/user/x')).metadata, metadata)
    assert.deepEqual((await files.rename('/home/user/x', '/tmp/meta/y')).metadata, metadata)
    assert.deepEqual((await files.writeFiles([{ path: '/tmp/meta/a', data: 'a' }, { path: '/tmp/meta/b', data: 'b' }], { metadata: { source: 'import' } })).map((e) => e.metadata), [{ source: 'import' }, { source: 'import' }])
    await files.write('/tmp/meta/y', 'y')
    assert.equal((await files.getInfo('/tmp/meta/y')).metadata, undefined)
    await fails(InvalidArgumentError, files.write('/tmp/meta/y', 'z', { metadata: { large: 'x'.repeat(4096) } }))
    assert.equal(await files.read('/tmp/meta/y'), 'y')
    await files.remove('/tmp/meta')
  }
}

async function watch() {
  await sbx.files.makeDir('/tmp/w')
  await fails(FileNotFoundError, sbx.files.watchDir('/nonesuch', () => {}))
  await fails(InvalidArgumentError, sbx.files.watchDir('/etc/passwd', () => {}))
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

// Names below localhost are those of this machine, but not for every resolver: the request goes to the address of the server, if
// there is one.
async function ports() {
  assert.match(sbx.getHost(8000), new RegExp(`^8000-${sbx.sandboxId}\\.`))
  const server = await sbx.commands.run('mkdir /tmp/site && echo hello > /tmp/site/index.html && cd /tmp/site && exec python3 -u -m http.server 8000', { background: true })
  const get = (path, headers = {}) => new Promise((resolve, reject) => {
    const { host = sbx.getHost(8000) } = headers
    const { protocol, hostname, port } = new URL(process.env.E2B_SANDBOX_URL ?? `https://${host}`)
    ;({ 'http:': http, 'https:': https })[protocol].get({ hostname, port, path, headers: { host, ...headers } }, async (answer) => {
      let body = ''
      for await (const piece of answer.setEncoding('utf8')) body += piece
      resolve([answer.statusCode, body])
    }).on('error', reject)
  })
  for (;;) {
    const [status, body] = await get('/')
    if (status === 200) {
      assert.equal(body, 'hello\n')
      break
    }
    assert.deepEqual([status, JSON.parse(body).port], [502, 8000], body)
    await new Promise((resolve) => setTimeout(resolve, 50)) // an open port answers 429 to those who ask too often
  }
  assert.equal((await get('/nonesuch'))[0], 404)
  await server.kill()

  if (!since(version, '2.14.0')) return // it has no tokens of traffic
  const secured = await Sandbox.create({ timeoutMs: 600_000, network: { allowPublicTraffic: false } })
  try {
    const host = secured.getHost(8000)
    assert.equal((await get('/', { host }))[0], 403)
    assert.equal((await get('/', { host, 'e2b-traffic-access-token': secured.trafficAccessToken }))[0], 502)
    if (since(version, '2.45.0')) assert.equal((await secured.getInfo()).network.allowPublicTraffic, false)
  } finally {
    await secured.kill()
  }
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

async function git() {
  const { git } = sbx
  const [one, two, bare] = ['/tmp/one', '/tmp/two', '/tmp/bare']
  await git.init(one, { initialBranch: 'main' })
  await git.init(bare, { bare: true, initialBranch: 'main' })
  await git.configureUser('A', 'a@example.com')
  await git.setConfig('core.quotepath', 'off')
  assert.equal(await git.getConfig('core.quotepath'), 'off')
  await sbx.files.write(`${one}/ü`, '1')
  assert.deepEqual((await git.status(one)).fileStatus.map((f) => f.name), ['ü'])
  await git.add(one)
  await git.commit(one, 'first')
  assert.equal((await git.status(one)).isClean, true)
  await sbx.files.write(`${one}/ü`, '2')
  await git.restore(one, { paths: ['ü'] })
  await sbx.files.write(`${one}/ü`, '3')
  await git.add(one)
  await git.reset(one, { mode: 'hard' })
  assert.equal(await sbx.files.read(`${one}/ü`), '1')
  await git.remoteAdd(one, 'origin', bare)
  assert.equal(await git.remoteGet(one, 'origin'), bare)
  await git.push(one, { remote: 'origin', branch: 'main' })
  await git.clone(bare, { path: two })
  await git.createBranch(one, 'other')
  assert.deepEqual((await git.branches(one)).currentBranch, 'other')
  await git.checkoutBranch(one, 'main')
  await git.deleteBranch(one, 'other')
  await git.pull(two)
  assert.equal(await sbx.files.read(`${two}/ü`), '1')
  await git.dangerouslyAuthenticate({ username: 'u', password: 'p' })
  await fails(Error, git.clone('/nonesuch', { path: '/tmp/three' }))
}

async function network() {
  if (process.getuid() !== 0) { // sandboxes have no network then
    await fails(SandboxError, sbx.updateNetwork({ allowOut: ['example.com'] }))
    await fails(SandboxError, Sandbox.updateNetwork(sbx.sandboxId, { allowOut: ['example.com'] }))
    return unchecked
  }
  await sbx.updateNetwork({ allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] })
  assert.deepEqual((await sbx.getInfo()).network.allowOut, ['example.com'])
  await Sandbox.updateNetwork(sbx.sandboxId, { denyOut: ['0.0.0.0/0'] })
  assert.deepEqual((await sbx.getInfo()).network.denyOut, ['0.0.0.0/0'])
}

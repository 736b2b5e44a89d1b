// Uses the SDK of microsandbox, unmodified, with its cloud's API at a server of Sandpit, and reports on its methods. The
// environment says where the server is.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import * as fsp from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import * as msb from 'microsandbox'
import { Report } from './report.mjs'

const { Image, NetworkPolicy, Sandbox, SandboxAlreadyExistsError, SandboxNotFoundError, Snapshot, Volume } = msb
const { version } = JSON.parse(readFileSync('node_modules/microsandbox/package.json', 'utf8'))
const report = new Report('microsandbox (JavaScript)', version)
for (const name of ['ExecHandle', 'ExecOutput', 'ExecSink', 'FsReadStream', 'FsWriteSink', 'Image', 'LogEntry', 'LogStream', 'MetricsStream', 'PullProgressCreate', 'Sandbox', 'SandboxFsOps', 'SandboxHandle', 'SandboxListBuilder', 'SandboxSshOps', 'SftpClient', 'SshClient', 'SshServer', 'Snapshot', 'SnapshotHandle', 'Volume', 'VolumeFs', 'VolumeHandle']) {
  if (msb[name]) report.class(name, msb[name], msb[name].prototype, [name])
}
const image = 'microsandbox/python'
const main = await Sandbox.builder('main').image(image).env('FOO', 'bär').workdir('/tmp').create()

// fails returns the error of a promise, which must be of a class.
async function fails(kind, call) {
  const error = await Promise.resolve().then(call).then(() => undefined, (e) => e)
  assert.ok(error instanceof kind, `${error?.stack ?? 'no error'}, want ${kind.name}`)
  return error
}

// refuses checks that the client refuses calls itself.
async function refuses(...calls) {
  for (const call of calls) assert.match((await fails(Error, call)).message, /local backend|not supported by this backend/)
}

// lacks checks that the server refuses calls by name.
async function lacks(...calls) {
  for (const call of calls) assert.match((await fails(Error, call)).message, /501.* not supported by this server/)
}

// reaches waits until a sandbox has a status. Older versions have no method for that.
async function reaches(of, status) {
  if (of.waitForStatus) return assert.equal((await of.waitForStatus(status)).status, status)
  while ((await Sandbox.get(of.name)).status !== status);
}

async function life() {
  const sb = await Sandbox.builder('life').image(image).env('A', 'ä').label('suite', 'life').cpus(1).memory(256).maxDuration(600).idleTimeout(300).create()
  await fails(SandboxAlreadyExistsError, () => Sandbox.builder('life').image(image).create())
  await fails(msb.InvalidConfigError, () => Sandbox.builder('other').image('no such image').create())
  await fails(SandboxNotFoundError, () => Sandbox.get('nonesuch'))
  await fails(SandboxNotFoundError, () => Sandbox.remove('nonesuch'))
  assert.deepEqual((await Sandbox.list()).sandboxes.map((h) => h.name).sort(), ['life', 'main'])
  const page = await Sandbox.listWith((l) => l.limit(1))
  assert.ok(page.sandboxes.length === 1 && page.nextCursor)
  const rest = await Sandbox.listWith((l) => l.limit(5).cursor(page.nextCursor))
  assert.equal(rest.sandboxes.length, 1)
  assert.deepEqual((await Sandbox.listWith((l) => l.label('suite', 'life').labels({}))).sandboxes.map((h) => h.name), ['life'])
  await sb.stop()
  let h = await Sandbox.get('life')
  assert.equal(h.status, 'stopped')
  await h.waitUntilStopped?.()
  await h.start()
  h = await Sandbox.get('life')
  h = (await h.refresh?.()) ?? h
  await reaches(h, 'running')
  await h.connect()
  await h.connectWithTimeout?.(10_000)
  await (await (h.connectOrStart ? h.connectOrStart() : h.connect())).stopWithTimeout(20_000)
  await (await Sandbox.get('life')).startDetached()
  await (await Sandbox.get('life')).stopWithTimeout(20_000)
  const again = await Sandbox.start('life')
  await again.requestStop()
  await reaches(again, 'stopped')
  await again.waitUntilStopped()
  const detached = await Sandbox.startDetached('life')
  await detached.restart?.()
  await (await Sandbox.get('life')).restart?.()
  await (await Sandbox.get('life')).stop()
  await (await Sandbox.get('life')).start()
  h = await Sandbox.get('life')
  await h.requestStop()
  await reaches(h, 'stopped')
  await (await Sandbox.get('life')).remove()
  for (const name of msb.Sandbox.prototype.destroy ? ['a', 'b'] : []) {
    const made = await Sandbox.builder(name).image(image).create()
    await (name === 'a' ? made : await Sandbox.get(name)).destroy()
    await fails(SandboxNotFoundError, () => Sandbox.get(name))
  }
  await (await Sandbox.builder('detached').image(image).create()).detach()
  await (await Sandbox.get('detached')).stop()
  await Sandbox.remove('detached')
  await (await Sandbox.builder('short').image(image).ephemeral(true).create()).stop() // which removes it
  assert.deepEqual((await Sandbox.list()).sandboxes.map((h) => h.name), ['main'])
}

// made checks that what a sandbox is made with is there.
async function made() {
  const sb = await Sandbox.builder('made').image(image).env('A', 'ä').user('nobody').workdir('/tmp').script('hello', '#!/bin/sh\necho hello $1\n').volume('/scratch', (v) => v.tmpfs().size(5)).rlimit('cpu', 50).rlimitRange('nproc', 300, 400)
    .patch((p) => p.text('/etc/app/x.conf', 'ü').append('/etc/app/x.conf', '!').mkdir('/etc/app/d', { mode: 0o700 }).symlink('x.conf', '/etc/app/l').remove('/etc/motd'))
    .network((n) => n.policy(NetworkPolicy.none())).create()
  const run = await sb.shell('echo $A; pwd; id -un; cat /etc/app/l; /.msb/scripts/hello you; echo problem >&2; exit 3')
  assert.deepEqual([run.code, run.stdout(), run.stderr()], [3, 'ä\n/tmp\nnobody\nü!hello you\n', 'problem\n'])
  const limits = await sb.execWith('sh', (b) => b.args(['-c', "grep -Eo '^Max (cpu time|processes|file size) +[0-9]+ +[0-9]+' /proc/self/limits | tr -s ' '"]).rlimit('cpu', 40).rlimitRange('fsize', 5000, 6000))
  assert.equal(limits.stdout(), 'Max cpu time 40 40\nMax file size 5000 6000\nMax processes 300 400\n')
  assert.match((await fails(Error, () => Sandbox.builder('refused').image(image).rlimit('memlock', 2 ** 30).create())).message, /rlimit memlock is too high/)
  await fails(SandboxNotFoundError, () => Sandbox.get('refused'))
  const later = await (await Sandbox.get('made')).connect()
  assert.equal((await later.exec('sh', ['-c', 'echo $A; pwd; id -un'])).stdout(), 'ä\n/tmp\nnobody\n')
  await sb.stop()
  await Sandbox.remove('made')
}

async function processes() {
  const run = await main.execWith('sh', (b) => b.args(['-c', 'echo "$X $FOO"; pwd; echo problem >&2; exit 3']).cwd('/').env('X', 'ü'))
  assert.deepEqual([run.code, run.stdout(), Buffer.from(run.stderrBytes()).toString()], [3, 'ü bär\n/\n', 'problem\n'])
  await fails(msb.ExecTimeoutError, () => main.execWith('sleep', (b) => b.args(['1000']).timeout(1000)))
  assert.match((await fails(Error, () => main.exec('/nonesuch'))).message, /no such file/)
  assert.equal((await main.shell('head -c 3000001 /dev/zero')).stdoutBytes().length, 3000001)
  assert.equal((await main.exec('echo', ['hi'])).stdout(), 'hi\n')
  const cat = await main.execStreamWith('cat', (b) => b.stdinPipe())
  const sink = await cat.takeStdin()
  await sink.write('liné\n')
  await sink.close()
  assert.equal((await cat.collect()).stdout(), 'liné\n')
  const sleeping = await main.shellStream('echo a; sleep 1000')
  while ((await sleeping.recv()).kind !== 'stdout');
  await sleeping.signal(15)
  assert.equal((await sleeping.wait()).code, 143)
  const killed = await main.execStream('sleep', ['1000'])
  await killed.kill()
  assert.equal((await killed.wait()).code, 137)
  const tty = await main.execStreamWith('sh', (b) => b.args(['-c', 'read x; stty size; tty']).tty(true).stdinPipe())
  await tty.resize(30, 100)
  await (await tty.takeStdin()).write('\n')
  assert.match((await tty.collect()).stdout(), /30 100[^]*\/dev\/pts\//)
}

async function defaults() {
  const sb = await Sandbox.builder('defaults').image(image).entrypoint(['echo']).cmd(['by default']).create()
  assert.equal((await sb.execDefault()).stdout(), 'by default\n')
  assert.equal((await sb.execDefaultWith((b) => b.cwd('/'))).stdout(), 'by default\n')
  assert.equal((await (await sb.execDefaultStream()).collect()).stdout(), 'by default\n')
  assert.equal((await (await sb.execDefaultStreamWith((b) => b.cwd('/'))).collect()).stdout(), 'by default\n')
  await sb.stop()
  await Sandbox.remove('defaults')
}

async function files() {
  const fs = main.fs()
  const bytes = Uint8Array.from({ length: 256 }, (_, i) => i)
  await fs.mkdir('/tmp/dir')
  await fs.write('/tmp/dir/ä\nb', bytes)
  assert.deepEqual(Uint8Array.from(await fs.read('/tmp/dir/ä\nb')), bytes)
  const sink = await fs.writeStream('/tmp/dir/text')
  for (let i = 0; i < 3; i++) await sink.write('liné\n')
  await sink.close()
  assert.equal(await fs.readToString('/tmp/dir/text'), 'liné\n'.repeat(3))
  assert.equal(Buffer.from(await (await fs.readStream('/tmp/dir/text')).collect()).toString(), 'liné\n'.repeat(3))
  assert.equal(Buffer.from(await (await fs.readStream('/tmp/dir/text')).recv()).toString(), 'liné\n'.repeat(3))
  assert.deepEqual((await fs.list('/tmp/dir')).map((e) => path.basename(e.path)).sort(), ['text', 'ä\nb'])
  assert.equal(Number((await fs.stat('/tmp/dir/text')).size), 18)
  await fs.copy('/tmp/dir/text', '/tmp/dir/copy')
  await fs.rename('/tmp/dir/copy', '/dev/shm/moved')
  await fs.rename('/dev/shm/moved', '/tmp/dir/moved')
  assert.deepEqual([await fs.exists('/tmp/dir/moved'), await fs.exists('/tmp/dir/copy')], [true, false])
  const host = await fsp.mkdtemp(path.join(os.tmpdir(), 'microsandbox-'))
  await fsp.writeFile(`${host}/up`, 'up')
  await fs.copyFromHost(`${host}/up`, '/tmp/dir/up')
  await fs.copyToHost('/tmp/dir/up', `${host}/down`)
  assert.equal(await fsp.readFile(`${host}/down`, 'utf8'), 'up')
  await fsp.rm(host, { recursive: true })
  await fs.remove('/tmp/dir/moved')
  await fs.removeDir('/tmp/dir')
  await fails(msb.MicrosandboxError, () => fs.read('/nonesuch'))
}

async function ssh() {
  const client = await main.ssh().openClient()
  const run = await client.exec('echo ssh; exit 4')
  assert.deepEqual([run.status, Buffer.from(run.stdout).toString()], [4, 'ssh\n'])
  const sftp = await client.sftp()
  await sftp.mkdir('/tmp/sftp')
  await sftp.write('/tmp/sftp/a', Buffer.from('content'))
  assert.equal((await sftp.read('/tmp/sftp/a')).toString(), 'content')
  await sftp.rename('/tmp/sftp/a', '/tmp/sftp/b')
  await sftp.symlink('/tmp/sftp/b', '/tmp/sftp/l')
  assert.deepEqual([await sftp.readLink('/tmp/sftp/l'), await sftp.realPath('/tmp/sftp/l')], ['/tmp/sftp/b', '/tmp/sftp/b'])
  await sftp.removeFile('/tmp/sftp/l')
  await sftp.removeFile('/tmp/sftp/b')
  await sftp.removeDir('/tmp/sftp')
  await sftp.close()
  await client.close()
}

async function logs() {
  const sb = await Sandbox.builder('logs').image(image).create()
  await sb.shell('echo one; echo two')
  const stream = await sb.logStream({ follow: true })
  const [one, two] = [await stream.recv(), await stream.recv()]
  assert.deepEqual([one.text(), two.text()], ['one\n', 'two\n'])
  const later = await (await Sandbox.get('logs')).logStream({ follow: true, fromCursor: one.cursor })
  assert.equal((await later.recv()).text(), 'two\n')
  await sb.stop()
  await Sandbox.remove('logs')
}

async function refused() {
  const h = await Sandbox.get('main')
  for (const name of ['metrics', 'ping', 'touch', 'modify', 'kill', 'requestKill', 'killWithTimeout', 'requestDrain', 'logs']) {
    for (const of of [await h.connect(), h]) await refuses(() => of[name](name === 'killWithTimeout' ? 1000 : undefined))
  }
  await fails(msb.MicrosandboxError, async () => (await main.metricsStream(100)).recv())
  await refuses(() => Image.get('x'), () => Image.list(), () => Image.inspect('x'), () => Image.remove('x'), () => Image.prune(), () => Image.load('/nonesuch'), () => Image.save('x', { outputPath: '/nonesuch' }), () => main.ssh().prepareServer())
}

async function volumes() {
  await lacks(() => Volume.builder('v').create(), () => Volume.get('v'), () => Volume.getDefault(), () => Volume.list(), () => Volume.remove('v'), () => Sandbox.builder('v').image(image).volume('/v', (v) => v.named('v')).create(), () => Sandbox.builder('v').image(image).volume('/v', (v) => v.bind('/tmp')).create())
}

async function snapshots() {
  const h = await Sandbox.get('main')
  await refuses(() => h.snapshot('x'), () => Snapshot.builder('x').fromSandbox('main').create(), () => Snapshot.get('x'), () => Snapshot.open('x'), () => Snapshot.list(), () => Snapshot.listDir('/tmp'), () => Snapshot.remove('x'), () => Snapshot.reindex(), () => Snapshot.save('x', '/nonesuch'), () => Snapshot.load('/nonesuch'))
}

// terminals checks methods that use the terminal of the program, which has none here.
async function terminals() {
  const client = await main.ssh().openClient()
  for (const call of [() => main.attach('sh'), () => main.attachShell(), () => main.attachWith('sh', (b) => b), () => client.attach()]) await fails(msb.TerminalError, call)
  for (const call of [() => main.attachDefault(), () => main.attachDefaultWith((b) => b)]) await fails(msb.NoDefaultCommandError, call)
  await client.close()
}

async function configs() {
  assert.equal((await main.config()).name, 'main')
  assert.equal((await (await Sandbox.get('main')).config()).runtime.workdir, '/tmp')
}

async function progress() {
  const sb = await (await Sandbox.builder('progress').image(image).createWithPullProgress()).awaitSandbox()
  const builder = Sandbox.builder('progress').image(image)
  if (builder.connectOrCreate) assert.equal((await builder.connectOrCreate()).name, sb.name)
  await sb.stop()
  await Sandbox.remove('progress')
}

try {
  await report.works('Sandbox#exec Sandbox#execWith Sandbox#execStream Sandbox#execStreamWith Sandbox#shell Sandbox#shellStream ExecHandle#* ExecOutput#* ExecSink#*', processes)
  await report.works('Sandbox#execDefault Sandbox#execDefaultWith Sandbox#execDefaultStream Sandbox#execDefaultStreamWith', defaults)
  await report.works('Sandbox#fs SandboxFsOps#* FsReadStream#* FsWriteSink#*', files)
  await report.works('Sandbox#ssh SandboxSshOps#openClient SshClient#exec SshClient#sftp SshClient#close SftpClient#*', ssh)
  await report.works('Sandbox#logStream SandboxHandle#logStream LogStream#* LogEntry#*', logs)
  await report.works('SandboxHandle#connect', made)
  await report.works('Sandbox#config SandboxHandle#config', configs)
  await report.works('PullProgressCreate#*', progress)
  await report.refused('a terminal is needed', 'Sandbox#attach Sandbox#attachShell Sandbox#attachWith Sandbox#attachDefault Sandbox#attachDefaultWith SshClient#attach', terminals)
  await report.refused('local only', 'Sandbox#metrics Sandbox#metricsStream MetricsStream#* Sandbox#ping Sandbox#touch Sandbox#modify Sandbox#kill Sandbox#requestKill Sandbox#killWithTimeout Sandbox#requestDrain Sandbox#logs SandboxHandle#metrics SandboxHandle#ping SandboxHandle#touch SandboxHandle#modify SandboxHandle#kill SandboxHandle#requestKill SandboxHandle#killWithTimeout SandboxHandle#requestDrain SandboxHandle#logs Image.* SandboxSshOps#prepareServer', refused)
  await report.refused('local only', 'SandboxHandle#snapshot Snapshot.*', snapshots)
  report.unused('local only', 'Snapshot#* SnapshotHandle#* SshServer#*')
  await report.lacks('volumes', 'Volume.*', volumes)
  await report.lacks('volumes', 'Volume#* VolumeFs#* VolumeHandle#*')
  await report.works('Sandbox* SandboxListBuilder*', life)
} finally {
  await main.stop()
  await Sandbox.remove('main')
}
report.end()

// Builds templates with the SDK of E2B, unmodified, against a server of Sandpit, and reports on its methods. The environment
// says where the server is, which has the base images that are used here as aliases of one that it has.
import assert from 'node:assert/strict'
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { setTimeout } from 'node:timers/promises'
import { Sandbox, Template, waitForFile } from 'e2b'
import { Report, since, unchecked } from './report.mjs'

const { version } = JSON.parse(readFileSync('node_modules/e2b/package.json', 'utf8'))
const report = new Report('e2b (JavaScript)', version, 'node_modules/e2b/dist/index.d.ts')
report.class('Template', Template, Object.getPrototypeOf(Template()), ['TemplateBase', 'ClientFactory'])

mkdirSync('context/app/sub', { recursive: true })
writeFileSync('context/app/a', 'A')
writeFileSync('context/app/sub/b', 'B')
writeFileSync('context/one', '1')
symlinkSync('a', 'context/app/link')
mkdirSync('context/pack')
writeFileSync('context/pack/package.json', '{"name": "pack", "version": "1.0.0"}')
writeFileSync('context/pack/index.js', 'console.log(42)')

const root = process.getuid() === 0 // otherwise sandboxes have no root
const begin = () => Template({ fileContextPath: 'context' })
const call = (method, template, name, options = {}) => (since(version, '2.14.0') ? Template[method](template, name, options) : Template[method](template, { alias: name, ...options }))
const build = (template, name, options) => call('build', template, name, options)

// printed builds a template, and returns what a command prints in a sandbox that is made of it.
async function printed(template, name, command) {
  await build(template, name)
  const sbx = await Sandbox.create(name, { timeoutMs: 600_000 })
  try {
    return (await sbx.commands.run(command)).stdout
  } finally {
    await sbx.kill()
  }
}

await report.works('Template.build Template#fromBaseImage Template#setEnvs Template#setWorkdir Template#copy Template#copyItems Template#runCmd Template#setUser Template#setStartCmd Template#setReadyCmd Template#skipCache', async () => {
  const lines = []
  const template = begin().skipCache().fromBaseImage().setEnvs({ GREETING: 'hé "llo"' }).setWorkdir('/home/user/w').copy('app', 'app').copyItems([{ src: 'one', dest: 'here/', mode: 0o600 }, { src: 'on*', dest: 'two' }])
    .runCmd('echo "$GREETING" > out; pwd; id -un').setUser('user').setStartCmd('echo started > /tmp/started; exec sleep 1000', waitForFile('/tmp/started'))
  await build(template, 'one', { onBuildLogs: (l) => lines.push(l.message) })
  assert.deepEqual([lines.includes('/home/user/w'), lines.includes('user')], [true, true], lines)
  const sbx = await Sandbox.create('one', { timeoutMs: 600_000 })
  try {
    const run = await sbx.commands.run('pwd; cat out app/a app/link app/sub/b here/one two; stat -c %a here/one; cat /tmp/started')
    assert.equal(run.stdout, '/home/user/w\nhé "llo"\nAAB11600\nstarted\n')
    assert.equal((await sbx.getInfo()).templateId, 'one')
  } finally {
    await sbx.kill()
  }
  assert.deepEqual(await Sandbox.list().nextItems(), []) // nothing is left of builds
  await build(begin().fromBaseImage().setReadyCmd('true'), 'two')
  const cached = async (options) => {
    const said = []
    await build(begin().fromBaseImage().copy('one', 'one').runCmd('echo again'), 'again', { onBuildLogs: (l) => said.push(l.message), ...options })
    return [said.includes('CACHED [2/2] RUN echo again'), said.includes('again')]
  }
  await cached()
  assert.deepEqual([await cached(), await cached({ skipCache: true })], [[true, false], [false, true]])
  await assert.rejects(build(begin().fromBaseImage().runCmd('echo no; exit 3'), 'three'), /exit status 3/)
  await assert.rejects(Sandbox.create('three'), /three/)
  await assert.rejects(build(begin().fromBaseImage(), 'base'), /operator/)
  await assert.rejects(build(begin().fromImage('nonesuch.invalid/x:1'), 'four'), /nonesuch/)
})
await report.works('Template#fromTemplate Template#remove Template#rename Template#makeDir Template#makeSymlink', async () => {
  const template = begin().fromTemplate('one').makeDir('/home/user/d').rename('/home/user/w/two', '/home/user/d/three').makeSymlink('three', '/home/user/d/four').remove('/home/user/w/out')
  assert.equal(await printed(template, 'second', 'cat ~/d/four; ls ~/w'), '1app\nhere\n')
})
await report.works('Template#setWorkdir Template#makeDir Template#copy', async () => {
  if (!root) return unchecked
  let template = begin().fromBaseImage().setWorkdir('/app').setWorkdir('sub/deep').runCmd('echo x > mine').copy('one', '/app/one').copy('app', '/other')
  template = template.makeDir('/app/made').makeDir('/made', { user: 'root' })
  const out = await printed(template, 'workdir', "pwd; stat -c '%U %n' /app /app/sub/deep /app/sub/deep/mine /app/one /other /other/a /app/made /made")
  assert.equal(out, '/app/sub/deep\n' + ['/app', '/app/sub/deep', '/app/sub/deep/mine', '/app/one', '/other', '/other/a', '/app/made'].map((p) => `user ${p}\n`).join('') + 'root /made\n')
  assert.equal(await printed(begin().fromBaseImage().setWorkdir('first'), 'relative', "pwd; stat -c %U ."), '/first\nuser\n')
})
await report.works('Template#gitClone', async () => {
  const template = begin().fromBaseImage().runCmd('git init -q ~/source && cd ~/source && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first').gitClone('/home/user/source', '/home/user/clone')
  assert.equal(await printed(template, 'cloned', 'git -C ~/clone log --format=%s'), 'first\n')
})
// lacks reports whether the base image lacks a program.
const lacks = async (program) => (await printed(begin().fromBaseImage(), 'from', `command -v ${program} || true`)) === ''
await report.works('Template#pipInstall', async () => { // of a wheel, which is a zip
  if (await lacks('pip')) return unchecked
  const files = { 'pack.py': 'value = 42', 'pack-1.dist-info/METADATA': 'Metadata-Version: 2.1\nName: pack\nVersion: 1\n', 'pack-1.dist-info/WHEEL': 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n', 'pack-1.dist-info/RECORD': '' }
  const wheel = '/home/user/pack-1-py3-none-any.whl'
  const template = begin().fromBaseImage().runCmd(`python3 -c 'import zipfile\nwith zipfile.ZipFile("${wheel}", "w") as z:\n for name, text in ${JSON.stringify(files)}.items(): z.writestr(name, text)'`)
  assert.equal(await printed(template.setEnvs({ PIP_NO_INDEX: '1', PIP_BREAK_SYSTEM_PACKAGES: '1' }).pipInstall(wheel, { g: false }), 'installed', "python3 -c 'import pack; print(pack.value)'"), '42\n')
})
await report.works('Template#npmInstall', async () => { // of a directory
  if (await lacks('npm')) return unchecked
  const template = begin().fromBaseImage().setWorkdir('/home/user/w').copy('pack', 'pack').setEnvs({ npm_config_offline: 'true', npm_config_audit: 'false' }).npmInstall('./pack')
  assert.equal(await printed(template, 'installed', `node -e 'require("pack")'`), '42\n')
})
// said returns how a program is called in a build, in which a function has its place.
const said = (program, add) => printed(add(begin().fromBaseImage().setEnvs({ [`BASH_FUNC_${program}%%`]: `() { echo ${program} "$@" >> /home/user/said; }` })), 'said', 'cat /home/user/said')
await report.sent('Template#bunInstall', async () => assert.equal(await said('bun', (t) => t.bunInstall(['pack'])), 'bun install pack\n'))
await report.sent('Template#aptInstall', async () => {
  if (!root) return unchecked
  assert.match(await said('apt-get', (t) => t.aptInstall(['pack'])), /^apt-get update\napt-get install -y .*pack\n$/)
})
await report.works('Template#fromImage', () => build(begin().fromImage('python:3').runCmd('true'), 'from'))
const variants = { fromDebianImage: 'stable', fromUbuntuImage: 'latest', fromPythonImage: '3', fromNodeImage: 'lts', fromBunImage: 'latest', fromFedoraImage: '44', fromAlpineImage: '3.24', fromArchImage: 'latest' }
for (const [method, variant] of Object.entries(variants)) await report.sent(`Template#${method}`, () => build(begin()[method](variant).runCmd('true'), 'from'))
await report.works('Template#fromDockerfile', async () => {
  const dockerfile = begin().fromDockerfile('FROM python:3\nENV A=b\nWORKDIR /home/user/docker\nCOPY one .\nRUN echo "$A" > a')
  assert.equal(await printed(dockerfile, 'docker', 'cat /home/user/docker/a /home/user/docker/one'), 'b\n1')
})
await report.works('Template.buildInBackground Template.getBuildStatus', async () => {
  const info = await call('buildInBackground', begin().skipCache().fromBaseImage().runCmd('echo seen'), 'later')
  for (;;) {
    const { status, logEntries } = await Template.getBuildStatus(info)
    assert.notEqual(status, 'error')
    if (status === 'ready') {
      assert.ok(logEntries.some((e) => e.message === 'seen'))
      break
    }
    await setTimeout(50) // the rate of a key is bounded
  }
})
await report.works('Template.exists Template.aliasExists', async () => {
  for (const method of ['exists', 'aliasExists']) {
    if (Template[method]) assert.deepEqual([await Template[method]('one'), await Template[method]('base'), await Template[method]('nonesuch')], [true, true, false])
  }
})
await report.works('Template.assignTags Template.removeTags Template.getTags', async () => {
  const name = `tagged-js-${version}` // which no other run has built
  const made = (text, template) => printed(begin().fromBaseImage().runCmd(`echo ${text} > ~/text`), template, 'cat ~/text')
  const has = async (template) => {
    const sbx = await Sandbox.create(template, { timeoutMs: 600_000 })
    try {
      return (await sbx.commands.run('cat ~/text')).stdout
    } finally {
      await sbx.kill()
    }
  }
  assert.equal(await made('first', `${name}:v1`), 'first\n')
  await assert.rejects(Sandbox.create(name), /tagged/) // no build has the tag default
  assert.deepEqual((await Template.assignTags(`${name}:v1`, ['production', 'default'])).tags, ['production', 'default'])
  assert.equal(await has(name), 'first\n')
  assert.equal(await made('second', `${name}:v2`), 'second\n')
  assert.deepEqual((await Template.assignTags(`${name}:v2`, 'production')).tags, ['production'])
  assert.deepEqual([await has(`${name}:production`), await has(`${name}:v1`), await has(`${name}:default`)], ['second\n', 'first\n', 'first\n'])
  if (Template.getTags) {
    const all = await Template.getTags(name)
    assert.deepEqual(all.map((t) => t.tag), ['default', 'production', 'v1', 'v2'])
    assert.deepEqual([all[0].buildId === all[2].buildId, all[1].buildId === all[3].buildId, all[2].buildId === all[3].buildId], [true, true, false])
    assert.ok(all[0].createdAt instanceof Date)
    await assert.rejects(Template.getTags('nonesuch'), /nonesuch/)
  }
  if (since(version, '2.14.0')) {
    await build(begin().fromBaseImage().runCmd('echo third > ~/text'), name, { tags: ['v3', 'default'] })
    assert.deepEqual([await has(name), await has(`${name}:v3`), await has(`${name}:v1`)], ['third\n', 'third\n', 'first\n'])
  }
  await Template.removeTags(name, ['v1', 'production'])
  await assert.rejects(Sandbox.create(`${name}:v1`), /:v1/)
  assert.equal(await has(`${name}:v2`), 'second\n')
  await assert.rejects(Template.removeTags(name, 'v1'), /v1/)
  await assert.rejects(Template.assignTags(`${name}:v1`, 'x'), /v1/)
  await assert.rejects(Template.assignTags(`${name}:v2`, 'a/b'), /a\/b/)
})
await report.works('Template.toJSON Template.toDockerfile', async () => {
  assert.match(await Template.toJSON(begin().fromImage('x')), /"fromImage": ?"x"/)
  assert.match(Template.toDockerfile(begin().fromImage('x')), /^FROM x/)
})
const lacking = {
  'Template#fromAWSRegistry': () => build(begin().fromAWSRegistry('x', { accessKeyId: 'a', secretAccessKey: 'b', region: 'c' }), 'x'),
  'Template#fromGCPRegistry': () => build(begin().fromGCPRegistry('x', { serviceAccountJSON: {} }), 'x'),
}
for (const [method, run] of Object.entries(lacking)) await report.lacks('credentials of registries', method, () => assert.rejects(run(), /not supported by this server/))
await report.lacks('the MCP gateway', 'Template#addMcpServer')
await report.lacks('dev containers', 'Template#betaDevContainerPrebuild Template#betaSetDevContainerStart')
report.end()

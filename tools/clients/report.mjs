// Reports which public methods of a client work with a server of Sandpit, one line of JSON for each. The reports
// of all clients make docs/COMPATIBILITY.md.
//
// Which methods exist is read from the classes of the client and from their declarations, and which were really
// called from the coverage of the JavaScript engine. So a method can't be forgotten, nor reported unused.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import inspector from 'node:inspector'
import { fileURLToPath } from 'node:url'

const session = new inspector.Session()
session.connect()

// post sends a command to the engine, which answers at once.
function post(method, params) {
  let answer
  session.post(method, params, (error, result) => {
    assert.equal(error, null)
    answer = result
  })
  return answer
}

post('Profiler.enable')
post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })

// since reports whether a version is at least another: since('2.10.0', '2.6.4') is true.
export function since(version, least) {
  const [a, b] = [version, least].map((v) => v.split('.').map(Number))
  const at = a.findIndex((n, i) => n !== b[i])
  return at < 0 || a[at] > b[at]
}

// What a program returns if it can't check its methods on this machine. They are then not compared with docs/COMPATIBILITY.md.
export const unchecked = Symbol('unchecked')

// place returns the script of a function, and where in it its parameters begin, as the engine knows them.
function place(f) {
  globalThis.located = f
  const { objectId } = post('Runtime.evaluate', { expression: 'located' }).result
  const { internalProperties } = post('Runtime.getProperties', { objectId, ownProperties: true })
  return internalProperties.find((p) => p.name === '[[FunctionLocation]]')?.value.value ?? {}
}

export class Report {
  // client and version are those of the package whose declarations are read from the files types.
  constructor(client, version, ...types) {
    Object.assign(this, { client, version, methods: new Map(), statuses: new Map(), private: new Map() })
    for (const file of types) this.#declared(readFileSync(file, 'utf8'))
  }

  // declared finds the methods of classes that are not public.
  #declared(text) {
    for (const [, name, body] of text.matchAll(/^declare (?:abstract )?class (\w+)[^\n]*\{\n([^]*?)^\}/gm)) {
      const hidden = this.private.get(name) ?? new Set()
      this.private.set(name, hidden)
      for (const [, fixed, member] of body.matchAll(/^ +(?:private|protected) (static )?(?:abstract |readonly )*(\w+)/gm)) hidden.add((fixed ? '.' : '#') + member)
    }
  }

  // class adds the methods of a class, "name.method" if they are static and "name#method" otherwise. declared are the
  // names that it and its bases have in the declarations. Methods of base and above do not count.
  class(name, cls, prototype, declared, base = Object) {
    const hidden = new Set(['#constructor', ...declared.flatMap((d) => [...(this.private.get(d) ?? [])])])
    const add = (mark, from, end) => {
      for (let at = from; at && at !== end; at = Object.getPrototypeOf(at)) {
        for (const key of Object.getOwnPropertyNames(at)) {
          const { value } = Object.getOwnPropertyDescriptor(at, key)
          if (typeof value === 'function' && !hidden.has(mark + key) && !this.methods.has(name + mark + key)) this.methods.set(name + mark + key, value)
        }
      }
    }
    if (cls) add('.', cls, base === Object ? Function.prototype : base)
    if (prototype) add('#', prototype, base.prototype)
  }

  // matching returns the methods that a list of patterns names, as far as this version has them.
  #matching(patterns) {
    return patterns.split(' ').flatMap((p) => [...this.methods.keys()].filter((m) => (p.endsWith('*') ? m.startsWith(p.slice(0, -1)) : m === p)))
  }

  // works runs a program that uses methods and checks what they do.
  async works(patterns, run) {
    await this.#run(patterns, run, { status: 'works', called: true })
  }

  // sent runs a program that checks that the requests of methods arrive as they should, and not what they do.
  async sent(patterns, run) {
    await this.#run(patterns, run, { status: 'sent', called: true })
  }

  // lacks runs a program that checks that the server refuses methods by name. Methods that nothing can call since the server
  // refuses what comes before are listed with no program.
  async lacks(reason, patterns, run) {
    await this.#run(patterns, run, { status: 'not yet', reason, called: !!run })
  }

  // refused runs a program that checks that the client refuses methods itself.
  async refused(reason, patterns, run) {
    await this.#run(patterns, run, { status: 'refused by the client', reason, called: true })
  }

  // unused lists methods of what programs never get, since the client refuses what comes before.
  unused(reason, patterns) {
    for (const m of this.#matching(patterns)) this.statuses.set(m, { status: 'refused by the client', reason, called: false })
  }

  async #run(patterns, run, status) {
    const methods = this.#matching(patterns)
    if (methods.length === 0) return
    try {
      if ((await run?.()) === unchecked) {
        for (const m of methods) this.statuses.set(m, { status: 'unchecked', called: false })
        return
      }
    } catch (cause) {
      throw new Error(`${this.client} ${this.version}: ${patterns}: ${cause.message}`, { cause })
    }
    for (const m of methods) if (!this.statuses.has(m)) this.statuses.set(m, status)
  }

  // end prints the report. It fails if a method was forgotten, or is reported but was not called.
  end() {
    // A function is known by its place: two methods may have the same text. The places of those that were called are ranges.
    const called = new Map(post('Profiler.takePreciseCoverage').result.map(({ scriptId, url, functions }) => [scriptId, { url, ranges: functions.map((f) => f.ranges[0]).filter((r) => r.count > 0) }]))
    const texts = new Map()
    const wasCalled = (f) => {
      const { scriptId, lineNumber, columnNumber } = place(f)
      const { url, ranges } = called.get(scriptId) ?? {}
      if (!url?.startsWith('file:')) return false
      if (!texts.has(scriptId)) {
        const text = readFileSync(fileURLToPath(url), 'utf8')
        const lines = [0]
        for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) lines.push(at + 1)
        texts.set(scriptId, { text, lines })
      }
      const { text, lines } = texts.get(scriptId)
      const at = lines[lineNumber] + columnNumber
      return ranges.some((r) => r.startOffset <= at && at < r.endOffset && text.slice(r.startOffset, r.endOffset) === f.toString())
    }
    const all = [...this.methods]
    assert.deepEqual(all.filter(([m]) => !this.statuses.has(m)).map(([m]) => m), [], `methods of ${this.client} ${this.version} that are not reported`)
    assert.deepEqual(all.filter(([m, f]) => this.statuses.get(m).called && !wasCalled(f)).map(([m]) => m), [], 'methods that were not called')
    for (const [method] of all) {
      const { status, reason } = this.statuses.get(method)
      console.log(JSON.stringify({ client: this.client, version: this.version, method, status, reason }))
    }
  }
}

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
      await run?.()
    } catch (cause) {
      throw new Error(`${this.client} ${this.version}: ${patterns}: ${cause.message}`, { cause })
    }
    for (const m of methods) if (!this.statuses.has(m)) this.statuses.set(m, status)
  }

  // end prints the report. It fails if a method was forgotten, or is reported but was not called.
  end() {
    const called = new Set()
    for (const { url, functions } of post('Profiler.takePreciseCoverage').result) {
      if (!url.startsWith('file:') || !url.includes('node_modules')) continue
      const text = readFileSync(fileURLToPath(url), 'utf8')
      for (const { ranges: [r] } of functions) if (r.count > 0) called.add(text.slice(r.startOffset, r.endOffset))
    }
    const all = [...this.methods]
    assert.deepEqual(all.filter(([m]) => !this.statuses.has(m)).map(([m]) => m), [], `methods of ${this.client} ${this.version} that are not reported`)
    assert.deepEqual(all.filter(([m, f]) => this.statuses.get(m).called && !called.has(f.toString())).map(([m]) => m), [], 'methods that were not called')
    for (const [method] of all) {
      const { status, reason } = this.statuses.get(method)
      console.log(JSON.stringify({ client: this.client, version: this.version, method, status, reason }))
    }
  }
}

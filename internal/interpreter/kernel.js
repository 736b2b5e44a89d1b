// The interpreter of a context for JavaScript and TypeScript: it runs blocks of code, one after the other,
// in one global scope. It needs node 18 and nothing but its own modules. A line that sets SETUP precedes it.
// Lines of JSON go both ways over a unix socket; see channel.go.
//
// The code has the main thread. A second thread has the socket, so that it can interrupt a loop.
(() => {
  const fs = require('fs'), path = require('path'), vm = require('vm'), { Session } = require('inspector'),
    { createRequire, stripTypeScriptTypes } = require('module'), { Readable, Writable } = require('stream'),
    { pathToFileURL } = require('url'), util = require('util'), { promiseHooks } = require('v8'), { Worker } = require('worker_threads');
  const setup = JSON.parse(Buffer.from(SETUP, 'base64').toString());
  delete globalThis.SETUP;
  if (parseInt(process.versions.node) < 18) {
    console.error(`node is version ${process.versions.node}, and contexts need 18 or later`);
    process.exit(1);
  }

  // shared[0] counts the lines that were written to the socket. shared[1] is 1 while a run can be interrupted.
  const shared = new Int32Array(new SharedArrayBuffer(8));

  // channel is the second thread.
  function channel() {
    const { parentPort, workerData: { setup, shared } } = require('worker_threads');
    const { Session } = require('inspector');
    let conn = null, next = null, running = null; // the nonce of the run
    let runs = 0; // that have ended

    // A new connection replaces the one before, when no run is in progress.
    function adopt(c) {
      if (conn) conn.destroy();
      conn = c;
      next = null;
      c.write(JSON.stringify({ hello: 1, dir: setup.dir, env: setup.env, runs }) + '\n');
      let parts = [];
      c.setEncoding('utf8').on('data', (part) => {
        const lines = part.split('\n');
        while (lines.length > 1) {
          take(JSON.parse(parts.join('') + lines.shift()));
          parts = [];
        }
        parts.push(lines[0]);
      });
    }

    // A termination ends what the main thread does, or does next. A run begins after it.
    let terminating = false, waiting = null;

    function take(request) {
      if (request.interrupt) {
        interrupt(running);
      } else if (terminating) {
        waiting = request;
        parentPort.postMessage({}); // for it to end
      } else {
        running = request.run;
        parentPort.postMessage({ begin: request });
      }
    }

    // If the main thread waits, it ends the run. If it is busy, what it does is terminated, and then it does so.
    function interrupt(run) {
      if (!run || run !== running) return;
      parentPort.postMessage({ interrupt: true });
      setTimeout(() => {
        if (run !== running || terminating || !Atomics.load(shared, 1)) return;
        terminating = true;
        const main = new Session(); // created only now, because node waits for open sessions when the process exits, and prints a message about them
        main.connectToMainThread();
        main.post('Runtime.terminateExecution', () => {
          main.disconnect();
          terminating = false;
          if (run === running) parentPort.postMessage({ interrupt: true });
          if (waiting) take(waiting);
          waiting = null;
        });
      }, 50);
    }

    parentPort.on('message', ({ line, done }) => {
      const written = () => {
        Atomics.add(shared, 0, 1);
        Atomics.notify(shared, 0);
      };
      if (conn && !conn.destroyed) conn.write(line, written);
      else written(); // the server has gone: another one connects
      if (!done) return;
      running = null;
      runs++;
      if (next) adopt(next);
    });
    require('net').createServer((c) => {
      c.on('error', () => c.destroy());
      if (!running) return adopt(c);
      if (next) next.destroy();
      next = c;
    }).listen(setup.socket, () => parentPort.postMessage({ listening: true }));
  }

  for (const old of setup.stale.concat(setup.socket)) fs.rmSync(old, { force: true });
  const umask = process.umask(0o177);
  const thread = new Worker(`(${channel})()`, { eval: true, workerData: { setup, shared }, execArgv: [], env: {} });

  // What the code may replace, and a run needs to end.
  const { stringify } = JSON, { then } = Promise.prototype, { writeSync, fstatSync, openSync } = fs;

  // Sends a line, and waits until it was written, so that the end of the process does not lose it. If the line is
  // too long, or can't be JSON, it returns false.
  let sent = 0;
  function send(message, done) {
    let line;
    try {
      line = stringify(message) + '\n';
    } catch {
      return false;
    }
    if (line.length > setup.max_line || Buffer.byteLength(line) > setup.max_line) return false;
    thread.postMessage({ line, done });
    sent++;
    for (let now; (now = Atomics.load(shared, 0)) - sent < 0;) Atomics.wait(shared, 0, now);
    return true;
  }

  // Output.

  const pause = new Int32Array(new SharedArrayBuffer(4));
  function write(fd, bytes) {
    while (bytes.length > 0) {
      try {
        bytes = bytes.subarray(writeSync(fd, bytes));
      } catch (e) {
        if (e.code !== 'EAGAIN') throw e; // a child has made the pipe non-blocking
        Atomics.wait(pause, 0, 0, 1);
      }
    }
  }

  const identity = (fd) => ((s) => `${s.dev} ${s.ino}`)(fstatSync(fd)), outputs = [1, 2].map(identity);

  // Marks a place in the output, and returns the sum of the numbers of the outputs that have it.
  function mark(nonce, fds = [1, 2]) {
    let written = 0;
    for (const fd of fds) {
      try {
        if (identity(fd) !== outputs[fd - 1]) continue; // the code has closed its output, and the number is another file's
        write(fd, Buffer.from(`\x1e${nonce}\x1e`));
        written += fd;
      } catch {}
    }
    return written;
  }

  // An output that is written at once, in order with what children write, and that is never closed.
  class Output extends Writable {
    constructor(fd) {
      super({ autoDestroy: false, emitClose: false });
      this.fd = fd;
    }

    _write(chunk, encoding, callback) {
      try {
        write(this.fd, chunk);
        callback();
      } catch (e) {
        callback(e);
      }
    }

    end(chunk, encoding, callback) {
      if (chunk !== undefined && typeof chunk !== 'function') this.write(chunk, encoding);
      return this;
    }

    destroy() {
      return this;
    }
  }

  const stdout = new Output(1), stderr = new Output(2);
  let input = null;
  const replace = (name, get) => Object.defineProperty(process, name, { get, configurable: true, enumerable: true });
  replace('stdout', () => stdout);
  replace('stderr', () => stderr);
  replace('stdin', () => { // at its end, for each who asks
    if (!input || input.readableEnded || input.destroyed) input = Object.assign(new Readable({ read() { this.push(null); } }), { fd: 0 });
    return input;
  });
  globalThis.console = new console.Console({ stdout, stderr });
  process.argv.splice(1);

  // Values.

  const formats = {
    'text/plain': 'text', 'text/html': 'html', 'text/markdown': 'markdown', 'image/svg+xml': 'svg',
    'text/latex': 'latex', 'application/javascript': 'javascript', 'application/json': 'json',
    'image/png': 'png', 'image/jpeg': 'jpeg', 'application/pdf': 'pdf',
  };
  const methods = { _toHtml: 'text/html', _toSvg: 'image/svg+xml', _toPng: 'image/png', _toJpeg: 'image/jpeg' };
  const text = (value) => util.inspect(value, { depth: 4, maxStringLength: null, maxArrayLength: 1000 });

  // Returns the formats of a value by their media types: as Deno's kernel finds them, then IJavascript's, then
  // those of elements of a document.
  function bundle(value) {
    const found = {};
    if (value !== null && typeof value === 'object') {
      const own = value[Symbol.for('Jupyter.display')];
      if (typeof own === 'function') return own.call(value);
      if (typeof value._toMime === 'function') Object.assign(found, value._toMime());
      for (const [name, kind] of Object.entries(methods)) if (typeof value[name] === 'function') found[kind] = value[name]();
      if (typeof value.outerHTML === 'string') found[/^<svg/i.test(value.outerHTML) ? 'image/svg+xml' : 'text/html'] = value.outerHTML;
    }
    found['text/plain'] ??= text(value);
    return found;
  }

  function show(found, main) {
    const output = { main }, extra = {};
    for (const [kind, content] of Object.entries(found ?? {})) {
      const field = formats[kind];
      if (['png', 'jpeg', 'pdf'].includes(field)) output[field] = typeof content === 'string' ? content : Buffer.from(content).toString('base64');
      else if (field === 'json') output.json = content;
      else if (field) output[field] = String(content);
      else if (content !== undefined) extra[kind] = typeof content === 'string' ? content : JSON.stringify(content);
    }
    if (Object.keys(extra).length > 0) output.extra = extra;
    let after = 0;
    if (!main && current && mark(`${current.request.run}\x1f${current.values + 1}`, [1])) after = ++current.values; // the main one comes after everything
    if (!send({ output, after })) send({ after, output: { main, text: '(a value can\'t be displayed: it is too large, or not JSON)' }, truncated: true });
  }

  // Displays a value, or with {raw: true} formats by their media types.
  function display(value, { raw = false, main = false } = {}) {
    const found = raw ? value : bundle(value);
    return util.types.isPromise(found) ? found.then((found) => show(found, main)) : show(found, main);
  }

  // Errors.

  const sources = new Map(); // lines of the latest runs, by their names
  const interrupted = { name: 'Interrupted', value: 'the run was interrupted', traceback: 'Interrupted: the run was interrupted' };
  const clip = (text, most) => text.length <= most ? text : `${text.slice(0, most / 2)}\n...\n${text.slice(-most / 2)}`;

  // Describes what was thrown, with the lines of the code and without frames of this program.
  function describe(error) {
    let name = 'Error', value = '(its text can\'t be made)', trace = value;
    try {
      const is = util.types.isNativeError(error) || error instanceof Error;
      name = clip(String(is ? error.name : error?.constructor?.name ?? typeof error), 1000);
      value = clip(is ? String(error.message) : typeof error === 'string' ? error : text(error), 32 << 10);
      trace = is ? text(error) : `Uncaught ${text(error)}`;
      const lines = [];
      for (const line of trace.split('\n')) {
        if (/^\s+at .*(\[stdin\]|node:inspector|node:internal\/|Worker\.emit \(node:)/.test(line)) continue;
        lines.push(line);
        const [, run, number] = /^\s+at .*\b(run-\d+):(\d+):\d+\)?$/.exec(line) ?? [];
        const source = sources.get(run)?.[number - 1]?.trim();
        if (source) lines.push(`        ${clip(source, 200)}`);
      }
      trace = clip(lines.join('\n'), 64 << 10);
    } catch {}
    return { name, value, traceback: trace };
  }

  // Describes an error of syntax, which V8 found at a place.
  function describeSyntax(details, run) {
    const first = (details.exception?.description ?? details.text).split('\n', 1)[0];
    const [, name, value] = /^(\w+): (.*)$/s.exec(first) ?? [, 'SyntaxError', first];
    const line = sources.get(run)?.[details.lineNumber] ?? '';
    const place = line.length <= 200 ? `${line}\n${' '.repeat(details.columnNumber)}^\n` : '';
    return { name, value, traceback: `${run}:${details.lineNumber + 1}\n${place}${first}` };
  }

  // Modules. The evaluator knows no modules, so the words "import" of the code are replaced by calls.

  const importer = '__sandpit_import__';
  const load = (name, options) => import(/^\.{0,2}\//.test(name) ? pathToFileURL(path.resolve(name)).href : name, options);
  Object.defineProperty(load, 'meta', {
    get() {
      const filename = path.resolve('run.mjs'), { href } = pathToFileURL(filename);
      return { url: href, filename, dirname: process.cwd(), resolve: (name) => pathToFileURL(createRequire(filename).resolve(name)).href };
    },
  });
  Object.defineProperty(globalThis, importer, { value: load });

  // Reports whether the word import or export at a place of the code is a keyword, and not a part of a string, comment
  // or expression: if so, import.meta in its place is an error, outside of modules.
  function isKeyword(code, at) {
    try {
      new vm.Script(`(async () => {${code.slice(0, at)}import.meta${code.slice(at + 'import'.length)}\n})`);
    } catch (e) {
      return /import\.meta/.test(e.message);
    }
    return false;
  }

  const declaration = /import(?:\s*([^\s,{}*'"()]+)\s*,?)??\s*(?:\*\s*as\s+([^\s,{}*'"()]+)|(\{[^}]*\}))?\s*(?:\bfrom\b\s*)?('[^'\n]*'|"[^"\n]*")(?:\s*(?:with|assert)\s*(\{[^}]*\}))?/y;

  function withoutImports(code) {
    const word = /\b(?:import|export)\b/g;
    for (let found; (found = word.exec(code));) {
      const at = found.index;
      if (!isKeyword(code, at)) continue;
      declaration.lastIndex = at;
      const rest = code.slice(at), parts = declaration.exec(code);
      let length = 'import'.length, made = importer;
      if (code.startsWith('export', at)) { // of a declaration, which has no meaning here
        if (!/^export\s+(?:default\s+)?(?:async|class|const|function|let|var)\b/.test(rest)) continue;
        length = /^export\s+(?:default\s+)?/.exec(rest)[0].length;
        made = rest.slice(0, length).replace(/\S/g, ' ');
      } else if (/^import\s*\.\s*meta\b/.test(rest)) {
        length = /^import\s*\.\s*meta\b/.exec(rest)[0].length;
        made += '.meta';
      } else if (parts) {
        const [whole, main, all, names, from, options] = parts;
        length = whole.length;
        const call = `await ${importer}(${from}${options ? `, {with: ${options}}` : ''})`;
        const pattern = [main && `default: ${main}`, names?.slice(1, -1).replace(/\s+as\s+/g, ': ')].filter(Boolean).join(', ');
        made = all ? `const ${all} = ${call}${main ? `, {${pattern}} = ${all}` : ''}` : pattern || names ? `const {${pattern}} = ${call}` : call;
        made += ';' + '\n'.repeat(whole.split('\n').length - made.split('\n').length);
      }
      code = code.slice(0, at) + made + code.slice(at + length);
      word.lastIndex = at + made.length;
    }
    return code;
  }

  // TypeScript.

  const unable = new Error('this node can\'t run the language'); // thrown

  function withoutTypes(code) {
    if (stripTypeScriptTypes) {
      const { emitWarning } = process; // that this is experimental
      process.emitWarning = () => {};
      try {
        return stripTypeScriptTypes(code);
      } catch (e) {
        if (e.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw e;
        return stripTypeScriptTypes(code, { mode: 'transform' });
      } finally {
        process.emitWarning = emitWarning;
      }
    }
    let ts;
    try {
      ts = createRequire(path.resolve('run.js'))('typescript');
    } catch {
      throw unable;
    }
    const { outputText, diagnostics } = ts.transpileModule(code, {
      reportDiagnostics: true, fileName: 'run.ts',
      compilerOptions: { target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext, verbatimModuleSyntax: true, removeComments: false },
    });
    const bad = diagnostics.find((d) => d.category === ts.DiagnosticCategory.Error && d.code < 2000); // of its syntax
    if (bad) throw new SyntaxError(ts.flattenDiagnosticMessageText(bad.messageText, '\n'));
    return outputText.replace(/^export \{\};?$/m, '');
  }

  // Runs.

  let count = 0, current = null;

  // Evaluates a block as consoles do: with await at its top level, and names that may be declared again. The promise
  // is the first one that V8 makes; it is kept, because the end of its life would call us in the midst of a
  // collection of garbage.
  function evaluate(code, run) {
    let answer = null;
    run.session.connect();
    const stop = promiseHooks.onInit((promise) => {
      stop();
      run.promise = promise;
    });
    try {
      run.session.post('Runtime.evaluate', { expression: `${code}\n//# sourceURL=${run.name}`, replMode: true }, (error, result) => { answer = { error, result }; });
    } finally {
      stop();
    }
    if (answer?.error) return finish(run, interrupted);
    if (answer?.result.exceptionDetails) return finish(run, describeSyntax(answer.result.exceptionDetails, run.name));
    then.call(run.promise, (wrapped) => complete(run, wrapped['.repl_result']), (error) => current === run && finish(run, describe(error)));
  }

  // Displays the value of a block. If that is a promise, the run goes on until it is settled.
  async function complete(run, value) {
    try {
      if (util.types.isPromise(value)) value = await value;
      if (current !== run) return;
      if (value !== undefined) {
        if (globalThis._ === last) globalThis._ = last = value; // unless the code has a _ of its own
        await display(value, { main: true });
      }
      if (current === run) finish(run, null);
    } catch (error) {
      if (current === run) finish(run, describe(error));
    }
  }

  let last;

  function begin(request) {
    const run = current = { request, name: `run-${++count}`, before: Object.create(null), session: new Session(), promise: null, values: 0 };
    mark(request.begin);
    try {
      for (const entry of request.env ?? []) {
        const [name, value] = [entry.slice(0, entry.indexOf('=')), entry.slice(entry.indexOf('=') + 1)];
        if (!(name in run.before)) run.before[name] = process.env[name];
        process.env[name] = value;
      }
      sources.set(run.name, request.code.split('\n'));
      if (sources.size > 100) sources.delete(sources.keys().next().value);
      Atomics.store(shared, 1, 1);
      evaluate(withoutImports(setup.language === 'typescript' ? withoutTypes(request.code) : request.code), run);
    } catch (error) {
      if (error === unable) finish(run, undefined, true);
      else finish(run, describe(error));
    }
  }

  function finish(run, error, unable) {
    Atomics.store(shared, 1, 0);
    run.session.disconnect();
    for (const [name, value] of Object.entries(run.before)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    const marked = mark(run.request.run);
    for (const fd of [0, 1, 2]) { // no connection must get the number of an output that the code has closed
      try {
        fstatSync(fd);
      } catch {
        openSync('/dev/null', 'r+'); // the lowest that is free
      }
    }
    send({ done: run.request.run, count, marked, error, unable }, true);
    current = null;
  }

  thread.on('message', (message) => {
    if (message.begin) begin(message.begin);
    else if (message.interrupt && current) finish(current, interrupted);
    else if (message.listening) {
      process.umask(umask);
      mark(setup.nonce);
    }
  });
  process.on('SIGINT', () => {}); // the thread interrupts, if the server asks for that
  process.on('uncaughtException', (error) => stderr.write(`Uncaught ${describe(error).traceback.replace(/^Uncaught /, '')}\n`));
  process.on('exit', () => fs.rmSync(setup.socket, { force: true }));
  Object.defineProperty(globalThis, 'display', { value: display, configurable: true, writable: true });
})();

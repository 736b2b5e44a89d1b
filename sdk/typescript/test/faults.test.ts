// What goes wrong on the way, on a real server.
import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import { readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, type ClientOptions, ClosedError, NotFoundError, Process, run, Sandbox, UnavailableError } from "@sandpit/sdk";
import { find } from "./node_modules/@sandpit/sdk/dist/config.js";
import { directory, eventually, restarted, socket, stalled, ways } from "./server.js";

/** Passes connections on to the server, and cuts each of the first ones after some bytes of answers. */
async function cutter(name: string) {
  const cuts: number[] = [];
  const state = { cuts, cut: 0, address: `unix://${join(directory, name)}`, [Symbol.asyncDispose]: async () => void server.close() };
  const server = createServer((down) => {
    const up = connect(socket);
    const end = () => (down.destroy(), up.destroy());
    let passed = 0;
    down.on("error", end).on("close", end).on("data", (data) => up.write(data));
    up.on("error", end).on("close", end).on("data", (data) => {
      passed += data.length;
      if (cuts[0] !== undefined && passed > cuts[0]) {
        cuts.shift();
        state.cut++;
        end();
      } else {
        down.write(data);
      }
    });
  });
  await new Promise<void>((done) => server.listen(join(directory, name), done));
  return state;
}

const numbers = Array.from({ length: 60000 }, (_, i) => `${i + 1}\n`).join("");
const count = "for i in $(seq 60000); do echo $i; done; exit 5";

test("a lost connection loses no output", async () => {
  await using cut = await cutter("a");
  await using client = new Client({ server: cut.address });
  await using sb = await Sandbox.create({ client });
  cut.cuts.push(30_000, 200_000, 10);
  const got = await sb.run(count);
  assert(got.stdout === numbers);
  assert.deepEqual([got.exitCode, got.lostBytes, cut.cut], [5, 0, 3]);
  const p = await sb.start(count);
  cut.cuts.push(30_000, 100_000);
  let text = "";
  for await (const output of p.output()) text += output.text;
  assert(text === numbers);
  assert.equal(cut.cut, 5);
});

test("output that the server no longer has is reported as lost", async () => {
  await using cut = await cutter("b");
  await using client = new Client({ server: cut.address });
  await using sb = await Sandbox.create({ client });
  const p = await sb.start("head -c 5000000 /dev/zero; touch /tmp/written; sleep 1000");
  while (!(await sb.files.exists("/tmp/written"))) await sleep(20);
  let [lost, passed] = [0, 0];
  for await (const output of p.output()) {
    lost += output.lostBytes;
    passed += output.data.length;
    if (lost + passed === 5_000_000) break;
  }
  assert(lost > 0 && passed > 0);
});

test("a connection that is always lost is an error", async () => {
  await using cut = await cutter("c");
  await using client = new Client({ server: cut.address, reconnect: 500 } as ClientOptions);
  await using sb = await Sandbox.create({ client });
  const p = await sb.start("sleep 1000");
  cut.cuts.push(...Array.from({ length: 20 }, () => 0));
  await assert.rejects(p.output().next(), UnavailableError);
  cut.cuts.length = 0;
});

test("an aborted command is killed, also when it is aborted early", async () => {
  await using client = new Client(ways["a unix socket"]);
  await using sb = await Sandbox.create({ client });
  const aborter = new AbortController();
  const reason = new Error("mine");
  await assert.rejects(sb.run("echo begun; sleep 1000", { signal: aborter.signal, onOutput: () => aborter.abort(reason) }), reason);
  await eventually(async () => (await sb.processes())[0]?.result?.signal === 9);
  for (const begin of [sb.run.bind(sb), sb.start.bind(sb)]) {
    for (let k = 0; k < 12; k++) {
      const early = new AbortController();
      const running = begin("sleep 1000", { signal: early.signal });
      setTimeout(() => early.abort(), k / 2);
      const begun = await running.catch((err: unknown) => assert.equal(err, early.signal.reason));
      if (begun instanceof Process) await begun.kill();
    }
  }
  await eventually(async () => (await sb.processes()).every((p) => p.result));
});

test("a create that is aborted leaves no sandbox", async () => {
  await using client = new Client(ways["a unix socket"]);
  for (let k = 0; k < 12; k++) {
    const aborter = new AbortController();
    const creating = Sandbox.create({ client, signal: aborter.signal });
    setTimeout(() => aborter.abort(), k);
    const made = await creating.catch((err: unknown) => assert.equal(err, aborter.signal.reason));
    await made?.remove();
  }
  await eventually(async () => (await Sandbox.list({ client })).length === 0);
  await assert.rejects(Sandbox.create({ client, signal: AbortSignal.abort() }), { name: "AbortError" });
});

test("an aborted call of a server that does not answer is rejected at once, and is undone when it does", async () => {
  await using client = new Client(ways["a unix socket"]);
  await using sb = await Sandbox.create({ client });
  const own = new Client(ways["a unix socket"]);
  await own.version();
  await stalled(async () => {
    const aborter = new AbortController();
    const { signal } = aborter;
    const calls = [sb.run("sleep 1000", { signal }), sb.start("sleep 1000", { signal }), Sandbox.create({ client: own, signal }), run({ cmd: "sleep 1000", client: own, signal })];
    const ends = Promise.all(calls.map((call) => assert.rejects(call, { name: "AbortError" })));
    await sleep(300);
    const aborted = Date.now();
    aborter.abort();
    await ends;
    await own.close();
    assert(Date.now() - aborted < 5000);
  });
  const ids = async () => (await Sandbox.list({ client })).map((info) => info.id);
  await sleep(1000); // What the server has received is carried out.
  await eventually(async () => (await ids()).length === 1 && (await sb.processes()).every((p) => p.result));
  assert.deepEqual(await ids(), [sb.id]);
});

test("every call can be aborted", async () => {
  await using client = new Client(ways["a unix socket"]);
  await using sb = await Sandbox.create({ client });
  const p = await sb.start("sleep 1000");
  const signal = AbortSignal.timeout(300);
  const read = async (items: AsyncIterable<unknown>) => {
    for await (const _ of items);
  };
  await Promise.all([
    assert.rejects(p.wait({ signal }), { name: "TimeoutError" }),
    assert.rejects(read(p.output({ signal })), { name: "TimeoutError" }),
    assert.rejects(read(sb.logs({ follow: true, signal })), { name: "TimeoutError" }),
    assert.rejects(sb.runCode("import time\ntime.sleep(1000)", { signal }), { name: "TimeoutError" }),
  ]);
  await assert.rejects(sb.files.list("/", { signal }), { name: "TimeoutError" });
  assert.equal((await sb.runCode("1 + 1", { timeout: 60 })).text, "2");
  assert.equal((await p.refresh()).result, undefined);
});

test("a removed sandbox ends its streams", async () => {
  await using client = new Client(ways["a unix socket"]);
  const sb = await Sandbox.create({ client });
  const p = await sb.start("echo begun; sleep 1000");
  const output = p.output();
  assert.equal((await output.next()).value?.text, "begun\n");
  const [ended] = await Promise.all([output.next().catch((err: unknown) => err), sb.remove()]);
  assert(ended instanceof ClosedError || (ended as IteratorResult<unknown>).done);
  await assert.rejects(sb.run("true"), NotFoundError);
});

test("a server that is not there is an error", async () => {
  await assert.rejects(new Client({ server: "http://127.0.0.1:1", key: "sp_x" }).version(), (err) => err instanceof UnavailableError && /can't be reached/.test(err.message));
  await assert.rejects(new Client({ server: `unix://${directory}/none` }).version(), UnavailableError);
  await using silent = new Client({ server: ways["TLS and a key"]!.server, key: "sp_x" });
  await assert.rejects(silent.version(), (err) => err instanceof UnavailableError && /self.signed/.test(err.message));
});

test("without an address this user's server is started, and found again", async () => {
  const home = join(directory, "own");
  symlinkSync(process.env["SANDPIT_BINARY"] ?? "", join(directory, "sandpit"));
  const env = { SANDPIT_HOME: home, HOME: directory, PATH: `${directory}:${process.env["PATH"]}` };
  const found = await find({}, env);
  const pid = Number(readFileSync(join(home, "state", "lock"), "utf8"));
  try {
    assert.equal(found.socket, join(home, "server.sock"));
    assert.equal((await find({}, { ...env, PATH: "" })).socket, found.socket);
    await using client = new Client({ server: `unix://${found.socket}` });
    assert.equal((await client.version())["api"], "v1");
  } finally {
    process.kill(pid);
    for (let lives = true; lives; await sleep(20)) {
      try {
        process.kill(pid, 0);
      } catch {
        lives = false;
      }
    }
  }
});

test("the environment says which certificates and which namespace", async () => {
  const { server, key, ca } = ways["TLS and a key"]!;
  const env = { SSL_CERT_FILE: join(directory, "server.pem"), SANDPIT_SERVER: server, SANDPIT_KEY: key, SANDPIT_NAMESPACE: "docs" };
  Object.assign(process.env, env);
  try {
    await using sb = await Sandbox.create();
    assert.equal(sb.info.raw["namespace"], "docs");
    await using nested = new Client({ server, key, ca, namespace: "docs" });
    assert.deepEqual((await Sandbox.list({ client: nested })).map((info) => info.id), [sb.id]);
    await using client = new Client({ server, key, ca, namespace: "" });
    assert.deepEqual(await Sandbox.list({ client }), []);
  } finally {
    for (const name of Object.keys(env)) delete process.env[name];
  }
});

test("a client that is closed makes no requests", async () => {
  const client = new Client(ways["a unix socket"]);
  await client.version();
  await client.close();
  await assert.rejects(client.version(), ClosedError);
});

test("a removed sandbox with a client of its own says that it was removed", async () => {
  const { server } = ways["a unix socket"]!;
  process.env["SANDPIT_SERVER"] = server;
  try {
    const sb = await Sandbox.create();
    await sb.remove();
    await assert.rejects(sb.run("true"), (err) => err instanceof ClosedError && err.message === `sandbox ${sb.id} was removed`);
  } finally {
    delete process.env["SANDPIT_SERVER"];
  }
});

test("closing a client ends its calls", async () => {
  await using other = new Client(ways["a unix socket"]);
  await using sb = await Sandbox.create({ client: other });
  const p = await sb.start("echo begun; sleep 1000");
  const client = new Client(ways["a unix socket"]);
  const mine = await (await Sandbox.get(sb.id, { client })).process(p.id);
  const output = mine.output();
  await output.next();
  const calls = [assert.rejects(mine.wait(), ClosedError), assert.rejects(output.next(), ClosedError)];
  await client.close();
  await Promise.all(calls);
});

test("calls that share a signal warn of nothing", async (t) => {
  const warned = t.mock.method(process, "emitWarning", () => {});
  await using client = new Client(ways["a unix socket"]);
  const { signal } = new AbortController();
  await Promise.all(Array.from({ length: 50 }, () => client.version({ signal })));
  assert.equal(warned.mock.callCount(), 0);
});

test("a request is repeated once after a 429, when the server says", async () => {
  const { createServer } = await import("node:http");
  const seen: number[] = [];
  let onRefusal = () => {};
  const server = createServer((_, response) => {
    seen.push(Date.now());
    if (seen.length > 1) return void response.end('{"version": "1"}');
    response.writeHead(429, { "Retry-After": "1" }).end('{"code": "rate_limited", "message": "too often"}', onRefusal);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  await using client = new Client({ server: `http://127.0.0.1:${(server.address() as { port: number }).port}`, key: "sp_x" });
  assert.equal((await client.version())["version"], "1");
  assert(seen.length === 2 && seen[1]! - seen[0]! >= 900);
  seen.length = 0;
  const aborter = new AbortController();
  onRefusal = () => aborter.abort();
  await assert.rejects(client.version({ signal: aborter.signal }), { name: "AbortError" });
  assert.equal(seen.length, 1);
  server.close();
});

// The port changes: this test is the last.
test("a restart of the server is waited for", async () => {
  await using client = new Client(ways["a unix socket"]);
  await using sb = await Sandbox.create({ client });
  const gated = "while [ ! -e /tmp/go ]; do sleep 0.02; done";
  const begun = new Set<string>();
  const p = await sb.start(`echo a; ${gated}; echo b; exit 4`);
  const follow = async () => {
    let seen = "";
    for await (const output of p.output()) {
      seen += output.text;
      begun.add("output");
    }
    return seen;
  };
  const log = async () => {
    let seen = "";
    for await (const entry of sb.logs({ follow: true, process: p.id })) {
      seen += entry.text;
      begun.add("log");
      if (seen.includes("b")) break;
    }
    return seen;
  };
  const ran = sb.run(`echo c; ${gated}; cat; exit 5`, { input: "in", onOutput: () => begun.add("run") });
  const all = Promise.all([p.wait(), follow(), log(), ran]);
  all.catch(() => {});
  await eventually(async () => begun.size === 3);
  await restarted(async () => {
    const short = new Client({ ...ways["a unix socket"], reconnect: 300 } as ClientOptions);
    await assert.rejects(new Process(short, `/v1/sandboxes/${sb.id}`, p.info).wait(), UnavailableError);
    await assert.rejects(p.wait({ timeout: 0.3 }), UnavailableError);
    await sleep(4000); // longer than a few quick retries
  });
  await eventually(async () => await sb.files.write("/tmp/go", "").then(() => true, () => false));
  const [ended, followed, logged, result] = await all;
  assert.deepEqual([ended.exitCode, followed, logged, result.stdout, result.exitCode], [4, "a\nb\n", "a\nb\n", "c\nin", 5]);
});

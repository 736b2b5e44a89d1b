// Commands and processes, on a real server.
import assert from "node:assert/strict";
import { Client, CommandFailedError, CommandTimedOutError, InvalidError, NotFoundError, type Output, Result, Sandbox, ServerTimeoutError, StartError } from "@sandpit/sdk";
import { test } from "node:test";
import { eachWay, ways } from "./server.js";

const all = async (outputs: AsyncIterable<Output>) => {
  let text = "";
  for await (const output of outputs) text += output.text;
  return text;
};

eachWay("a command has its output and exit code", async (client) => {
  await using sb = await Sandbox.create({ client });
  let got = await sb.run("echo out; echo err >&2; exit 3");
  assert.deepEqual([got.stdout, got.stderr, got.exitCode, got.ok], ["out\n", "err\n", 3, false]);
  got = await sb.run(["printf", "%s", "-n 'a b'\n"]);
  assert.equal(got.stdout, "-n 'a b'\n");
  got = await sb.run('pwd; echo "$A"; id -un', { env: { A: "ä" }, dir: "/tmp", user: "user" });
  assert.equal(got.stdout, "/tmp\nä\nuser\n");
  await assert.rejects(sb.run("echo why >&2; exit 3", { check: true }), (err) => {
    assert(err instanceof CommandFailedError);
    assert.match(err.message, /exit code 3: why/);
    return err.result.stderr === "why\n";
  });
  await assert.rejects(sb.run(["/no/such"]), (err) => err instanceof StartError && err.exitCode === 127);
});

eachWay("input and output may be any bytes", async (client) => {
  await using sb = await Sandbox.create({ client });
  const data = Buffer.alloc(1_300_000, Uint8Array.from({ length: 251 }, (_, i) => i + 5));
  assert(data.equals((await sb.run(["cat"], { input: data })).stdoutBytes));
  assert.equal((await sb.run("cat; printf é", { input: "ü" })).stdout, "üé");
  assert.equal((await sb.run(["cat"], { input: "" })).stdout, "");
  assert.equal((await sb.run(["true"], { input: Buffer.alloc(8 << 20) })).exitCode, 0);
});

eachWay("long input is written while output is read", async (client) => {
  await using sb = await Sandbox.create({ client });
  const data = Buffer.alloc(12 << 20, Uint8Array.from({ length: 251 }, (_, i) => i));
  const got = await sb.run(["cat"], { input: data, timeout: 120, check: true });
  assert.deepEqual([got.lostBytes, got.stdoutBytes.length], [0, data.length]);
  assert(data.equals(got.stdoutBytes));
  assert.deepEqual([(await sb.run("head -c 3", { input: data })).stdoutBytes.length, (await sb.run("exec <&-; sleep 1", { input: data })).exitCode], [3, 0]);
});

test("a result with lost output is not ok", () => {
  assert.deepEqual([new Result({ exit_code: 0 }).ok, new Result({ exit_code: 0 }, Buffer.of(), Buffer.of(), 1).ok], [true, false]);
});

test("numbers that are not finite are refused", async () => {
  await using client = new Client(ways["a unix socket"]);
  await using sb = await Sandbox.create({ client });
  const p = await sb.start("sleep 1000");
  for (const timeout of [NaN, Infinity, -Infinity]) {
    await assert.rejects(sb.run("true", { timeout }), (err) => err instanceof InvalidError && /timeout is/.test(err.message));
    await assert.rejects(sb.start("true", { timeout }), InvalidError);
    await assert.rejects(sb.runCode("1", { timeout }), InvalidError);
    await assert.rejects(p.wait({ timeout }), InvalidError);
    await assert.rejects(sb.extend(timeout), InvalidError);
    await assert.rejects(Sandbox.create({ life: timeout, client }), InvalidError);
    await assert.rejects(sb.logs({ tail: timeout }).next(), InvalidError);
  }
});

eachWay("names that are not UTF-8 can be in commands", async (client) => {
  await using sb = await Sandbox.create({ client });
  const name = "/tmp/ü\udcff";
  await sb.files.mkdir(name);
  await sb.files.write(`${name}/a`, "it");
  assert.equal((await sb.run(["cat", `${name}/a`])).stdout, "it");
  assert.equal((await sb.run(`cat '${name}/a'`)).stdout, "it");
  assert.equal((await sb.run(["cat", "a"], { dir: name, check: true })).stdout, "it");
  assert.equal((await sb.run('cat "$A/a"', { env: { A: name } })).stdout, "it");
  const p = await sb.start(["cat", `${name}/a`]);
  assert.deepEqual([(await p.wait()).exitCode, p.info.argv], [0, ["cat", `${name}/a`]]);
});

eachWay("output is bounded", async (client) => {
  await using sb = await Sandbox.create({ client });
  const got = await sb.run("head -c 1000000 /dev/zero", { maxOutput: 1000 });
  assert.deepEqual([got.stdoutBytes.length, got.truncated, got.exitCode], [1000, true, 0]);
});

eachWay("a timeout kills, and keeps the output", async (client) => {
  await using sb = await Sandbox.create({ client });
  const got = await sb.run("echo begun; sleep 1000", { timeout: 0.5 });
  assert.deepEqual([got.timedOut, got.exitCode, got.stdout], [true, 124, "begun\n"]);
  await assert.rejects(sb.run("sleep 1000", { timeout: 0.1, check: true }), CommandTimedOutError);
  assert((await sb.processes()).every((p) => p.result));
});

eachWay("output comes while the command runs", async (client) => {
  await using sb = await Sandbox.create({ client });
  const writes: Promise<number>[] = [];
  const onOutput = (output: Output) => void (output.text === "a\n" && writes.push(sb.files.write("/tmp/go", "")));
  const got = await sb.run("echo a; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo b", { onOutput, timeout: 60 });
  assert.deepEqual([got.stdout, writes.length], ["a\nb\n", 1]);
});

eachWay("characters are not cut", async (client) => {
  await using sb = await Sandbox.create({ client });
  const p = await sb.start("printf '\\303'; sleep 0.2; printf '\\251\\n\\303'");
  const pieces = [];
  for await (const output of p.output()) pieces.push(output.text);
  assert.equal(pieces.join(""), "é\n\ufffd");
});

eachWay("a process in the background is written to and waited for", async (client) => {
  await using sb = await Sandbox.create({ client });
  const p = await sb.start(["cat"], { stdin: true, tag: "mine" });
  await assert.rejects(p.wait({ timeout: 0.2 }), ServerTimeoutError);
  await p.stdin.write("one\n");
  const again = await sb.process(p.id);
  assert.deepEqual([again.pid, again.info.tag, again.info.argv, again.info.background], [p.pid, "mine", ["cat"], true]);
  await again.stdin.write(Buffer.from("two\n"));
  await p.stdin.close();
  assert.equal(await all(p.output()), "one\ntwo\n");
  assert.equal((await p.wait()).exitCode, 0);
  assert.equal((await p.refresh()).result?.exitCode, 0);
  assert.equal(await all((await sb.process(p.pid)).output()), "one\ntwo\n");
});

eachWay("a process gets signals", async (client) => {
  await using sb = await Sandbox.create({ client });
  const p = await sb.start("trap 'exit 7' INT; trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done");
  for await (const output of p.output()) {
    if (output.text.includes("usr1")) break;
    await p.signal("SIGUSR1");
  }
  await p.interrupt();
  assert.equal((await p.wait({ timeout: 60 })).exitCode, 7);
  await assert.rejects(p.signal(15), NotFoundError);
  const q = await sb.start("sleep 1000");
  await q.kill();
  await q.kill();
  assert.equal((await q.wait()).signal, 9);
});

eachWay("a terminal has a size, which changes", async (client) => {
  await using sb = await Sandbox.create({ client });
  const p = await sb.start("trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done", { terminal: { rows: 10, cols: 20 } });
  let shown = "";
  for await (const output of p.output()) {
    if (!shown) await p.resize({ rows: 30, cols: 40 });
    shown += output.text;
  }
  assert.equal(shown, "10 20\r\n30 40\r\n");
});

eachWay("output without its history leaves out what was before", async (client) => {
  await using sb = await Sandbox.create({ client });
  const p = await sb.start("echo before; while :; do echo tick; sleep 0.05; done");
  for await (const output of p.output()) if (output.text.includes("tick")) break;
  for await (const output of p.output({ history: false })) {
    assert.match(output.text, /^(tick\n)+$/);
    break;
  }
});

// Runs of one command in a sandbox of its own, on a real server.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { InvalidError, Result, Run, run, Sandbox, SandpitError } from "@sandpit/sdk";
import { directory, eachWay, eventually } from "./server.js";

eachWay("files go in and come out", async (client) => {
  const got = await run({
    cmd: "cat in/a.txt; mkdir -p out/deep; echo 1 >out/1.csv; echo 2 >out/deep/2.csv; ln -s /etc/passwd out/link; exit 3",
    files: { "in/a.txt": "hello\n", "/tmp/b": Buffer.of(0xff) },
    collect: ["out/**", "*.none", "/tmp/b"],
    client,
  });
  assert.deepEqual([got.stdout, got.exitCode, got.ok], ["hello\n", 3, false]);
  const files = [...got.files].map(([path, content]) => [path.split("/").at(-1), Buffer.from(content).toString("latin1")]);
  assert.deepEqual(files.sort(), [["1.csv", "1\n"], ["2.csv", "2\n"], ["b", "\xff"]]);
  assert.deepEqual([...got.omitted.values()], ["it is a symlink, not a file"]);
  assert.deepEqual(got.unmatched, ["*.none"]);
  assert.deepEqual(await Sandbox.list({ client }), []);
  const to = join(directory, String(Math.random()));
  assert.equal((await got.save(to)).length, 3);
  assert.equal(readFileSync(join(to, "tmp", "b"), "latin1"), "\xff");
});

eachWay("files come out after a timeout, too", async (client) => {
  const got = await run({ cmd: "echo 1 >a; sleep 1000", dir: "/tmp", workdir: "/usr", collect: ["a"], timeout: 0.5, client });
  assert.deepEqual([got.exitCode, [...got.files.keys()]], [124, ["/tmp/a"]]);
});

eachWay("what is collected is bounded", async (client) => {
  const cmd = "cd /tmp; for i in 1 2 3 4 5; do echo $i >f$i; done; head -c 100 /dev/zero >big";
  let got = await run({ cmd, collect: ["/tmp/f*", "/tmp/big"], maxBytes: 50, client });
  assert.deepEqual([got.files.size, [...got.omitted]], [5, [["/tmp/big", "it has 100 bytes, and 40 of 50 are left"]]]);
  got = await run({ cmd, collect: ["/tmp/f*"], maxFiles: 3, client });
  assert.deepEqual([got.files.size, [...got.omitted]], [3, [["...", "there are more than 3 files"]]]);
});

eachWay("an aborted run leaves no sandbox", async (client) => {
  const aborter = new AbortController();
  const running = run({ cmd: "echo begun; sleep 1000", onOutput: () => aborter.abort(), signal: aborter.signal, client });
  await assert.rejects(running, { name: "AbortError" });
  await eventually(async () => (await Sandbox.list({ client })).length === 0);
});

test("names of a sandbox write nothing elsewhere", async () => {
  const [to, outside] = [join(directory, "to"), join(directory, "outside")];
  mkdirSync(to);
  mkdirSync(outside);
  symlinkSync(outside, join(to, "link"));
  writeFileSync(join(outside, "f"), "mine");
  symlinkSync(join(outside, "f"), join(to, "name"));
  execFileSync("mkfifo", [join(to, "pipe")]);
  const save = async (files: Record<string, string>, below?: string) => {
    const contents = Object.entries(files).map(([path, content]) => [path, Buffer.from(content)] as const);
    return await new Run(new Result({}), new Map(contents), new Map(), []).save(to, below ? { below } : {});
  };
  await assert.rejects(save({ "/link/f": "x" }), (err) => err instanceof SandpitError && /may be in the way/.test(err.message));
  await assert.rejects(save({ "/link/d/f": "x" }), SandpitError);
  await assert.rejects(save({ "../outside/f": "x" }), InvalidError);
  await assert.rejects(save({ "/a/b": "x" }, "/c"), InvalidError);
  await assert.rejects(save({ "/a\0b": "x" }), InvalidError);
  assert.deepEqual(await save({ "/name": "x", "/pipe": "y", "/a/b\udcff": "z" }), ["name", "pipe", "a/b\udcff"]);
  assert.deepEqual([readFileSync(join(outside, "f"), "utf8"), readdirSync(outside)], ["mine", ["f"]]);
  assert.deepEqual([readFileSync(join(to, "name"), "utf8"), readFileSync(join(to, "pipe"), "utf8")], ["x", "y"]);
  assert.deepEqual(readdirSync(to).sort(), ["a", "link", "name", "pipe"]);
  assert(existsSync(Buffer.concat([Buffer.from(join(to, "a/b")), Buffer.of(0xff)])));
});

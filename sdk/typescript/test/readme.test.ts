// The examples of README.md, which are beside this file.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync } from "node:fs";
import { test } from "node:test";
import { promisify } from "node:util";
import { ways } from "./server.js";

const examples = readdirSync(".").filter((name) => /^example\d+\.js$/.test(name));
assert.equal(examples.length, 2);

for (const example of examples) {
  test(`${example} of README.md runs`, async () => {
    const env = { ...process.env, SANDPIT_SERVER: ways["a unix socket"]?.server };
    const { stdout, stderr } = await promisify(execFile)(process.execPath, [example], { env, timeout: 120_000 });
    assert.match(stdout, /hello/);
    assert.equal(stderr, "");
  });
}

// Sandboxes as programs use them, on a real server.
import assert from "node:assert/strict";
import { NotFoundError, Sandbox } from "@sandpit/sdk";
import { eachWay } from "./server.js";

eachWay("a command has its output and exit code", async (client) => {
  await using sb = await Sandbox.create({ client });
  let got = await sb.run("echo out; echo err >&2; exit 3");
  assert.deepEqual([got.stdout, got.stderr, got.exitCode, got.ok], ["out\n", "err\n", 3, false]);
  got = await sb.run(["printf", "%s", "-n 'a b'\n"]);
  assert.equal(got.stdout, "-n 'a b'\n");
});

eachWay("a sandbox is found, listed and removed", async (client) => {
  let id;
  {
    await using sb = await Sandbox.create({ labels: { team: "sdk" }, memory: 128 << 20, client });
    id = sb.id;
    const again = await Sandbox.get(id, { client });
    assert.deepEqual([again.id, again.info.labels], [id, { team: "sdk" }]);
    const listed = async (team: string) => (await Sandbox.list({ labels: { team }, states: ["running"], client })).map((info) => info.id);
    assert.deepEqual([await listed("sdk"), await listed("other")], [[id], []]);
  }
  await assert.rejects(Sandbox.get(id, { client }), NotFoundError);
});

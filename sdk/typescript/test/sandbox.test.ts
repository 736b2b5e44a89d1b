// Sandboxes as programs use them, on a real server.
import assert from "node:assert/strict";
import { FileNotFoundError, InvalidError, NotFoundError, Sandbox } from "@sandpit/sdk";
import { eachWay } from "./server.js";

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

eachWay("a sandbox that is removed is gone", async (client) => {
  const sb = await Sandbox.create({ client });
  await sb.remove();
  await sb.remove();
  await (await Sandbox.create({ client })).remove();
  await assert.rejects(sb.run("true"), NotFoundError);
  await assert.rejects(sb.files.read("/etc/passwd"), NotFoundError);
});

eachWay("an error says what to do", async (client) => {
  await assert.rejects(Sandbox.create({ name: "not a name", client }), (err) => {
    assert(err instanceof InvalidError);
    assert.deepEqual([err.code, err.status, err.requestId.length > 0, err.name], ["invalid", 400, true, "InvalidError"]);
    return true;
  });
  await assert.rejects(Sandbox.create({ memory: 2 ** 50, client }), (err: InvalidError) => err.hint.length > 0);
  await using sb = await Sandbox.create({ client });
  await assert.rejects(sb.files.read("/none"), (err) => err instanceof FileNotFoundError && err.path === "/none");
});

eachWay("a sandbox is paused, resumed, stopped, started and extended", async (client) => {
  await using sb = await Sandbox.create({ life: 600, client });
  assert.equal((await sb.pause()).state, "paused");
  assert.equal((await sb.resume()).state, "running");
  assert.equal((await sb.stop({ grace: 0 })).state, "stopped");
  assert.equal((await sb.restart()).state, "running");
  const before = sb.info.expiresAt;
  const after = (await sb.extend(3600)).expiresAt;
  assert(before && after && after.getTime() - before.getTime() > 2_000_000);
  assert.equal((await sb.refresh()).expiresAt?.getTime(), after.getTime());
  assert(Number((await sb.metrics())["memory"]) > 0);
});

eachWay("the log has what processes wrote", async (client) => {
  await using sb = await Sandbox.create({ client });
  await sb.run("echo one; echo two >&2");
  await sb.run("echo three");
  const logged = async (options: { tail?: number }) => {
    const entries = [];
    for await (const entry of sb.logs(options)) entries.push([entry.stream, entry.text]);
    return entries;
  };
  const want = [
    ["stdout", "one\n"],
    ["stderr", "two\n"],
    ["stdout", "three\n"],
  ];
  const byText = (a: string[], b: string[]) => String(a[1]).localeCompare(String(b[1]));
  assert.deepEqual((await logged({})).sort(byText), want.sort(byText));
  assert.deepEqual(await logged({ tail: 1 }), [["stdout", "three\n"]]);
  for await (const entry of sb.logs({ follow: true })) {
    if (entry.text === "four\n") break;
    if (entry.text === "three\n") await sb.run("echo four");
  }
});

eachWay("a port is listed, and has a preview", async (client) => {
  await using sb = await Sandbox.create({ client });
  const server = await sb.start(["python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "8000"], { dir: "/tmp" });
  for await (const _ of server.output()) break;
  assert.deepEqual(await sb.ports(), [8000]);
  await sb.files.write("/tmp/hello.txt", "hello");
  const url = await sb.preview(8000, { expires: 60 });
  assert.match(url, new RegExp(`^https://8000-${sb.id}\\.localhost:\\d+/\\?sandpit-preview=`));
});

// Files of sandboxes, on a real server.
import assert from "node:assert/strict";
import { createReadStream, writeFileSync } from "node:fs";
import { join } from "node:path";
import { FileExistsError, FileNotFoundError, FilePermissionError, IsADirectoryError, NotADirectoryError, Sandbox } from "@sandpit/sdk";
import { directory, eachWay } from "./server.js";

const data = Buffer.alloc(5_000_000, Uint8Array.from({ length: 251 }, (_, i) => i + 5));

eachWay("files are written, read, listed and removed", async (client) => {
  await using sb = await Sandbox.create({ client });
  const path = "/tmp/a/b c\n%ü.bin";
  assert.equal(await sb.files.write(path, data, { mode: 0o640 }), data.length);
  assert(data.equals(await sb.files.read(path)));
  const info = await sb.files.stat(path);
  assert.deepEqual([info.size, info.mode, info.type], [data.length, 0o640, "file"]);
  assert.deepEqual((await sb.files.list("/tmp/a")).map((f) => f.name), ["b c\n%ü.bin"]);
  await sb.files.write("/tmp/a/text", "\ufeffé");
  await sb.files.write("/tmp/a/text", "!", { append: true });
  assert.equal(await sb.files.readText("/tmp/a/text"), "\ufeffé!");
  await sb.files.mkdir("/tmp/a/d/e");
  await sb.files.move("/tmp/a/text", "/tmp/a/d/e/moved");
  await sb.files.copy("/tmp/a/d", "/tmp/a/copy", { recursive: true });
  const found = [];
  for await (const f of sb.files.find("/tmp/a", "**/moved")) found.push(f.name);
  assert.deepEqual(found.sort(), ["copy/e/moved", "d/e/moved"]);
  await sb.files.symlink("/tmp/a/link", "nowhere");
  assert.deepEqual([await sb.files.exists("/tmp/a/link"), await sb.files.exists("/tmp/a/nowhere")], [true, false]);
  assert.equal(await sb.files.readlink("/tmp/a/link"), "nowhere");
  await sb.files.remove("/tmp/a", { recursive: true });
  assert.equal(await sb.files.exists("/tmp/a"), false);
});

eachWay("errors of files are told apart", async (client) => {
  await using sb = await Sandbox.create({ client });
  await sb.files.write("/tmp/d/f", "");
  await assert.rejects(sb.files.readText("/tmp/none"), FileNotFoundError);
  await assert.rejects(sb.files.read("/tmp"), IsADirectoryError);
  await assert.rejects(sb.files.list("/tmp/d/f"), NotADirectoryError);
  await assert.rejects(sb.files.remove("/tmp/d"), NotADirectoryError);
  await assert.rejects(sb.files.mkdir("/tmp/d", { parents: false }), FileExistsError);
  await assert.rejects(sb.files.write("/etc/passwd", "", { user: "nobody" }), FilePermissionError);
  for (const content of [Buffer.alloc(20 << 20), new Blob([Buffer.alloc(20 << 20)])]) {
    await assert.rejects(sb.files.write("/etc/passwd", content, { user: "nobody" }), FilePermissionError);
  }
  await assert.rejects(sb.files.stream("/tmp/none").getReader().read(), FileNotFoundError);
});

eachWay("content of any size goes in and out as a stream", async (client) => {
  await using sb = await Sandbox.create({ client });
  const local = join(directory, "local");
  writeFileSync(local, data);
  assert.equal(await sb.files.write("/tmp/a", createReadStream(local)), data.length);
  assert.equal(await sb.files.write("/tmp/b", sb.files.stream("/tmp/a")), data.length);
  assert.equal(await sb.files.write("/tmp/c", new Blob([data])), data.length);
  const parts = [];
  for await (const part of sb.files.stream("/tmp/b")) parts.push(part);
  assert(data.equals(Buffer.concat(parts)));
  assert(data.equals(await sb.files.read("/tmp/c")));
  const reader = sb.files.stream("/tmp/a").getReader();
  assert((await reader.read()).value);
  await reader.cancel();
  await assert.rejects(sb.files.write("/tmp/d", createReadStream(join(directory, "none"))), { code: "ENOENT", path: join(directory, "none") });
  assert.equal(await sb.files.exists("/tmp/d"), false);
});

eachWay("names that are not UTF-8 can be used", async (client) => {
  await using sb = await Sandbox.create({ client });
  await sb.run("mkdir /tmp/d; printf x >/tmp/d/$(printf 'a\\377\\303b')", { check: true });
  const [only] = await sb.files.list("/tmp/d");
  assert.equal(only?.name, "a\udcff\udcc3b");
  assert.equal(await sb.files.readText(`/tmp/d/${only.name}`), "x");
});

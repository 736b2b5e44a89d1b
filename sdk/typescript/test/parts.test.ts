// The parts that need no server.
import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { ForbiddenError, InvalidError, RateLimitedError, Sandbox, SandpitError, StreamLostError, UnavailableError, version } from "@sandpit/sdk";
import { find, parse } from "./node_modules/@sandpit/sdk/dist/config.js";
import { errorOf } from "./node_modules/@sandpit/sdk/dist/errors.js";
import { serverEvents } from "./node_modules/@sandpit/sdk/dist/events.js";
import { Cursor, FrameReader } from "./node_modules/@sandpit/sdk/dist/frames.js";
import { readInfo } from "./node_modules/@sandpit/sdk/dist/models.js";
import { bytesOf, escape, nameOf } from "./node_modules/@sandpit/sdk/dist/names.js";

const directory = mkdtempSync(join(tmpdir(), "sdk-"));
after(() => rmSync(directory, { recursive: true }));

const cut = (data: Buffer, size: number) => Array.from({ length: Math.ceil(data.length / size) }, (_, i) => data.subarray(i * size, (i + 1) * size));

test("frames are cut wherever the bytes are", () => {
  const frame = (type: number, payload: Buffer) => Buffer.concat([Buffer.of(type, 0, payload.length >> 16, (payload.length >> 8) & 255, payload.length & 255), payload]);
  const sent = [frame(1, Buffer.from("{}")), frame(2, Buffer.from("abc")), frame(7, Buffer.alloc(0)), frame(6, Buffer.alloc(70000))];
  const data = Buffer.concat(sent);
  for (const size of [1, 2, 5, 1000, data.length]) {
    const frames = new FrameReader();
    const got = cut(data, size).flatMap((part) => [...frames.feed(part)]);
    assert.deepEqual(got.map(([type, payload]) => [type, payload.length]), [[1, 2], [2, 3], [7, 0], [6, 70000]]);
  }
  assert.throws(() => [...new FrameReader().feed(Buffer.from("HTTP/1.1 400"))], StreamLostError);
});

test("a repeated answer continues where the output was", () => {
  const c = new Cursor();
  const output = (text: string) => c.output(Buffer.from(text)).toString();
  c.restart();
  assert.equal(output("abcdef"), "abcdef");
  c.restart();
  assert.deepEqual([output("abc"), output("defgh")], ["", "gh"]);
  c.restart();
  assert.deepEqual([c.lost(6), output("ghij")], [0, "ij"]);
  c.restart();
  assert.deepEqual([c.lost(15), output("z"), c.position], [5, "z", 16]);
});

test("server-sent events are cut wherever the bytes are", async () => {
  const data = Buffer.from(': ping\n\nevent: end\nid: 7\ndata: {"a":\ndata: 1}\n\nevent: x\r\ndata: {"b":"é"}\r\n\r\n');
  for (const size of [1, 3, data.length]) {
    const got = [];
    for await (const event of serverEvents(ReadableStream.from(cut(data, size)))) got.push(event);
    assert.deepEqual(got, [["end", { a: 1 }], ["x", { b: "é" }]]);
  }
});

test("codes of newer servers get the class of their status", () => {
  const err = errorOf(429, { code: "brand_new", message: "m", hint: "h", request_id: "r" }, "7");
  assert(err instanceof RateLimitedError);
  assert.deepEqual([err.message, err.code, err.hint, err.requestId, err.retryAfter, err.status], ["m", "brand_new", "h", "r", 7, 429]);
  assert.equal(errorOf(418, { code: "constructor" }).constructor, SandpitError);
  assert.equal(errorOf(404, { code: "file_not_found" }).name, "FileNotFoundError");
});

test("every code of the server has its class", () => {
  const codes = (process.env["SANDPIT_ERROR_CODES"] ?? "").split(" ");
  assert(codes.includes("closed"));
  assert.deepEqual(codes.filter((code) => errorOf(0, { code }).constructor === SandpitError).sort(), ["canceled", "internal"]);
});

test("fields of newer servers are kept", () => {
  const info = readInfo({ id: "a", later: 1, created_at: "2026-01-02T03:04:05.123456789Z" });
  assert.deepEqual([info.raw["later"], info.createdAt?.toISOString(), info.expiresAt], [1, "2026-01-02T03:04:05.123Z", undefined]);
});

test("a name of any bytes is the same again", () => {
  for (const bytes of [Buffer.from("a é \u{1f600}\ufeff"), Buffer.of(0x61, 0xff, 0xc3, 0x62, 0xed, 0xb2, 0x80, 0xf0, 0x9f)]) {
    assert.deepEqual(bytesOf(nameOf(bytes)), bytes);
    assert.deepEqual(Buffer.from(escape(nameOf(bytes)).replace(/%(..)/g, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16))), "latin1"), bytes);
  }
});

test("addresses that are not one are refused", () => {
  for (const address of ["", "nonsense", "ftp://a", "https://", "https://a:b", "https://u@a", "https://a/b", "https://a?b", "unix://relative"]) {
    assert.throws(() => parse(address, "sp_key"), (err) => err instanceof InvalidError && /is not a server address/.test(err.message), address);
  }
});

test("keys are not sent by plain HTTP to other machines", () => {
  assert.throws(() => parse("http://example.com", "sp_key"), /only on this machine/);
  assert.throws(() => parse("http://127.0.0.1.example.com", "sp_key"), /only on this machine/);
  assert.equal(parse("http://127.0.0.1:1", "sp_key").url, "http://127.0.0.1:1");
  assert.equal(parse("https://[::1]:1", "sp_key").url, "https://[::1]:1");
  assert.throws(() => parse("https://example.com", ""), /needs a key/);
});

test("without a server and the program, the error says both", async () => {
  await assert.rejects(find({}, { SANDPIT_HOME: directory, PATH: directory }), (err) => err instanceof UnavailableError && /no server listens.*not installed/.test(err.message));
});

test("the socket of another user is refused", async (t) => {
  const path = join(directory, "s");
  const server = createServer();
  await new Promise<void>((done) => server.listen(path, done));
  assert.equal(parse(`unix://${path}`, "").socket, path);
  const real = fs.statSync;
  t.mock.method(fs, "statSync", (name: string) => {
    const info = real(name);
    if (name === path) info.uid = (process.geteuid?.() ?? 0) + 4242;
    return info;
  });
  syncBuiltinESMExports();
  assert.throws(() => parse(`unix://${path}`, ""), (err) => err instanceof ForbiddenError && /another user/.test(err.message));
  t.mock.restoreAll();
  syncBuiltinESMExports();
  server.close();
});

test("an ID does not lead elsewhere", async () => {
  for (const id of ["", ".", ".."]) await assert.rejects(Sandbox.get(id), InvalidError);
  assert.equal(escape("a/../b?c"), "a%2F..%2Fb%3Fc");
});

test("a key with invalid characters is not shown", async () => {
  assert.equal((await find({ server: "https://a", key: "sp_key\n" }, {})).key, "sp_key");
  await assert.rejects(find({ server: "https://a", key: "sp_k\ney" }, {}), (err) => err instanceof InvalidError && !err.message.includes("sp_k"));
});

test("the address that the program prints is used", async () => {
  const program = join(directory, "sandpit");
  writeFileSync(program, `#!/bin/sh\necho '{"server": "https://a:1", "credentials": "environment", "namespace": "docs"}'\n`);
  chmodSync(program, 0o755);
  const found = await find({}, { SANDPIT_HOME: directory, PATH: `${directory}:/usr/bin:/bin`, SANDPIT_KEY: "sp_key" });
  assert.deepEqual([found.url, found.key, found.namespace], ["https://a:1", "sp_key", "docs"]);
  writeFileSync(program, "#!/bin/sh\necho why >&2; exit 1\n");
  await assert.rejects(find({}, { SANDPIT_HOME: directory, PATH: `${directory}:/usr/bin:/bin` }), /starting a server with sandpit: why/);
});

test("the version is that of the package", () => {
  assert.equal((JSON.parse(readFileSync("node_modules/@sandpit/sdk/package.json", "utf8")) as { version: string }).version, version);
});

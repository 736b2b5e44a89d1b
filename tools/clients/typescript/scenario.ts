// The scenario of every generated client, see internal/server: TestGeneratedClients.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];

// The media type is that of results: without it, what exec returns could also be a stream.
const client = createClient<paths, "application/json">({
  baseUrl: process.env.SANDPIT_URL!,
  headers: { Authorization: `Bearer ${process.env.SANDPIT_KEY}` },
});

// take returns what an operation answers, and throws if it failed.
function take<T>(answer: { data?: T; error?: Schemas["Error"] }): T {
  if (answer.error) throw new Error(`${answer.error.code}: ${answer.error.message}`);
  assert(answer.data !== undefined);
  return answer.data;
}

// events yields the server-sent events of a stream.
async function* events<T>(body: ReadableStream<Uint8Array>): AsyncGenerator<T> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const part of body) {
    text += decoder.decode(part, { stream: true });
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const fields = text.slice(0, end).split("\n").filter((line) => !line.startsWith(":"));
      text = text.slice(end + 2);
      if (fields.length === 0) continue;
      const event = Object.fromEntries(fields.map((line) => line.split(/: ?(.*)/s, 2)));
      yield { ...event, data: JSON.parse(event.data) } as T;
    }
  }
}

const label = { label: ["client=typescript"] };
const made: Schemas["Sandbox"][] = [];
for (const name of ["ts-one", "ts-two"]) {
  made.push(take(await client.POST("/v1/sandboxes", { body: { name, labels: { client: "typescript" }, env: { GREETING: "hello" } } })));
}
const first = made[0]!;
assert.equal(first.state satisfies Schemas["SandboxState"], "running");
const sb = { path: { sb: first.id } };

// A process that is waited for, and a command with its output.
const started = take(await client.POST("/v1/sandboxes/{sb}/processes", { params: sb, body: { argv: ["sh", "-c", "exit 4"] } }));
const ended = take(await client.GET("/v1/sandboxes/{sb}/processes/{p}/wait", { params: { path: { ...sb.path, p: started.id } } }));
assert.equal(ended.result?.exit_code, 4);
const done = take(await client.POST("/v1/sandboxes/{sb}/exec", { params: sb, body: { script: 'echo "$GREETING"; echo oops >&2; exit 3' } }));
assert.deepEqual([done.stdout, done.stderr, done.result.exit_code], ["hello\n", "oops\n", 3]);

// Errors have a code of the enum.
const failed = await client.POST("/v1/sandboxes/{sb}/exec", { params: sb, body: { argv: ["/no/such"] } });
assert(failed.error);
const code: Schemas["ErrorCode"] = failed.error.code;
assert.equal(code, "start_failed");
assert.equal(failed.error.exit_code, 127);

// A file of any bytes.
const bytes = Uint8Array.from({ length: 512 }, (_, i) => i % 256);
const file = { params: { ...sb, query: { path: "/tmp/bytes" } } };
const written = take(await client.PUT("/v1/sandboxes/{sb}/files", { ...file, body: bytes as unknown as string, bodySerializer: (b) => b as unknown as BodyInit, headers: { "Content-Type": "application/octet-stream" } }));
assert.equal(written.bytes, bytes.length);
const read = take(await client.GET("/v1/sandboxes/{sb}/files", { ...file, parseAs: "arrayBuffer" }));
assert.deepEqual(new Uint8Array(read), bytes);

// Pages of a list with a filter.
const page = take(await client.GET("/v1/sandboxes", { params: { query: { ...label, state: ["running"], limit: 1 } } }));
assert(page.next);
const last = take(await client.GET("/v1/sandboxes", { params: { query: { ...label, state: ["running"], limit: 1, after: page.next } } }));
assert.equal(last.next, undefined);
assert.deepEqual([...page.sandboxes, ...last.sandboxes].map((s) => s.name), ["ts-one", "ts-two"]);

// Labels change, which is an event.
const changed = take(await client.PATCH("/v1/sandboxes/{sb}", { params: sb, body: { labels: { client: null, color: "red" } } }));
assert.deepEqual(changed.labels, { color: "red" });
const following = new AbortController();
const stream = take(await client.GET("/v1/events", { params: { query: { sandbox: first.id, after: page.seq } }, parseAs: "stream", signal: following.signal }));
assert(stream);
let seen: Schemas["Event"] | undefined;
for await (const event of events<Schemas["EventStreamItem"]>(stream)) {
  if (event.event === "begin") {
    assert.equal(typeof event.data.seq, "number");
  } else if (event.event === "end") {
    assert.fail(event.data.reason);
  } else if (event.event === "sandbox.updated") {
    seen = event.data;
    break;
  }
}
following.abort();
assert.equal(seen?.labels?.color, "red");

for (const { id } of made) {
  const { response } = await client.DELETE("/v1/sandboxes/{sb}", { params: { path: { sb: id } } });
  assert.equal(response.status, 204);
}
const gone = await client.GET("/v1/sandboxes/{sb}", { params: sb });
assert.equal(gone.error?.code satisfies Schemas["ErrorCode"] | undefined, "not_found");

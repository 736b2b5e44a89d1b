import { StreamLostError } from "./errors.js";
import { type Json, parsed } from "./json.js";

/** The longest line of a stream, in bytes. One displayed value of code has at most half of that. */
const maxLine = 40 << 20;

/** Returns the JSON object that a part of a stream is. */
export function objectOf(part: string): Json {
  const object = parsed(part);
  if (!object) throw new StreamLostError("the server sent unreadable JSON: it is not a server of Sandpit");
  return object;
}

/** Yields the lines of a stream of bytes. */
export async function* lines(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<string, void, undefined> {
  let parts: Uint8Array[] = [];
  let length = 0;
  for await (const data of bytes) {
    let at = 0;
    for (let end = data.indexOf(10); end >= 0; end = data.indexOf(10, at)) {
      yield Buffer.concat([...parts, data.subarray(at, end)]).toString();
      parts = [];
      length = 0;
      at = end + 1;
    }
    parts.push(data.subarray(at));
    length += data.length - at;
    if (length > maxLine) throw new StreamLostError(`the server sent a line of more than ${maxLine} bytes`);
  }
}

/** Yields the server-sent events of a stream, whose data is JSON. */
export async function* serverEvents(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<[event: string, data: Json], void, undefined> {
  let event = "";
  let data = "";
  for await (const line of lines(bytes)) {
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line.replace(/\r$/, "")) ?? [];
    if (field === "event") event = value ?? "";
    else if (field === "data") data += value;
    else if (!field && !value && data) {
      yield [event, objectOf(data)];
      event = data = "";
    }
  }
}

import { StreamLostError } from "./errors.js";
import { isObject, type Json } from "./json.js";

/** The longest line of a stream, in bytes. One displayed value of code has at most half of that. */
const maxLine = 40 << 20;

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
      const parsed: unknown = JSON.parse(data);
      yield [event, isObject(parsed) ? parsed : {}];
      event = data = "";
    }
  }
}

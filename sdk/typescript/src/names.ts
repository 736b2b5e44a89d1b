import { type Json, text } from "./json.js";

// Names of files are bytes. In a string, a byte that is not part of UTF-8 is the lone surrogate U+DC00 plus the byte.

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Returns bytes as a string, from which bytesOf gets the same bytes. */
export function nameOf(bytes: Uint8Array): string {
  let name = "";
  for (let at = 0; at < bytes.length; ) {
    let length = 1;
    for (; length <= 4; length++) {
      try {
        name += decoder.decode(bytes.subarray(at, at + length));
        break;
      } catch {
        // No character of this length begins here.
      }
    }
    if (length > 4) {
      name += String.fromCharCode(0xdc00 + (bytes[at] ?? 0));
      length = 1;
    }
    at += length;
  }
  return name;
}

/** Returns the bytes of a name. */
export function bytesOf(name: string): Buffer {
  return Buffer.concat(
    Array.from(name, (char) => {
      const code = char.charCodeAt(0);
      return char.length === 1 && code >= 0xdc80 && code <= 0xdcff ? Buffer.of(code - 0xdc00) : Buffer.from(char);
    }),
  );
}

/** Reports whether a string has bytes that are not UTF-8. */
export function hasBytes(value: string): boolean {
  return /[\udc80-\udcff]/u.test(value);
}

/** Returns a name of an object, which is in base64 where it is not UTF-8. */
export function name(raw: Json, field: string): string {
  const value = text(raw, field);
  return raw["encoding"] === "base64" ? nameOf(Buffer.from(value, "base64")) : value;
}

/** Returns a text for a URL. */
export function escape(value: string): string {
  return Array.from(bytesOf(value), (byte) => {
    const char = String.fromCharCode(byte);
    return /[\w.~-]/.test(char) ? char : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }).join("");
}

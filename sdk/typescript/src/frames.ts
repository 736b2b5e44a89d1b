import { StreamLostError } from "./errors.js";

/** The media type of a stream of frames. */
export const streamType = "application/vnd.sandpit.stream";

/** The types of frames that a server sends; see docs/server.md. */
export const Frame = { started: 1, stdout: 2, stderr: 3, lost: 4, result: 5, end: 6, ping: 7, stdinClosed: 8 } as const;

/** The longest frame that a server sends, in bytes. */
const maxFrame = 1 << 20;

/** Cuts bytes into frames: a type byte, a length of four bytes (big-endian), and a payload. */
export class FrameReader {
  #parts: Uint8Array[] = [];
  #length = 0; // of the parts
  #wanted = 5; // the length below which nothing can be done

  /** Yields the frames that data completes. */
  *feed(data: Uint8Array): Generator<[type: number, payload: Buffer], void, undefined> {
    this.#parts.push(data);
    this.#length += data.length;
    while (this.#length >= this.#wanted) {
      const [first] = this.#parts;
      const all = this.#parts.length === 1 && first instanceof Buffer ? first : Buffer.concat(this.#parts);
      const length = all.readUInt32BE(1);
      if (length > maxFrame || (all[0] === Frame.lost && length !== 8)) {
        throw new StreamLostError(`the server sent a frame of ${length} bytes: it is not a server of Sandpit`);
      }
      const end = 5 + length;
      const complete = all.length >= end;
      const rest = complete ? all.subarray(end) : all;
      this.#parts = [rest];
      this.#length = rest.length;
      this.#wanted = complete ? 5 : end;
      if (complete) yield [all.readUInt8(0), all.subarray(5, end)];
    }
  }
}

/**
 * Joins the answers to a request that is repeated after a lost connection. Each answer begins with what the server has
 * retained: the number of bytes that are lost, and then the rest.
 */
export class Cursor {
  /** The number of bytes of output that were passed on, or reported as lost. */
  position = 0;
  #at = 0; // the same in the present answer

  /** Begins the next answer. */
  restart(): void {
    this.#at = 0;
  }

  /** Returns the part of data that is new. */
  output(data: Buffer): Buffer {
    const known = Math.min(data.length, Math.max(0, this.position - this.#at));
    this.#advance(data.length);
    return data.subarray(known);
  }

  /** Returns how many of count lost bytes were not passed on before. */
  lost(count: number): number {
    const before = this.position;
    this.#advance(count);
    return this.position - before;
  }

  #advance(count: number): void {
    this.#at += count;
    this.position = Math.max(this.position, this.#at);
  }
}

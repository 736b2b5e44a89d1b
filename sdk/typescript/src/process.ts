import { randomUUID } from "node:crypto";
import { TextDecoder } from "node:util";
import { type CallOptions, type Client, pause, type RequestParts, type Retries, segment } from "./client.js";
import { errorOf, InvalidError, NotFoundError, SandpitError, ServerTimeoutError, StateError, StreamLostError } from "./errors.js";
import { objectOf } from "./events.js";
import { Cursor, Frame, FrameReader, streamType } from "./frames.js";
import { isObject, type Json, object, text } from "./json.js";
import { type Output, type ProcessInfo, readProcess, Result } from "./models.js";

/** The longest piece of input of one request, in bytes. */
const maxInput = 1 << 20;

/** The time in which a process must read its input, in milliseconds: more than the server gives it. */
const inputPatience = 11 * 60_000;

/** Signals by name, with Linux's numbers. */
const signals = { SIGHUP: 1, SIGINT: 2, SIGQUIT: 3, SIGKILL: 9, SIGUSR1: 10, SIGUSR2: 12, SIGTERM: 15, SIGCONT: 18, SIGSTOP: 19, SIGTSTP: 20 } as const;

/** The size of a terminal. */
export interface TerminalSize {
  rows: number;
  cols: number;
}

/**
 * The output of one process, over as many connections as needed. open makes the request of the first connection, and of
 * those after a loss, in which the server repeats what it has retained. started is called once the process is known.
 */
export class ProcessStream {
  process: ProcessInfo | undefined;
  result: Json | undefined;
  readonly #open: () => AsyncIterable<Uint8Array>;
  readonly #retries: Retries;
  #known = false; // The present connection has named the process.
  readonly #started: ((process: ProcessInfo) => void) | undefined;

  constructor(open: () => AsyncIterable<Uint8Array>, retries: Retries, started?: (process: ProcessInfo) => void) {
    this.#open = open;
    this.#retries = retries;
    this.#started = started;
  }

  /** Yields the output until the process has ended. */
  async *outputs(): AsyncGenerator<Output, void, undefined> {
    const cursor = new Cursor();
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    for (;;) {
      const before = cursor.position;
      const began = performance.now();
      this.#known = false;
      try {
        yield* this.#once(cursor, decoders);
        break;
      } catch (err) {
        if (!this.process) throw err;
        if (cursor.position > before || (this.#known && performance.now() - began > 1000)) this.#retries.renew();
        await this.#retries.again(err);
      }
    }
    for (const stream of ["stdout", "stderr"] as const) {
      const rest = decoders[stream].decode();
      if (rest) yield { stream, data: new Uint8Array(), text: rest, lostBytes: 0 };
    }
  }

  async *#once(cursor: Cursor, decoders: Record<"stdout" | "stderr", TextDecoder>): AsyncGenerator<Output, void, undefined> {
    cursor.restart();
    const frames = new FrameReader();
    let complete = false;
    for await (const data of this.#open()) {
      for (const [type, payload] of frames.feed(data)) {
        switch (type) {
          case Frame.stdout:
          case Frame.stderr: {
            const stream = type === Frame.stdout ? "stdout" : "stderr";
            const fresh = cursor.output(payload);
            if (fresh.length > 0) yield { stream, data: fresh, text: decoders[stream].decode(fresh, { stream: true }), lostBytes: 0 };
            break;
          }
          case Frame.lost: {
            const lostBytes = cursor.lost(Number(payload.readBigUInt64BE()));
            if (lostBytes > 0) yield { stream: "lost", data: new Uint8Array(), text: "", lostBytes };
            break;
          }
          case Frame.started: {
            const first = !this.process;
            this.#known = true;
            this.process = readProcess(objectOf(payload.toString()));
            if (first) this.#started?.(this.process);
            break;
          }
          case Frame.result:
            this.result = objectOf(payload.toString());
            break;
          case Frame.end: {
            const failed = ended(objectOf(payload.toString()));
            if (failed) throw failed;
            complete = true;
          }
        }
      }
    }
    if (!complete) throw new StreamLostError("the connection was lost before the end of the stream");
  }
}

/** Returns why a stream has ended, by its last event; undefined if it is complete. */
export function ended(end: Json): SandpitError | undefined {
  const reason = text(end, "reason");
  if (reason === "ended") return undefined;
  return isObject(end["error"]) ? errorOf(0, object(end, "error")) : new StreamLostError(`the stream has ended: ${reason}`);
}

/** Standard input of a process. Writes that wait for each other keep their order. */
export class Stdin {
  readonly #client: Client;
  readonly #path: string;

  constructor(client: Client, path: string) {
    this.#client = client;
    this.#path = path;
  }

  /**
   * Writes, and with close ends the input. Input that does not fit into a buffer, such as a pipe's, waits until the process
   * reads, for 10 minutes at most.
   */
  async write(data: string | Uint8Array, options: CallOptions & { close?: boolean } = {}): Promise<void> {
    const { close = false, signal } = options;
    const bytes = typeof data === "string" ? Buffer.from(data) : data;
    for (let at = 0; at < Math.max(bytes.length, Number(close)); at += maxInput) {
      const query = { close: close && at + maxInput >= bytes.length };
      await this.#post({ query, body: bytes.subarray(at, at + maxInput), signal, patience: inputPatience });
    }
  }

  /** Makes a request once, over as many connections as needed. */
  async #post(request: RequestParts): Promise<void> {
    const retries = this.#client.retries(request.signal);
    const headers = { "Idempotency-Key": randomUUID() };
    for (;;) {
      try {
        await this.#client.call("POST", this.#path, { ...request, headers });
        return;
      } catch (err) {
        if (err instanceof StateError && err.retryAfter) {
          retries.renew(); // The server has the request.
          await pause(err.retryAfter * 1000, request.signal);
        } else {
          await retries.again(err);
        }
      }
    }
  }

  /** Ends the input. */
  async close(options: CallOptions = {}): Promise<void> {
    await this.write("", { ...options, close: true });
  }
}

/** A process in the background. It continues when this program ends, until it ends itself or its sandbox does. */
export class Process {
  /** The process as it was when this value was made; see refresh. */
  info: ProcessInfo;
  /** Standard input, of a process that was started with stdin or a terminal. */
  readonly stdin: Stdin;
  readonly #client: Client;
  readonly #path: string;

  constructor(client: Client, sandbox: string, info: ProcessInfo) {
    this.#client = client;
    this.#path = `${sandbox}/processes/${segment(info.id)}`;
    this.info = info;
    this.stdin = new Stdin(client, `${this.#path}/stdin`);
  }

  /** The ID, by which another program finds it: sandbox.process(id). */
  get id(): string {
    return this.info.id;
  }

  /** The process ID in the sandbox. */
  get pid(): number {
    return this.info.pid;
  }

  /**
   * Yields the output as it comes, until the process ends. It begins with what the server has retained, the latest MiB,
   * unless history is false. After a lost connection the output continues where it was. What the server no longer has
   * is reported as an Output with lostBytes.
   */
  async *output(options: CallOptions & { history?: boolean } = {}): AsyncGenerator<Output, void, undefined> {
    const request: RequestParts = { headers: { Accept: streamType }, signal: options.signal };
    let query: NonNullable<RequestParts["query"]> = { history: options.history === false ? "false" : undefined };
    const open = (): AsyncIterable<Uint8Array> => {
      const bytes = this.#client.bytes(`reading the output of process ${this.id}`, "GET", `${this.#path}/output`, { ...request, query });
      query = {};
      return bytes;
    };
    yield* new ProcessStream(open, this.#client.retries(options.signal)).outputs();
  }

  /** Asks the server for the state of the process. */
  async refresh(options: CallOptions = {}): Promise<ProcessInfo> {
    this.info = readProcess(await this.#client.call("GET", this.#path, { signal: options.signal }));
    return this.info;
  }

  /** Waits until the process has ended. After timeout seconds it throws ServerTimeoutError, and the process continues. */
  async wait(options: CallOptions & { timeout?: number } = {}): Promise<Result> {
    if (options.timeout !== undefined && !Number.isFinite(options.timeout)) {
      throw new InvalidError(`timeout is ${options.timeout}`, { hint: "pass a finite number, or leave it out" });
    }
    const until = options.timeout === undefined ? Infinity : Date.now() + options.timeout * 1000;
    const retries = this.#client.retries(options.signal);
    for (;;) {
      const timeout = Math.min(30, Math.max(0.001, (until - Date.now()) / 1000));
      let info;
      try {
        info = readProcess(await this.#client.call("GET", `${this.#path}/wait`, { query: { timeout }, signal: options.signal }));
      } catch (err) {
        if (Date.now() >= until) throw err;
        await retries.again(err);
        continue;
      }
      retries.renew();
      if (info.result) {
        this.info = info;
        return info.result;
      }
      if (Date.now() >= until) throw new ServerTimeoutError(`process ${this.id} has not ended after ${options.timeout} seconds; it continues`);
    }
  }

  /** Sends a signal to the process, or to its process group. A number is one of Linux. */
  async signal(signal: keyof typeof signals | number, options: CallOptions & { group?: boolean } = {}): Promise<void> {
    const number = typeof signal === "number" ? signal : signals[signal];
    await this.#client.once("POST", `${this.#path}/signal`, { json: { signal: number, group: options.group ?? false }, signal: options.signal });
  }

  /** Sends the signal of ^C to the process group. */
  async interrupt(options: CallOptions = {}): Promise<void> {
    await this.signal("SIGINT", { ...options, group: true });
  }

  /** Changes the size of the terminal. */
  async resize(size: TerminalSize, options: CallOptions = {}): Promise<void> {
    await this.#client.once("POST", `${this.#path}/resize`, { json: { rows: size.rows, cols: size.cols }, signal: options.signal });
  }

  /** Kills the process with everything that it has started. It is a no-op if the process has ended. */
  async kill(options: CallOptions = {}): Promise<void> {
    try {
      await this.#client.call("DELETE", this.#path, { signal: options.signal });
    } catch (err) {
      if (!(err instanceof NotFoundError)) throw err;
    }
  }
}

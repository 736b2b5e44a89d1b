import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { type Endpoint, type EndpointOptions, find, shown } from "./config.js";
import { ClosedError, errorOf, InvalidError, RateLimitedError, SandpitError, ServerTimeoutError, StateError, StreamLostError, UnavailableError } from "./errors.js";
import { Answer, type Body, ConnectionError, patience, SilenceError, Transport } from "./http.js";
import { type Json, objects, parsed, text } from "./json.js";
import { escape } from "./names.js";
import { version } from "./version.js";

/** The time for undoing what an aborted call has begun, in milliseconds. */
const undoPatience = 10_000;

/** The time for a lost server to come back, as after a restart, in milliseconds. */
const reconnect = 30_000;

/** The longest answer that is kept in memory, in bytes. A page of a list has at most a few MiB. */
const maxAnswer = 64 << 20;

/** Options of a call. Aborting the signal rejects the call with the signal's reason, and undoes what the call has started. */
export interface CallOptions {
  signal?: AbortSignal | undefined;
}

/** Options of a client. */
export interface ClientOptions extends EndpointOptions {
  /** Certificates to trust instead of the machine's, in PEM; default: those in the file that SSL_CERT_FILE names. */
  ca?: string | readonly string[] | undefined;
  /**
   * The time for a lost server to come back, in milliseconds.
   * @internal
   */
  reconnect?: number;
}

/** A request. */
export interface RequestParts {
  query?: Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>;
  headers?: Readonly<Record<string, string>>;
  json?: unknown;
  body?: Body | undefined;
  signal?: AbortSignal | undefined;
  /**
   * The time in which the server must begin to answer, in milliseconds.
   * @internal
   */
  patience?: number;
}

/**
 * Returns a part of a path that stands for something, such as a sandbox.
 * @internal
 */
export function segment(id: string): string {
  if (["", ".", ".."].includes(id)) throw new InvalidError(`${JSON.stringify(id)} is not a name or id`);
  return escape(id);
}

/** Bounds how long something is tried again. */
export class Retries {
  readonly #limit: number;
  readonly #signal: AbortSignal | undefined;
  #since: number | undefined;
  #tries = 0;

  constructor(limit: number, signal: AbortSignal | undefined) {
    this.#limit = limit;
    this.#signal = signal;
  }

  /** Begins anew, after a success. */
  renew(): void {
    this.#since = undefined;
    this.#tries = 0;
  }

  /** Returns when it is time for another try after an error, or throws that. */
  async again(err: unknown): Promise<void> {
    const now = performance.now();
    this.#since ??= now;
    if (!(err instanceof UnavailableError) || now - this.#since >= this.#limit) throw err;
    await pause(Math.min(100 * 2 ** this.#tries++, 2000), this.#signal);
  }
}

/** A connection to a server, for any number of sandboxes and calls at once. */
export class Client implements AsyncDisposable {
  readonly #options: ClientOptions;
  #endpoint: Endpoint | undefined;
  #server: Promise<{ endpoint: Endpoint; transport: Transport }> | undefined;
  #closed: string | undefined; // why

  /** Makes a client. The server is looked up, and started if needed, by the first request. */
  constructor(options: ClientOptions = {}) {
    this.#options = options;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Closes the connections. Sandboxes stay. Later calls are rejected with a ClosedError, which says why. */
  async close(why = "the client was closed"): Promise<void> {
    this.#closed ??= why;
    (await this.#server?.catch(() => undefined))?.transport.close();
  }

  async #connect(): Promise<{ endpoint: Endpoint; transport: Transport }> {
    const endpoint = (this.#endpoint ??= await find(this.#options));
    const file = process.env["SSL_CERT_FILE"];
    const ca = this.#options.ca ?? (file && endpoint.url.startsWith("https:") ? await readFile(file, "utf8") : undefined);
    return { endpoint, transport: new Transport(endpoint, typeof ca === "string" ? [ca] : ca) };
  }

  /**
   * Returns a bound for repeating something while the server can't be reached.
   * @internal
   */
  retries(signal: AbortSignal | undefined): Retries {
    return new Retries(this.#options.reconnect ?? reconnect, signal);
  }

  /**
   * Undoes in the background what a call has begun that has failed, with a client of its own: closing this one does not end
   * it. The program stays until it is done or 10 s have passed.
   * @internal
   */
  undo(what: (client: Client, signal: AbortSignal) => Promise<unknown>): void {
    if (!this.#endpoint) return; // No request was sent.
    const client = new Client(this.#options);
    client.#endpoint = this.#endpoint;
    const aborter = new AbortController();
    const timer = setTimeout(() => aborter.abort(), undoPatience);
    const end = (): void => {
      clearTimeout(timer);
      void client.close();
    };
    what(client, aborter.signal).then(end, end);
  }

  /**
   * Makes a request whose answer the caller reads. It is repeated once after a 429, and once after a connection that was
   * lost without an answer, if that changes nothing twice: a read, a removal, or a request with an Idempotency-Key.
   * @internal
   */
  async open(method: string, path: string, request: RequestParts = {}): Promise<Answer> {
    const { signal } = request;
    signal?.throwIfAborted();
    if (signal) setMaxListeners(0, signal); // Node 20 warns of more than 10 calls at once.
    if (this.#closed !== undefined) throw closed(this.#closed);
    this.#server ??= this.#connect().catch((err: unknown) => {
      this.#server = undefined;
      throw err;
    });
    const { endpoint, transport } = await abortable(this.#server, signal);
    const headers: Record<string, string> = { "User-Agent": `sandpit-typescript/${version}`, ...request.headers };
    if (endpoint.key) headers["Authorization"] = `Bearer ${endpoint.key}`;
    if (endpoint.namespace) headers["X-Sandpit-Namespace"] = endpoint.namespace;
    const target = path + queryOf(request.query);
    let { body } = request;
    if (request.json !== undefined) {
      body = Buffer.from(JSON.stringify(request.json, (name, value: unknown) => finite(name, value)));
      headers["Content-Type"] = "application/json";
    }
    if (body instanceof Uint8Array) headers["Content-Length"] = String(body.length);
    let again = body === undefined || body instanceof Uint8Array;
    let safe = again && (method === "GET" || method === "DELETE" || "Idempotency-Key" in headers);
    for (;;) {
      let answer;
      try {
        answer = await transport.send({ method, path: target, headers, body, signal, patience: request.patience ?? patience });
      } catch (cause) {
        signal?.throwIfAborted();
        if (this.#closed !== undefined) throw closed(this.#closed);
        if (safe && cause instanceof ConnectionError && cause.lost) {
          safe = false;
          continue;
        }
        throw failure(endpoint, cause);
      }
      if (answer.status < 300) return answer;
      const refused = await refusal(endpoint, answer);
      signal?.throwIfAborted();
      if (!again || !(refused instanceof RateLimitedError)) throw refused;
      again = false;
      await pause(refused.retryAfter * 1000, signal);
    }
  }

  /**
   * Makes a request, and yields the bytes of its answer. what is for errors.
   * @internal
   */
  async *bytes(what: string, method: string, path: string, request: RequestParts = {}): AsyncGenerator<Uint8Array, void, undefined> {
    const answer = await this.open(method, path, request);
    try {
      yield* answer.bytes();
    } catch (cause) {
      request.signal?.throwIfAborted();
      if (cause instanceof SilenceError) throw new ServerTimeoutError(`${what}: ${cause.message}`, { cause });
      throw new StreamLostError(`${what}: the connection was lost: ${(cause as Error).message}`, { cause });
    }
  }

  /** Makes a request, and returns the JSON of its answer; an empty object if that has no body. */
  async call(method: string, path: string, request: RequestParts = {}): Promise<Json> {
    const body = await collect(this.bytes("reading the answer", method, path, request), maxAnswer);
    if (!body) throw new UnavailableError(`the answer has more than ${maxAnswer} bytes`);
    if (body.length === 0) return {};
    const value = parsed(body.toString());
    if (!value) throw new UnavailableError("the server did not answer as a server of Sandpit", { hint: "is the address right?" });
    return value;
  }

  /**
   * Makes a request that can be repeated, because it has an Idempotency-Key. If it is aborted, takeBack gets the answer
   * that the server has made, to undo it in the background.
   * @internal
   */
  async once(method: string, path: string, request: RequestParts = {}, takeBack?: (made: Json, client: Client, signal: AbortSignal) => Promise<unknown>): Promise<Json> {
    request.signal?.throwIfAborted();
    const keyed = { ...request, headers: { ...request.headers, "Idempotency-Key": randomUUID() } };
    try {
      return await this.call(method, path, keyed);
    } catch (err) {
      if (takeBack && request.signal?.aborted) {
        this.undo(async (client, signal) => await takeBack(await client.#made(method, path, { ...keyed, signal }), client, signal));
      }
      throw err;
    }
  }

  /** Returns the answer to a request that may be in progress. */
  async #made(method: string, path: string, request: RequestParts): Promise<Json> {
    for (;;) {
      try {
        return await this.call(method, path, request);
      } catch (err) {
        if (!(err instanceof StateError && err.retryAfter)) throw err;
        await pause(50, request.signal);
      }
    }
  }

  /**
   * Yields the entries of a list, page by page.
   * @internal
   */
  async *pages(path: string, name: string, request: RequestParts = {}): AsyncGenerator<Json, void, undefined> {
    let after: string | undefined;
    do {
      const page = await this.call("GET", path, { ...request, query: { ...request.query, after } });
      yield* objects(page, name);
      after = text(page, "next");
    } while (after);
  }

  /** Returns the version of the server. */
  async version(options: CallOptions = {}): Promise<Json> {
    return await this.call("GET", "/v1/version", { signal: options.signal });
  }

  /** Returns what the server supports, and what it enforces. */
  async capabilities(options: CallOptions = {}): Promise<Json> {
    return await this.call("GET", "/v1/capabilities", { signal: options.signal });
  }

  /** Returns the policy of the caller. */
  async policy(options: CallOptions = {}): Promise<Json> {
    return await this.call("GET", "/v1/policy", { signal: options.signal });
  }
}

/**
 * Waits for some milliseconds, but not beyond an abort.
 * @internal
 */
export async function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  await sleep(milliseconds, undefined, signal ? { signal } : {}).catch(() => signal?.throwIfAborted());
}

/** Waits for a promise, but not beyond an abort. */
async function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return await promise;
  let stop = (): void => {};
  const aborted = new Promise<never>((_, fail) => {
    stop = () => fail(signal.reason as Error);
    signal.addEventListener("abort", stop);
  });
  try {
    signal.throwIfAborted();
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

/**
 * Returns all bytes, or undefined if there are more than max.
 * @internal
 */
export async function collect(pieces: AsyncIterable<Uint8Array>, max: number): Promise<Buffer | undefined> {
  const all: Uint8Array[] = [];
  let length = 0;
  for await (const piece of pieces) {
    length += piece.length;
    if (length > max) return undefined;
    all.push(piece);
  }
  return Buffer.concat(all);
}

function queryOf(query: RequestParts["query"] = {}): string {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    (Array.isArray(value) ? (value as string[]) : [value]).filter((v) => v !== undefined && v !== false).map((v) => `${name}=${escape(String(finite(name, v)))}`),
  );
  return pairs.length > 0 ? `?${pairs.join("&")}` : "";
}

/** Returns a value of a request. JSON has only finite numbers. */
function finite(name: string, value: unknown): unknown {
  if (typeof value === "number" && !Number.isFinite(value)) throw new InvalidError(`${name} is ${value}`, { hint: "pass a finite number, or leave it out" });
  return value;
}

function closed(why: string): ClosedError {
  return new ClosedError(why, { hint: "make another one" });
}

/** Returns the error of a request without an answer. */
function failure(endpoint: Endpoint, cause: unknown): unknown {
  if (cause instanceof SilenceError) return new ServerTimeoutError(`the server ${shown(endpoint)} did not answer in time`, { cause });
  if (!(cause instanceof ConnectionError)) return cause;
  return new UnavailableError(`the server ${shown(endpoint)} can't be reached: ${cause.message}`, { hint: "is it running?", cause });
}

/** Returns the error that a server answers with. */
async function refusal(endpoint: Endpoint, answer: Answer): Promise<SandpitError> {
  const body = parsed(String(await collect(answer.bytes(), 64 << 10).catch(() => undefined)));
  if (body && text(body, "code")) return errorOf(answer.status, body, answer.headers["retry-after"]);
  return new UnavailableError(`${shown(endpoint)} answered with status ${answer.status}, but not as a server of Sandpit`, {
    hint: "is the address right? A proxy may be in between",
    status: answer.status,
  });
}

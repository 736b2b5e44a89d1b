import http, { type IncomingHttpHeaders, type IncomingMessage } from "node:http";
import https from "node:https";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { Endpoint } from "./config.js";

/** The time in which a server must answer, or continue an answer, in milliseconds. Its streams have a ping every 20 s. */
export const patience = 60_000;

/** How long an unused connection is kept, in milliseconds: less than the server keeps it. */
const idle = 15_000;

/** What a request sends. */
export type Body = Uint8Array | AsyncIterable<Uint8Array>;

/**
 * A request to a server.
 * @internal
 */
export interface Outgoing {
  method: string;
  path: string;
  headers: Record<string, string>;
  body?: Body | undefined;
  signal?: AbortSignal | undefined;
  /** The time without an answer, in milliseconds. */
  patience: number;
}

/**
 * The server was silent for too long.
 * @internal
 */
export class SilenceError extends Error {}

/**
 * The connection failed. Errors of a body that the caller gives are not wrapped.
 * @internal
 */
export class ConnectionError extends Error {
  /** Whether the connection had been made, and was lost. */
  readonly lost: boolean;
  constructor(cause: NodeJS.ErrnoException) {
    super(cause.message, { cause });
    this.lost = cause.code === "ECONNRESET" || cause.code === "EPIPE";
  }
}

/**
 * An answer of a server. It must be read to its end, or destroyed.
 * @internal
 */
export class Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly #message: IncomingMessage;

  constructor(message: IncomingMessage) {
    this.#message = message.on("error", () => {}); // Readers get it.
    this.status = message.statusCode ?? 0;
    this.headers = message.headers;
  }

  /** Yields the body. The time that the caller takes for a piece does not count as silence of the server. */
  async *bytes(): AsyncGenerator<Uint8Array, void, undefined> {
    const pieces = this.#message[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
    try {
      for (;;) {
        const timer = setTimeout(() => this.#message.destroy(new SilenceError("the server was silent for a minute")), patience);
        const piece = await pieces.next().finally(() => clearTimeout(timer));
        if (piece.done) return;
        yield piece.value;
      }
    } finally {
      this.destroy();
    }
  }

  /** Ends the connection, unless the answer was read to its end. */
  destroy(): void {
    if (!this.#message.readableEnded) this.#message.destroy();
  }
}

/**
 * Sends requests to one server, by node's own HTTP.
 * @internal
 */
export class Transport {
  readonly #endpoint: Endpoint;
  readonly #module: typeof http | typeof https;
  readonly #agent: http.Agent;

  /** Connects to an endpoint, and trusts the certificates of ca, in PEM, instead of the machine's. */
  constructor(endpoint: Endpoint, ca: readonly string[] | undefined) {
    this.#endpoint = endpoint;
    this.#module = endpoint.url.startsWith("https:") ? https : http;
    this.#agent = new this.#module.Agent({ keepAlive: true, maxFreeSockets: 64, timeout: idle, ...(ca ? { ca: [...ca] } : {}) });
  }

  /** Sends a request, and returns the answer as soon as its head is here. */
  send(out: Outgoing): Promise<Answer> {
    return new Promise((done, fail) => {
      const { method, path, headers, signal } = out;
      const request = this.#module.request(this.#endpoint.url + path, {
        agent: this.#agent,
        method,
        headers,
        ...(this.#endpoint.socket ? { socketPath: this.#endpoint.socket } : {}),
      });
      request.setTimeout(out.patience, () => request.destroy(new SilenceError("the server did not answer in time")));
      let broken: { cause: unknown } | undefined; // the body
      const abort = (): void => end(signal?.reason as Error);
      let end = (reason: Error): void => {
        fail(reason);
        request.destroy(reason);
      };
      signal?.addEventListener("abort", abort);
      request.on("close", () => signal?.removeEventListener("abort", abort));
      request.on("error", (cause) => fail(broken ? broken.cause : cause instanceof SilenceError ? cause : new ConnectionError(cause)));
      request.on("response", (message) => {
        request.setTimeout(0);
        end = (reason) => void message.destroy(reason);
        done(new Answer(message));
      });
      if (out.body === undefined || out.body instanceof Uint8Array) {
        request.end(out.body);
      } else {
        const body = Readable.from(out.body, { objectMode: false });
        body.on("error", (cause) => (broken ??= { cause }));
        pipeline(body, request).catch(() => {}); // The request fails with it.
      }
    });
  }

  /** Closes all connections. */
  close(): void {
    this.#agent.destroy();
  }
}

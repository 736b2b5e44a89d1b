import { type CallOptions, type Client, collect } from "./client.js";
import { FileNotFoundError } from "./errors.js";
import type { Body } from "./http.js";
import { number } from "./json.js";
import { type FileInfo, readFile } from "./models.js";
import { name } from "./names.js";

/** Options of an operation on files. */
export interface FileOptions extends CallOptions {
  /** Who does it: what that user may not do is a FilePermissionError. Default: the server, with all rights of the sandbox. */
  user?: string | undefined;
}

/** Options of a write. */
export interface WriteOptions extends FileOptions {
  /** Permission bits of a new file, such as 0o640. */
  mode?: number | undefined;
  /** Create missing directories; default: true. */
  parents?: boolean | undefined;
  /** Write behind what the file has. Otherwise the file is replaced, atomically. */
  append?: boolean | undefined;
}

/** Content to write. */
export type Content = string | Uint8Array | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

/** The files of a sandbox. Paths are absolute, or below the sandbox's working directory. */
export class Files {
  readonly #client: Client;
  readonly #path: string;

  constructor(client: Client, path: string) {
    this.#client = client;
    this.#path = path;
  }

  /**
   * Yields the content of a file.
   * @internal
   */
  bytes(path: string, { user, signal }: FileOptions): AsyncGenerator<Uint8Array, void, undefined> {
    return this.#client.bytes(`reading ${path}`, "GET", this.#path, { query: { path, user }, signal });
  }

  /** Returns the content of a file. */
  async read(path: string, options: FileOptions = {}): Promise<Uint8Array> {
    return (await collect(this.bytes(path, options), Infinity)) as Uint8Array;
  }

  /** Returns the content of a file as text. Content that is not UTF-8 is a TypeError. */
  async readText(path: string, options: FileOptions = {}): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.read(path, options));
  }

  /** Returns the content of a file of any size as a stream. The file is opened by the first read. */
  stream(path: string, options: FileOptions = {}): ReadableStream<Uint8Array> {
    const bytes = this.bytes(path, options);
    return new ReadableStream<Uint8Array>({
      async pull(controller) {
        const piece = await bytes.next();
        if (piece.done) controller.close();
        else controller.enqueue(piece.value);
      },
      async cancel() {
        await bytes.return();
      },
    });
  }

  /** Writes a file, and returns the number of bytes written. */
  async write(path: string, content: Content, options: WriteOptions = {}): Promise<number> {
    const { mode, parents = true, append, user, signal } = options;
    const query = { path, mode: mode?.toString(8), parents, append, user };
    const headers = { "Content-Type": "application/octet-stream" };
    const body: Body = typeof content === "string" ? Buffer.from(content) : content instanceof Blob ? pieces(content.stream()) : content instanceof Uint8Array ? content : pieces(content);
    return number(await this.#client.call("PUT", this.#path, { query, headers, body, signal }), "bytes");
  }

  /** Returns the entries of a directory. */
  async list(path: string, { user, signal }: FileOptions = {}): Promise<FileInfo[]> {
    const all: FileInfo[] = [];
    for await (const raw of this.#client.pages(`${this.#path}/list`, "entries", { query: { path, user }, signal })) all.push(readFile(raw));
    return all;
  }

  /** Yields the files below a directory whose relative path matches: `*` stands for any name, `**` for any directories. */
  async *find(path: string, glob = "**", { user, signal }: FileOptions = {}): AsyncGenerator<FileInfo, void, undefined> {
    for await (const raw of this.#client.pages(`${this.#path}/find`, "entries", { query: { path, glob, user }, signal })) yield readFile(raw);
  }

  /** Describes a file. With follow: false, a link itself is described. */
  async stat(path: string, options: FileOptions & { follow?: boolean } = {}): Promise<FileInfo> {
    const query = { path, follow: String(options.follow ?? true), user: options.user };
    return readFile(await this.#client.call("GET", `${this.#path}/stat`, { query, signal: options.signal }));
  }

  /** Reports whether a file exists. A link to nothing exists. */
  async exists(path: string, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, { ...options, follow: false });
      return true;
    } catch (err) {
      if (err instanceof FileNotFoundError) return false;
      throw err;
    }
  }

  /** Creates a directory. With parents, the default, it may exist, and missing directories above it are created. */
  async mkdir(path: string, options: FileOptions & { parents?: boolean; mode?: number } = {}): Promise<void> {
    const query = { path, parents: options.parents ?? true, mode: options.mode?.toString(8), user: options.user };
    await this.#client.once("POST", `${this.#path}/mkdir`, { query, signal: options.signal });
  }

  /** Removes a file or an empty directory; with recursive, a directory with everything below it. */
  async remove(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<void> {
    await this.#client.call("DELETE", this.#path, { query: { path, recursive: options.recursive, user: options.user }, signal: options.signal });
  }

  /** Moves a file or a directory. A file at the target is replaced. */
  async move(from: string, to: string, { user, signal }: FileOptions = {}): Promise<void> {
    await this.#client.once("POST", `${this.#path}/rename`, { query: { from, to, user }, signal });
  }

  /** Copies a file; with recursive, a directory. */
  async copy(from: string, to: string, options: FileOptions & { recursive?: boolean } = {}): Promise<void> {
    await this.#client.once("POST", `${this.#path}/copy`, { query: { from, to, recursive: options.recursive, user: options.user }, signal: options.signal });
  }

  /** Creates a link at a path, to a target. */
  async symlink(path: string, target: string, { user, signal }: FileOptions = {}): Promise<void> {
    await this.#client.once("POST", `${this.#path}/symlink`, { query: { path, target, user }, signal });
  }

  /** Returns the target of a link. */
  async readlink(path: string, { user, signal }: FileOptions = {}): Promise<string> {
    return name(await this.#client.call("GET", `${this.#path}/readlink`, { query: { path, user }, signal }), "target");
  }
}

/** Yields the bytes of a stream, which need not be iterable by itself, and cancels it at the end. */
async function* pieces(content: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  if (!("getReader" in content)) return yield* content;
  const reader = content.getReader();
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) yield piece.value;
  } finally {
    await reader.cancel().catch(() => {});
  }
}

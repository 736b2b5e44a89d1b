import { posix } from "node:path";
import { collect as collectBytes, segment } from "./client.js";
import { FileError, FileNotFoundError, SandpitError } from "./errors.js";
import type { Command, RunOptions } from "./exec.js";
import type { Content } from "./files.js";
import type { Result } from "./models.js";
import { type CreateOptions, Sandbox, withClient } from "./sandbox.js";
import { save } from "./save.js";

/** A command to run in a sandbox of its own, and what the sandbox is to be. env and user are those of the command. */
export interface OneShot extends Omit<CreateOptions, "env" | "user">, RunOptions {
  cmd: Command;
  /** Files to write before, by their paths, which are below dir or absolute. */
  files?: Readonly<Record<string, Content>> | ReadonlyMap<string, Content> | undefined;
  /** Patterns of files to return, which are below dir or absolute: `*` stands for any name, `**` for any directories. */
  collect?: readonly string[] | undefined;
  /** How many files are returned at most; default: 1000. */
  maxFiles?: number | undefined;
  /** How many bytes all files have at most; default: 64 MiB. */
  maxBytes?: number | undefined;
}

/** What a command in a sandbox of its own has produced. */
export class Run {
  constructor(
    readonly result: Result,
    /** The content of the files, by their absolute paths. */
    readonly files: ReadonlyMap<string, Uint8Array>,
    /** Why files were left out, by their paths. */
    readonly omitted: ReadonlyMap<string, string>,
    /** Patterns without a match. */
    readonly unmatched: readonly string[],
  ) {}

  /** Whether the command has succeeded, and no output was lost. */
  get ok(): boolean {
    return this.result.ok;
  }

  /** The exit code of the command: 124 after a timeout. */
  get exitCode(): number {
    return this.result.exitCode;
  }

  /** Standard output as text. */
  get stdout(): string {
    return this.result.stdout;
  }

  /** Standard error as text. */
  get stderr(): string {
    return this.result.stderr;
  }

  /**
   * Writes the files into a directory of this machine, with their paths below a directory of the sandbox. It follows no
   * link and writes nothing elsewhere. It returns the paths of the files, relative to the directory.
   */
  async save(directory: string, options: { below?: string } = {}): Promise<string[]> {
    return await save(this.files, directory, options.below ?? "/");
  }
}

/**
 * Runs a command in a new sandbox, and returns its output and files, also after a failure or a timeout. The sandbox is
 * always removed; if the signal has aborted, in the background.
 */
export async function run(options: OneShot): Promise<Run> {
  const { cmd, files = {}, collect = [], maxFiles = 1000, maxBytes = 64 << 20, signal, dir, user } = options;
  const { env: _, user: __, ...create } = options;
  return await withClient(options, false, async (client) => {
    const sb = await Sandbox.create({ ...create, client });
    try {
      return await inside(sb);
    } finally {
      if (signal?.aborted) client.undo((client, signal) => client.call("DELETE", `/v1/sandboxes/${segment(sb.id)}`, { signal }));
      else await sb.remove();
    }
  });

  async function inside(sb: Sandbox): Promise<Run> {
    const given = [...(files instanceof Map ? (files as ReadonlyMap<string, Content>) : Object.entries(files))];
    let where = under(options.workdir ?? "", dir ?? "");
    if (!posix.isAbsolute(where) && ![...collect, ...given.map(([path]) => path)].every((path) => posix.isAbsolute(path))) {
      where = under((await sb.run("pwd", { check: true, signal })).stdout.replace(/\n$/, ""), where);
    }
    for (const [path, content] of given) await sb.files.write(under(where, path), content, { user, signal });
    const result = await sb.run(cmd, options);
    const found = new Collection(sb, maxFiles, maxBytes, { user, signal });
    for (const pattern of collect) await found.add(pattern, where);
    return new Run(result, found.files, found.omitted, found.unmatched);
  }
}

/** Files of a sandbox, within bounds. */
class Collection {
  readonly files = new Map<string, Uint8Array>();
  readonly omitted = new Map<string, string>();
  readonly unmatched: string[] = [];
  #left: number;

  constructor(
    readonly sandbox: Sandbox,
    readonly maxFiles: number,
    readonly maxBytes: number,
    readonly options: { user: string | undefined; signal: AbortSignal | undefined },
  ) {
    this.#left = maxBytes;
  }

  /** Adds the files that match a pattern. */
  async add(pattern: string, where: string): Promise<void> {
    const [top, below] = split(under(where, pattern));
    let matched = false;
    try {
      for await (const info of this.sandbox.files.find(top, below, this.options)) {
        if (info.type === "directory") continue;
        matched = true;
        const path = `${top === "/" ? "" : top}/${info.name}`;
        if (this.files.has(path) || this.omitted.has(path)) continue;
        if (this.files.size + this.omitted.size >= this.maxFiles) {
          this.omitted.set("...", `there are more than ${this.maxFiles} files`);
          break;
        }
        const why = info.type === "file" ? await this.#read(path, info.size) : `it is a ${info.type}, not a file`;
        if (why) this.omitted.set(path, why);
      }
    } catch (err) {
      if (!(err instanceof SandpitError)) throw err;
      if (!(err instanceof FileNotFoundError)) {
        this.omitted.set(pattern, err.message);
        return;
      }
    }
    if (!matched) this.unmatched.push(pattern);
  }

  /** Reads a file, and returns why it is left out; empty: it is not. */
  async #read(path: string, size: number): Promise<string> {
    if (size > this.#left) return `it has ${size} bytes, and ${this.#left} of ${this.maxBytes} are left`;
    try {
      const content = await collectBytes(this.sandbox.files.bytes(path, this.options), this.#left);
      if (!content) return `it grew beyond the ${this.#left} bytes that are left`;
      this.files.set(path, content);
      this.#left -= content.length;
      return "";
    } catch (err) {
      if (err instanceof FileError) return err.message;
      throw err;
    }
  }
}

/** Returns a path, which is below a directory unless it is absolute. */
function under(directory: string, path: string): string {
  return posix.isAbsolute(path) ? path : posix.join(directory, path);
}

/** Returns the directory in which to look for a pattern, and the pattern below it. */
function split(pattern: string): [top: string, below: string] {
  const parts = pattern.split("/");
  const special = parts.findIndex((part) => /[*?[{\\]/.test(part));
  const plain = special < 0 ? parts.length - 1 : special;
  return [parts.slice(0, plain).join("/") || "/", parts.slice(plain).join("/")];
}

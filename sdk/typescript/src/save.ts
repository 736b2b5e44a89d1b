import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { constants, type FileHandle, lstat, mkdir, open, rename, unlink } from "node:fs/promises";
import { posix } from "node:path";
import { InvalidError, SandpitError } from "./errors.js";
import { bytesOf } from "./names.js";

/**
 * Writes files below a directory, which is created if it is missing, and returns their paths relative to it. The names are a
 * sandbox's, and not trusted. On Linux the kernel resolves each name in the open directory above it, and follows no link.
 * Elsewhere names are checked first, so no other program may change the directory meanwhile.
 */
export async function save(files: ReadonlyMap<string, Uint8Array>, directory: string, below: string): Promise<string[]> {
  const base = posix.join("/", below, "/");
  await mkdir(directory, { recursive: true });
  const written: string[] = [];
  for (const [path, content] of files) {
    const name = path.startsWith(base) ? path.slice(base.length) : path;
    const parts = name.split("/");
    if (parts.some((part) => ["", ".", ".."].includes(part) || part.includes("\0") || (process.platform === "win32" && /[\\:]/.test(part)))) {
      throw new InvalidError(`${JSON.stringify(path)} is not below ${JSON.stringify(base)}, and is not written`);
    }
    try {
      await write(directory, parts, content);
    } catch (cause) {
      const message = `writing ${JSON.stringify(name)} below ${directory}: ${(cause as Error).message}; a link or a file may be in the way`;
      throw new SandpitError(message, { cause });
    }
    written.push(name);
  }
  return written;
}

async function write(directory: string, parts: readonly string[], content: Uint8Array): Promise<void> {
  let at = await Directory.open(directory, 0);
  try {
    for (const part of parts.slice(0, -1)) {
      const next = at.path(part);
      await mkdir(next).catch((err: NodeJS.ErrnoException) => {
        if (err.code !== "EEXIST") throw err;
      });
      const deeper = await Directory.open(next, constants.O_NOFOLLOW);
      await at.close();
      at = deeper;
    }
    // A file that has the name is replaced and not opened: it may be a link or a pipe.
    const temporary = at.path(`.${randomBytes(8).toString("hex")}`);
    const file = await open(temporary, "wx", 0o644);
    try {
      await file.writeFile(content).finally(() => file.close());
      await rename(temporary, at.path(parts.at(-1) ?? ""));
    } catch (err) {
      await unlink(temporary);
      throw err;
    }
  } finally {
    await at.close();
  }
}

/** A path of this machine. Only one that is not UTF-8 is a Buffer, which not every runtime takes. */
type Path = string | Buffer;

/** A directory in which files are found without following links above them. */
class Directory {
  private constructor(
    readonly handle: FileHandle | undefined,
    readonly name: Path,
  ) {}

  static async open(path: Path, flags: number): Promise<Directory> {
    if (process.platform !== "linux" || !existsSync("/proc/self/fd")) {
      if (flags && !(await lstat(path)).isDirectory()) throw new Error("not a directory");
      return new Directory(undefined, path);
    }
    const handle = await open(path as string, constants.O_RDONLY | constants.O_DIRECTORY | flags);
    return new Directory(handle, `/proc/self/fd/${handle.fd}`);
  }

  path(part: string): Path {
    if (typeof this.name === "string" && !/[\udc80-\udcff]/u.test(part)) return `${this.name}/${part}`;
    return Buffer.concat([Buffer.from(this.name), Buffer.from("/"), bytesOf(part)]);
  }

  async close(): Promise<void> {
    await this.handle?.close();
  }
}

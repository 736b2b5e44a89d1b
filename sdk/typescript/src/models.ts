import { type Json, isObject, number, object, text, time } from "./json.js";
import { name, nameOf } from "./names.js";

// Each value keeps the JSON that it was read from in raw, with the fields of newer servers.

/** A sandbox as its server describes it. */
export interface Info {
  readonly id: string;
  readonly name: string;
  readonly state: string;
  readonly image: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly createdAt: Date | undefined;
  /** The end of its lifetime; undefined: unlimited. */
  readonly expiresAt: Date | undefined;
  readonly raw: Json;
}

export function readInfo(raw: Json): Info {
  return {
    id: text(raw, "id"),
    name: text(raw, "name"),
    state: text(raw, "state"),
    image: text(raw, "image"),
    labels: object(raw, "labels") as Record<string, string>,
    createdAt: time(raw, "created_at"),
    expiresAt: time(raw, "expires_at"),
    raw,
  };
}

/** How a command has ended, with its output as far as it was collected. */
export class Result {
  /** 124 after a timeout; 128 and the number of the signal for a program that was killed. */
  readonly exitCode: number;
  /** The signal that killed it; 0: none. */
  readonly signal: number;
  readonly timedOut: boolean;
  readonly oomKilled: boolean;
  /** Whether the output was cut at its limit. */
  readonly truncated: boolean;
  /** Its duration. */
  readonly seconds: number;

  constructor(
    readonly raw: Json,
    readonly stdoutBytes: Uint8Array = new Uint8Array(),
    readonly stderrBytes: Uint8Array = new Uint8Array(),
    /** Bytes of output that are missing, because the connection was lost for too long. */
    readonly lostBytes: number = 0,
  ) {
    this.exitCode = number(raw, "exit_code");
    this.signal = number(raw, "signal");
    this.timedOut = raw["timed_out"] === true;
    this.oomKilled = raw["oom_killed"] === true;
    this.truncated = raw["truncated"] === true;
    this.seconds = number(raw, "wall_seconds");
  }

  /** Whether the command has succeeded, and no output was lost. */
  get ok(): boolean {
    return this.exitCode === 0 && this.lostBytes === 0;
  }

  /** Standard output as text. Bytes that are not UTF-8 are replaced. */
  get stdout(): string {
    return new TextDecoder().decode(this.stdoutBytes);
  }

  /** Standard error as text. Bytes that are not UTF-8 are replaced. */
  get stderr(): string {
    return new TextDecoder().decode(this.stderrBytes);
  }
}

/** A process as its server describes it. */
export interface ProcessInfo {
  readonly id: string;
  /** The process ID in the sandbox. */
  readonly pid: number;
  /** The command line, or its beginning if it is long. */
  readonly argv: readonly string[];
  readonly background: boolean;
  readonly startedAt: Date | undefined;
  /** How it ended; undefined while it is running. */
  readonly result: Result | undefined;
  readonly tag: string;
  readonly raw: Json;
}

export function readProcess(raw: Json): ProcessInfo {
  const argv = Array.isArray(raw["argv"]) ? raw["argv"].map(String) : [];
  return {
    id: text(raw, "id"),
    pid: number(raw, "pid"),
    argv: raw["encoding"] === "base64" ? argv.map((a) => nameOf(Buffer.from(a, "base64"))) : argv,
    background: raw["background"] === true,
    startedAt: time(raw, "started_at"),
    result: isObject(raw["result"]) ? new Result(raw["result"]) : undefined,
    tag: text(raw, "tag"),
    raw,
  };
}

/** A piece of output of a process. */
export interface Output {
  /** In `lost`, `lostBytes` of the output are missing here. */
  readonly stream: "stdout" | "stderr" | "lost";
  readonly data: Uint8Array;
  /** The data as text. A character that is cut is in the next piece. Bytes that are not UTF-8 are replaced. */
  readonly text: string;
  readonly lostBytes: number;
}

/** A file of a sandbox. */
export interface FileInfo {
  /** Bytes that are not UTF-8 are lone surrogates (U+DC00 plus the byte): the name can be used as a path. */
  readonly name: string;
  /** `file`, `directory`, `symlink`, `pipe` or another kind. */
  readonly type: string;
  readonly size: number;
  /** Permission bits, such as 0o644. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly modifiedAt: Date | undefined;
  /** The target of a symbolic link. */
  readonly target: string;
  readonly raw: Json;
}

export function readFile(raw: Json): FileInfo {
  return {
    name: name(raw, "name"),
    type: text(raw, "type"),
    size: number(raw, "size"),
    mode: Number.parseInt(text(raw, "mode"), 8) || 0,
    uid: number(raw, "uid"),
    gid: number(raw, "gid"),
    modifiedAt: time(raw, "mod_time"),
    target: name(raw, "target"),
    raw,
  };
}

/** A piece of output in the log of a sandbox. */
export interface LogEntry {
  /** The position: later entries have greater ones. */
  readonly seq: number;
  readonly time: Date | undefined;
  /** The ID of the process. */
  readonly process: string;
  readonly stream: string;
  readonly data: Uint8Array;
  /** The data as text. Bytes that are not UTF-8 are replaced. */
  readonly text: string;
  readonly raw: Json;
}

export function readLogEntry(raw: Json): LogEntry {
  const data = Buffer.from(text(raw, "data"), "base64");
  return { seq: number(raw, "seq"), time: time(raw, "time"), process: text(raw, "process"), stream: text(raw, "stream"), data, text: data.toString(), raw };
}

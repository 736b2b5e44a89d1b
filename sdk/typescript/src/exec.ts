import { randomUUID } from "node:crypto";
import { type CallOptions, type Client, pause, type RequestParts } from "./client.js";
import { NotFoundError, SandpitError, StateError, StreamLostError } from "./errors.js";
import { streamType } from "./frames.js";
import { defined } from "./json.js";
import { type Output, type ProcessInfo, readProcess, Result } from "./models.js";
import { bytesOf, hasBytes } from "./names.js";
import { Process, ProcessStream, type TerminalSize } from "./process.js";

/** The default of maxOutput, in bytes. */
export const maxOutput = 64 << 20;

/** A text is a script for the shell, a list is a program with its arguments. Names of files that are not UTF-8 can be in both. */
export type Command = string | readonly string[];

/** Options of every command. */
export interface CommandOptions extends CallOptions {
  env?: Readonly<Record<string, string>> | undefined;
  /** The working directory; default: the sandbox's. */
  dir?: string | undefined;
  user?: string | undefined;
  /** Seconds after which the command is killed with everything that it has started. */
  timeout?: number | undefined;
}

/** Options of a command that is waited for. If the signal aborts, the command is killed. */
export interface RunOptions extends CommandOptions {
  /** Standard input of any size, which is written while output is read; default: none. What the command does not read is dropped. */
  input?: string | Uint8Array | undefined;
  /** Throw CommandFailedError if the command fails, CommandTimedOutError after a timeout. */
  check?: boolean | undefined;
  /** Bytes of output after which the rest is dropped, and the result is truncated; default: 64 MiB. */
  maxOutput?: number | undefined;
  /** Called with the output as it comes. */
  onOutput?: ((output: Output) => void) | undefined;
}

/** Options of a process in the background. */
export interface StartOptions extends CommandOptions {
  /** Keep standard input open. */
  stdin?: boolean | undefined;
  /** Give the process a terminal. */
  terminal?: TerminalSize | undefined;
  /** A name that lists of processes have. */
  tag?: string | undefined;
}

/** A command with check has failed. */
export class CommandFailedError extends SandpitError {
  constructor(
    message: string,
    /** How it ended, with its output. */
    readonly result: Result,
  ) {
    super(message);
  }
}

/** A command with check was killed at the end of its time. */
export class CommandTimedOutError extends CommandFailedError {}

function commandOf(command: Command, options: CommandOptions): Record<string, unknown> {
  const { env, dir, user, timeout } = options;
  const script = typeof command === "string" ? command : undefined;
  const argv = typeof command === "string" ? undefined : command;
  if (![script ?? "", ...(argv ?? []), ...Object.values(env ?? {}), dir ?? ""].some(hasBytes)) return defined({ script, argv, env, dir, user, timeout });
  const encode = (value: string): string => bytesOf(value).toString("base64");
  const encoded = {
    script: script && encode(script),
    argv: argv?.map(encode),
    env: env && Object.fromEntries(Object.entries(env).map(([name, value]) => [name, encode(value)])),
    dir: dir && encode(dir),
  };
  return defined({ ...encoded, encoding: "base64", user, timeout });
}

/** Starts a process in the background, in the sandbox at a path. */
export async function start(client: Client, sandbox: string, command: Command, options: StartOptions): Promise<Process> {
  const { stdin, terminal, tag, signal } = options;
  const json = defined({ ...commandOf(command, options), stdin, terminal, tag });
  const made = await client.once("POST", `${sandbox}/processes`, { json, signal }, (raw, client, signal) => new Process(client, sandbox, readProcess(raw)).kill({ signal }));
  return new Process(client, sandbox, readProcess(made));
}

/** Runs a command in the sandbox at a path, and waits until it has ended. */
export async function run(client: Client, sandbox: string, command: Command, options: RunOptions): Promise<Result> {
  options.signal?.throwIfAborted();
  // The tag finds the process if the call is aborted before the server has answered.
  const tag = `run-${randomUUID()}`;
  const { input = "" } = options;
  const json = defined({ ...commandOf(command, options), tag, output_limit: options.maxOutput ?? maxOutput, stdin: input.length > 0 || undefined });
  const request: RequestParts = { json, headers: { Accept: streamType, "Idempotency-Key": tag }, signal: options.signal };
  const ended = new AbortController();
  let unwritten: { cause: unknown } | undefined;
  const write = async (info: ProcessInfo): Promise<void> => {
    const process = new Process(client, sandbox, info);
    try {
      await process.stdin.write(input, { signal: ended.signal, close: true });
    } catch (cause) {
      if (ended.signal.aborted) return;
      if ((cause instanceof StateError || cause instanceof NotFoundError) && cause.code !== "outcome_unknown") return; // It reads no more.
      unwritten = { cause };
      client.undo((client, signal) => new Process(client, sandbox, info).kill({ signal }));
    }
  };
  const open = (): AsyncIterable<Uint8Array> => client.bytes("running a command", "POST", `${sandbox}/exec`, request);
  const stream = new ProcessStream(open, client.retries(options.signal), (info) => void (input.length > 0 && write(info)));
  const parts: Record<"stdout" | "stderr", Uint8Array[]> = { stdout: [], stderr: [] };
  let lost = 0;
  try {
    for await (const output of stream.outputs()) {
      if (output.stream === "lost") lost += output.lostBytes;
      else parts[output.stream].push(output.data);
      options.onOutput?.(output);
    }
  } catch (err) {
    const { process } = stream;
    if (process && !stream.result) client.undo((client, signal) => new Process(client, sandbox, process).kill({ signal }));
    else if (options.signal?.aborted && !process) client.undo((client, signal) => killTagged(client, sandbox, tag, signal));
    throw err;
  } finally {
    ended.abort();
  }
  if (unwritten) throw unwritten.cause;
  if (!stream.result) throw new StreamLostError("the stream of the command has ended without its result");
  const result = new Result(stream.result, Buffer.concat(parts.stdout), Buffer.concat(parts.stderr), lost);
  if (options.check && !result.ok) {
    const what = JSON.stringify(typeof command === "string" ? command : command.join(" "));
    if (result.timedOut) throw new CommandTimedOutError(`${what} was killed after ${options.timeout} seconds`, result);
    if (result.exitCode === 0) throw new CommandFailedError(`${what} has succeeded, but ${lost} bytes of its output were lost`, result);
    throw new CommandFailedError(`${what} failed with exit code ${result.exitCode}: ${result.stderr.trim().slice(-500)}`, result);
  }
  return result;
}

/** Kills the process with a tag, whose request may still be on its way. */
async function killTagged(client: Client, sandbox: string, tag: string, signal: AbortSignal): Promise<void> {
  for (const delay of [0, 100, 300, 600]) {
    await pause(delay, signal);
    for await (const raw of client.pages(`${sandbox}/processes`, "processes", { signal })) {
      if (raw["tag"] === tag) return await new Process(client, sandbox, readProcess(raw)).kill({ signal });
    }
  }
}

import type { CallOptions, Client } from "./client.js";
import { StreamLostError } from "./errors.js";
import { serverEvents } from "./events.js";
import { defined, isObject, type Json, number, object, text } from "./json.js";
import type { Output } from "./models.js";
import { ended } from "./process.js";

/** How much output of a run is kept, in bytes. onOutput and onDisplay get everything. */
const maxKept = 16 << 20;

/** A value that code has displayed, in all its forms: `text`, `html`, `png` in base64, and others. */
export interface CodeOutput {
  /** Whether it is the value of the last expression. */
  readonly main: boolean;
  readonly forms: Readonly<Record<string, unknown>>;
  /** The value as text. */
  readonly text: string;
}

/** An error of code. */
export interface CodeError {
  readonly name: string;
  readonly value: string;
  readonly traceback: string;
}

/** An interpreter with its state. */
export interface CodeContext {
  readonly id: string;
  readonly language: string;
  readonly dir: string;
  readonly busy: boolean;
  readonly raw: Json;
}

/** Options of a run of code. If the signal aborts, the run is interrupted. */
export interface CodeOptions extends CallOptions {
  /** Default: python, or the language of the context. */
  language?: string | undefined;
  /** Default: the one of the language. */
  context?: CodeContext | string | undefined;
  env?: Readonly<Record<string, string>> | undefined;
  /** Seconds after which the run is interrupted. */
  timeout?: number | undefined;
  /** Called with the output as it comes. */
  onOutput?: ((output: Output) => void) | undefined;
  /** Called with the values that the code displays, as they come. */
  onDisplay?: ((output: CodeOutput) => void) | undefined;
}

/** What a run of code has produced. */
export interface CodeRun {
  /** The ID of the context. */
  readonly context: string;
  readonly stdout: string;
  readonly stderr: string;
  /** What the code has displayed, and last the value of its last expression. */
  readonly outputs: readonly CodeOutput[];
  /** The value of the last expression, as text. */
  readonly text: string;
  readonly error: CodeError | undefined;
  /** That of the last command (bash), of a program, or of an interpreter that ended; else 0. */
  readonly exitCode: number;
  readonly timedOut: boolean;
  /** Whether output is missing, because there was too much. */
  readonly truncated: boolean;
  /** Why the interpreter ended during the run; empty: it lives. */
  readonly interpreterEnd: string;
  /** Why the state of earlier runs is lost; empty: it is there. */
  readonly stateLost: string;
  /** Whether the code ran to its end without an error, and with exit code 0. */
  readonly ok: boolean;
  readonly raw: Json;
}

export function readContext(raw: Json): CodeContext {
  return { id: text(raw, "id"), language: text(raw, "language"), dir: text(raw, "dir"), busy: raw["busy"] === true, raw };
}

/** Runs code in the sandbox at a path. */
export async function runCode(client: Client, sandbox: string, code: string, options: CodeOptions): Promise<CodeRun> {
  const { language, env, timeout, signal } = options;
  const context = typeof options.context === "object" ? options.context.id : options.context;
  const json = defined({ code, language, context, env, timeout });
  const written: Record<"stdout" | "stderr", Uint8Array[]> = { stdout: [], stderr: [] };
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  const outputs: CodeOutput[] = [];
  let kept = 0;
  let result: Json | undefined;
  let complete = false;
  const bytes = client.bytes("running code", "POST", `${sandbox}/code`, { headers: { Accept: "text/event-stream" }, json, signal });
  for await (const [event, data] of serverEvents(bytes)) {
    if (event === "stdout" || event === "stderr") {
      const piece = Buffer.from(text(data, "data"), "base64");
      if ((kept += piece.length) <= maxKept) written[event].push(piece);
      options.onOutput?.({ stream: event, data: piece, text: decoders[event].decode(piece, { stream: true }), lostBytes: 0 });
    } else if (event === "output") {
      const { main, ...forms } = data;
      const output = { main: main === true, forms, text: text(data, "text") };
      if ((kept += JSON.stringify(data).length) <= maxKept) outputs.push(output);
      options.onDisplay?.(output);
    } else if (event === "result") {
      result = data;
    } else if (event === "end") {
      const failed = ended(data);
      if (failed) throw failed;
      complete = true;
    }
  }
  if (!complete || !result) throw new StreamLostError("the connection was lost before the run of code ended");
  const error = object(result, "error");
  const exitCode = number(result, "exit_code");
  const timedOut = result["timed_out"] === true;
  const interpreterEnd = text(result, "interpreter_end");
  return {
    context: text(result, "context"),
    stdout: Buffer.concat(written.stdout).toString(),
    stderr: Buffer.concat(written.stderr).toString(),
    outputs,
    text: outputs.findLast((output) => output.main)?.text ?? "",
    error: isObject(result["error"]) ? { name: text(error, "name"), value: text(error, "value"), traceback: text(error, "traceback") } : undefined,
    exitCode,
    timedOut,
    interpreterEnd,
    truncated: result["truncated"] === true || kept > maxKept,
    stateLost: text(result, "state_lost"),
    ok: !isObject(result["error"]) && exitCode === 0 && !timedOut && !interpreterEnd,
    raw: result,
  };
}

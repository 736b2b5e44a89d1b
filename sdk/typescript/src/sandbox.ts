import { type CallOptions, Client, segment } from "./client.js";
import { type CodeContext, type CodeOptions, type CodeRun, readContext, runCode } from "./code.js";
import { NotFoundError, StreamLostError } from "./errors.js";
import { lines, objectOf } from "./events.js";
import { type Command, type CommandOptions, run, type RunOptions, start, type StartOptions } from "./exec.js";
import { Files } from "./files.js";
import { defined, type Json, number, object, text } from "./json.js";
import { type Info, type LogEntry, type ProcessInfo, readInfo, readLogEntry, readProcess, type Result } from "./models.js";
import { ended, Process } from "./process.js";

/** Options of a call that finds sandboxes. */
export interface FindOptions extends CallOptions {
  /** The client to use; default: one of its own, which is closed with the sandbox. */
  client?: Client | undefined;
}

/** What a new sandbox is to be. If the signal aborts, no sandbox is left. */
export interface CreateOptions extends FindOptions {
  /** Default: host, a read-only view of the server's own programs. */
  image?: string | undefined;
  name?: string | undefined;
  env?: Readonly<Record<string, string>> | undefined;
  user?: string | undefined;
  workdir?: string | undefined;
  labels?: Readonly<Record<string, string>> | undefined;
  /** Bytes. */
  memory?: number | undefined;
  cpus?: number | undefined;
  /** Bytes. */
  disk?: number | undefined;
  /** Its lifetime in seconds. */
  life?: number | undefined;
  /** Seconds without use after which it expires; -1: never. */
  idle?: number | undefined;
  /** What happens at the end of its lifetime. */
  onExpiry?: "remove" | "stop" | "pause" | undefined;
  /** The destinations that it may reach, such as `pypi.org:443`, or an Egress of the API. Default: none. */
  egress?: readonly string[] | Json | undefined;
  /** Names of stored secrets, or SecretUses of the API. */
  secrets?: readonly (string | Json)[] | undefined;
  /** Further fields of a Spec of the API. */
  spec?: Json | undefined;
}

/** A sandbox. With `await using` it is removed at the end of the block; otherwise it stays until its lifetime ends. */
export class Sandbox implements AsyncDisposable {
  /** The sandbox as it was when this value was made; see refresh. */
  info: Info;
  readonly files: Files;
  readonly #client: Client;
  readonly #owns: boolean;
  readonly #path: string;
  #removed = false;

  private constructor(client: Client, owns: boolean, raw: Json) {
    this.#client = client;
    this.#owns = owns;
    this.info = readInfo(raw);
    this.#path = `/v1/sandboxes/${segment(this.info.id)}`;
    this.files = new Files(client, `${this.#path}/files`);
  }

  /** Creates a sandbox, and starts it. */
  static async create(options: CreateOptions = {}): Promise<Sandbox> {
    const { image, name, env, user, workdir, labels, memory, cpus, disk, life, idle, onExpiry, egress, secrets, spec, signal } = options;
    const limits = defined({ memory, cpus, disk, life });
    const json = {
      ...defined({ image, name, env, user, workdir, labels, idle, on_expiry: onExpiry }),
      ...(Object.keys(limits).length > 0 ? { limits } : {}),
      ...(egress ? { egress: Array.isArray(egress) ? { allow: egress } : egress } : {}),
      ...(secrets ? { secrets: secrets.map((s) => (typeof s === "string" ? { name: s } : s)) } : {}),
      ...spec,
    };
    return await withClient(options, true, async (client, owns) => {
      const remove = async (made: Json, client: Client, signal: AbortSignal): Promise<void> => {
        await client.call("DELETE", `/v1/sandboxes/${segment(text(made, "id"))}`, { signal });
      };
      return new Sandbox(client, owns, await client.once("POST", "/v1/sandboxes", { json, signal }, remove));
    });
  }

  /** Returns a sandbox that exists, by its name or ID. */
  static async get(name: string, options: FindOptions = {}): Promise<Sandbox> {
    return await withClient(options, true, async (client, owns) => {
      return new Sandbox(client, owns, await client.call("GET", `/v1/sandboxes/${segment(name)}`, { signal: options.signal }));
    });
  }

  /** Returns the sandboxes of the caller that have all these labels and one of these states, the oldest first. */
  static async list(options: FindOptions & { labels?: Readonly<Record<string, string>>; states?: readonly string[] } = {}): Promise<Info[]> {
    const query = { label: Object.entries(options.labels ?? {}).map(([name, value]) => `${name}=${value}`), state: options.states };
    return await withClient(options, false, async (client) => await all(client.pages("/v1/sandboxes", "sandboxes", { query, signal: options.signal }), readInfo));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.remove();
  }

  /** The ID, which never changes. */
  get id(): string {
    return this.info.id;
  }

  /** Asks the server for the state of the sandbox. */
  async refresh(options: CallOptions = {}): Promise<Info> {
    this.info = readInfo(await this.#client.call("GET", this.#path, { signal: options.signal }));
    return this.info;
  }

  /** Removes the sandbox with everything in it. It is a no-op if the sandbox is gone. */
  async remove(options: CallOptions = {}): Promise<void> {
    if (this.#removed) return;
    try {
      await this.#client.call("DELETE", this.#path, { signal: options.signal });
    } catch (err) {
      if (!(err instanceof NotFoundError)) throw err;
    }
    this.#removed = true;
    if (this.#owns) await this.#client.close(`sandbox ${this.id} was removed`);
  }

  /** Closes the connections, unless the client is the caller's. The sandbox stays. */
  async close(): Promise<void> {
    if (this.#owns) await this.#client.close();
  }

  /** Runs a command, and waits until it has ended. A command that fails is not an error, unless check is set. */
  async run(command: Command, options: RunOptions = {}): Promise<Result> {
    return await run(this.#client, this.#path, command, options);
  }

  /** Starts a process in the background. */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    return await start(this.#client, this.#path, command, options);
  }

  /** Returns a process that was started earlier, by its ID or pid. */
  async process(id: string | number, options: CallOptions = {}): Promise<Process> {
    const raw = await this.#client.call("GET", `${this.#path}/processes/${segment(String(id))}`, { signal: options.signal });
    return new Process(this.#client, this.#path, readProcess(raw));
  }

  /** Returns the processes, also those that have ended lately, the oldest first. */
  async processes(options: CallOptions = {}): Promise<ProcessInfo[]> {
    return await this.#list("processes", options, readProcess);
  }

  /** Runs code that keeps its state, in a context, or in the default one of the language. */
  async runCode(code: string, options: CodeOptions = {}): Promise<CodeRun> {
    return await runCode(this.#client, this.#path, code, options);
  }

  /** Creates an interpreter beside the default one, with its own state. */
  async createContext(options: CallOptions & Partial<Record<"language" | "id" | "dir", string>> & { env?: CommandOptions["env"] } = {}): Promise<CodeContext> {
    const { language, id, dir, env, signal } = options;
    const remove = async (made: Json, client: Client, signal: AbortSignal): Promise<void> => {
      await client.call("DELETE", `${this.#path}/contexts/${segment(text(made, "id"))}`, { signal });
    };
    return readContext(await this.#client.once("POST", `${this.#path}/contexts`, { json: defined({ language, id, dir, env }), signal }, remove));
  }

  /** Returns the contexts, the oldest first. */
  async contexts(options: CallOptions = {}): Promise<CodeContext[]> {
    return await this.#list("contexts", options, readContext);
  }

  /** Removes a context, and kills its interpreter. */
  async removeContext(context: CodeContext | string, options: CallOptions = {}): Promise<void> {
    await this.#client.call("DELETE", this.#context(context), { signal: options.signal });
  }

  /** Kills the interpreter of a context. The next run starts a new one, without the state. */
  async restartContext(context: CodeContext | string, options: CallOptions = {}): Promise<void> {
    await this.#client.once("POST", `${this.#context(context)}/restart`, { signal: options.signal });
  }

  /** Interrupts the present run of a context, as ^C does. The state is kept. It is a no-op without a run. */
  async interruptContext(context: CodeContext | string, options: CallOptions = {}): Promise<void> {
    await this.#client.once("POST", `${this.#context(context)}/interrupt`, { signal: options.signal });
  }

  #context(context: CodeContext | string): string {
    return `${this.#path}/contexts/${segment(typeof context === "string" ? context : context.id)}`;
  }

  /** Freezes all processes. A request to the sandbox, or resume, makes them continue. */
  async pause(options: CallOptions = {}): Promise<Info> {
    return await this.#change("pause", options);
  }

  /** Makes a paused sandbox continue. */
  async resume(options: CallOptions = {}): Promise<Info> {
    return await this.#change("resume", options);
  }

  /** Ends all processes, and keeps the files. grace is the time between SIGTERM and SIGKILL, in seconds. */
  async stop(options: CallOptions & { grace?: number } = {}): Promise<Info> {
    return await this.#change("stop", options, defined({ grace: options.grace }));
  }

  /** Starts a sandbox that was stopped. */
  async restart(options: CallOptions = {}): Promise<Info> {
    return await this.#change("start", options);
  }

  async #change(what: string, { signal }: CallOptions, json?: object): Promise<Info> {
    this.info = readInfo(await this.#client.once("POST", `${this.#path}/${what}`, { json, signal }));
    return this.info;
  }

  /** Sets how many seconds the sandbox lives from now on. */
  async extend(life: number, options: CallOptions = {}): Promise<Info> {
    this.info = readInfo(await this.#client.call("PUT", `${this.#path}/lifetime`, { json: { life }, signal: options.signal }));
    return this.info;
  }

  /** Returns what the sandbox uses now, as Metrics of the API. */
  async metrics(options: CallOptions = {}): Promise<Json> {
    return await this.#client.call("GET", `${this.#path}/metrics`, { signal: options.signal });
  }

  /** Returns the ports on which programs listen. */
  async ports(options: CallOptions = {}): Promise<number[]> {
    return await this.#list("ports", options, (raw) => number(raw, "port"));
  }

  /** Returns a URL that opens a port in a browser. It needs no key: anyone with the URL can use the port until it expires. */
  async preview(port: number, options: CallOptions & { expires?: number } = {}): Promise<string> {
    const json = defined({ expires: options.expires });
    return text(await this.#client.call("POST", `${this.#path}/ports/${segment(String(port))}/previews`, { json, signal: options.signal }), "url");
  }

  /** Yields the entries of the log; with tail, the last ones only; with follow, those to come, too. After a lost connection it continues where it was. */
  async *logs(options: CallOptions & { tail?: number; process?: string; follow?: boolean } = {}): AsyncGenerator<LogEntry, void, undefined> {
    const { tail, process, follow, signal } = options;
    const retries = this.#client.retries(signal);
    let after: number | undefined;
    for (let begun = false; ; ) {
      const request = { query: { tail: after === undefined ? tail : undefined, after, process, follow }, headers: { Accept: "application/x-ndjson" }, signal };
      try {
        for await (const line of lines(this.#client.bytes("reading the log", "GET", `${this.#path}/logs`, request))) {
          begun = true;
          if (!line) continue; // a ping
          const entry = objectOf(line);
          if ("seq" in entry) {
            after = number(entry, "seq");
            retries.renew();
            yield readLogEntry(entry);
          }
          if ("end" in entry) {
            const failed = ended(object(entry, "end"));
            if (failed) throw failed;
            return;
          }
        }
        throw new StreamLostError("the connection was lost before the end of the log");
      } catch (err) {
        if (!begun && !(err instanceof StreamLostError)) throw err;
        begun = true;
        await retries.again(err);
      }
    }
  }

  async #list<T>(what: string, { signal }: CallOptions, read: (raw: Json) => T): Promise<T[]> {
    return await all(this.#client.pages(`${this.#path}/${what}`, what, { signal }), read);
  }
}

async function all<T>(pages: AsyncIterable<Json>, read: (raw: Json) => T): Promise<T[]> {
  const found: T[] = [];
  for await (const raw of pages) found.push(read(raw));
  return found;
}

/** Calls what with the client of the options, or with a new one, which is closed after an error, or unless it is kept. */
export async function withClient<T>(options: FindOptions, keep: boolean, what: (client: Client, owns: boolean) => Promise<T>): Promise<T> {
  const client = options.client ?? new Client();
  let done = false;
  try {
    const made = await what(client, !options.client);
    done = true;
    return made;
  } finally {
    const closing = !options.client && !(keep && done) ? client.close() : undefined;
    if (!options.signal?.aborted) await closing;
  }
}

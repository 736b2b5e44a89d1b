import { execFile } from "node:child_process";
import { existsSync, statSync } from "node:fs";
import { connect, isIPv4 } from "node:net";
import { dirname, isAbsolute, join, normalize, resolve } from "node:path";
import { ForbiddenError, InvalidError, UnavailableError } from "./errors.js";
import { parsed, text } from "./json.js";

/** The time in which a server must have started, in milliseconds. */
const ensurePatience = 30_000;

type Env = Readonly<Record<string, string | undefined>>;

/** The address of a server: the path of a unix socket, or a URL. */
export interface Endpoint {
  readonly socket: string;
  readonly url: string;
  readonly key: string;
  readonly namespace: string;
}

/** Where the server is, and who asks. */
export interface EndpointOptions {
  /** `https://HOST:PORT` or `unix:///PATH`; default: SANDPIT_SERVER, or this user's own server. */
  server?: string | undefined;
  /** Default: SANDPIT_KEY. */
  key?: string | undefined;
  /** A namespace inside the key's own; default: SANDPIT_NAMESPACE. */
  namespace?: string | undefined;
}

/** Returns an address as people write it. */
export function shown(endpoint: Endpoint): string {
  return endpoint.socket ? `unix://${endpoint.socket}` : endpoint.url;
}

/**
 * Returns the endpoint that the options and the environment name. Without an address that is the socket of this user's
 * server, which is started if the program sandpit is installed. There the kernel identifies the caller, and no key is needed.
 */
export async function find(options: EndpointOptions, env: Env = process.env): Promise<Endpoint> {
  const address = options.server ?? env["SANDPIT_SERVER"] ?? "";
  const key = clean("the key", options.key ?? env["SANDPIT_KEY"] ?? "");
  const namespace = clean("the namespace", options.namespace ?? env["SANDPIT_NAMESPACE"] ?? "");
  if (address && address !== "local") return { ...parse(address, key), namespace };
  const path = join(home(env), "server.sock");
  // A configuration file may name another server.
  if ((address === "local" || !configured(env)) && (await answers(path))) {
    return { socket: own(path), url: "http://localhost", key: "", namespace };
  }
  return await ensure(path, key, namespace, { ...env, SANDPIT_SERVER: address });
}

/** Returns a value for the head of a request. */
function clean(what: string, value: string): string {
  const trimmed = value.trim();
  if (/[^ -~]/.test(trimmed)) throw new InvalidError(`${what} has invalid characters`);
  return trimmed;
}

/** Reports whether a configuration file exists. */
function configured(env: Env): boolean {
  const directory = env["XDG_CONFIG_HOME"] || join(env["HOME"] || "/", ".config");
  return [env["SANDPIT_CONFIG"] || join(directory, "sandpit", "config.yaml"), "/etc/sandpit/config.yaml"].some((file) => existsSync(file));
}

/** Reads unix:///PATH, https://HOST:PORT, or http://HOST:PORT of this machine. */
export function parse(address: string, key: string): Endpoint {
  if (address.startsWith("unix://")) {
    const path = address.slice("unix://".length);
    if (!isAbsolute(path) || path.includes("\0")) throw bad(address);
    return { socket: own(normalize(path)), url: "http://localhost", key, namespace: "" };
  }
  if (!/^https?:\/\//.test(address) || !URL.canParse(address)) throw bad(address);
  const url = new URL(address);
  if (url.username || url.password || url.pathname !== "/" || url.search || url.hash) throw bad(address);
  if (url.protocol === "http:" && !isLoopback(url.hostname)) {
    throw new InvalidError(`connecting to ${address}: plain HTTP is allowed only on this machine`, { hint: "use https" });
  }
  if (!key) throw new InvalidError(`the server ${address} needs a key`, { hint: "set SANDPIT_KEY, or pass key" });
  return { socket: "", url: url.origin, key, namespace: "" };
}

function bad(address: string): InvalidError {
  return new InvalidError(`${JSON.stringify(address)} is not a server address`, {
    hint: "write unix:///PATH, https://HOST:PORT or, on this machine, http://127.0.0.1:PORT",
  });
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "[::1]" || (isIPv4(host) && host.startsWith("127."));
}

/** Returns the data directory of this user. */
function home(env: Env): string {
  if (env["SANDPIT_HOME"]) return resolve(env["SANDPIT_HOME"]);
  if (process.geteuid?.() === 0) return "/var/lib/sandpit";
  for (const [base, ...rest] of [[env["XDG_DATA_HOME"]], [env["HOME"], ".local", "share"]]) {
    if (base && isAbsolute(base)) return join(base, ...(rest as string[]), "sandpit");
  }
  throw new InvalidError("HOME is not set, so the server's socket can't be found", { hint: "set SANDPIT_SERVER or SANDPIT_HOME" });
}

/** Returns the path of a socket, unless another user may listen there, who would get everything that is sent. */
function own(path: string): string {
  let socket, above;
  try {
    socket = statSync(path);
    above = statSync(dirname(path));
  } catch (cause) {
    throw new UnavailableError(`connecting to unix://${path}: ${(cause as Error).message}`, { cause });
  }
  if (!socket.isSocket()) throw new InvalidError(`connecting to unix://${path}: this is not a socket`);
  if (![0, process.geteuid?.(), above.uid].includes(socket.uid)) {
    throw new ForbiddenError(`connecting to unix://${path}: the socket belongs to another user (uid ${socket.uid})`);
  }
  return path;
}

/** Reports whether a server listens at a path. */
function answers(path: string): Promise<boolean> {
  return new Promise((done, fail) => {
    const socket = connect(path);
    const end = (listens: boolean): void => {
      socket.destroy();
      done(listens);
    };
    socket.setTimeout(5000, () => end(false));
    socket.on("connect", () => end(true));
    socket.on("error", (cause: NodeJS.ErrnoException) => {
      if (cause.code !== "EACCES" && cause.code !== "EPERM") return end(false);
      const hint = "the socket belongs to another user: set SANDPIT_SERVER or SANDPIT_HOME";
      return fail(new ForbiddenError(`connecting to unix://${path}: permission denied`, { hint, cause }));
    });
  });
}

/** Starts this user's server, or finds the one that the configuration names. */
async function ensure(path: string, key: string, namespace: string, env: Env): Promise<Endpoint> {
  const out = await new Promise<string>((done, fail) => {
    const child = execFile("sandpit", ["serve", "--ensure"], { env: { ...env }, timeout: ensurePatience }, (cause, stdout, stderr) => {
      if (!cause) return done(stdout);
      if (cause.code === ("ENOENT" as unknown)) {
        const hint = "install sandpit, or set SANDPIT_SERVER and SANDPIT_KEY";
        return fail(new UnavailableError(`no server listens at unix://${path}, and the program sandpit is not installed`, { hint, cause }));
      }
      return fail(new UnavailableError(`starting a server with sandpit: ${stderr.trim() || cause.message}`, { cause }));
    });
    child.stdin?.end();
  });
  const told = parsed(out);
  if (!told || !text(told, "server")) {
    throw new UnavailableError("starting a server with sandpit: it printed no address", { hint: "install the version of this package" });
  }
  return { ...parse(text(told, "server"), text(told, "key") || key), namespace: namespace || text(told, "namespace") };
}

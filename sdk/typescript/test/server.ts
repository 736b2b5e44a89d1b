// Starts a real server for the tests of a file: the program that SANDPIT_BINARY names.
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, type ClientOptions } from "@sandpit/sdk";

const program = process.env["SANDPIT_BINARY"];
if (!program) throw new Error("set SANDPIT_BINARY to the program sandpit");

/** A directory that is removed after the tests of the file. */
export const directory = mkdtempSync(join(tmpdir(), "sdk-"));
const [pem, log] = [join(directory, "server.pem"), join(directory, "log")];
const san = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"];
const ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=localhost"];
execFileSync("openssl", ["req", "-x509", ...ec, ...san, "-keyout", join(directory, "server.key"), "-out", pem], { stdio: "pipe" });
writeFileSync(join(directory, "server.yaml"), 'listen: ["127.0.0.1:0"]\ntls-cert: server.pem\ntls-key: server.key\n');

const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("SANDPIT_")));
env["SANDPIT_HOME"] = join(directory, "data");
const out = openSync(log, "w");
const start = () => spawn(program, ["serve", "--config", join(directory, "server.yaml")], { env, stdio: ["ignore", out, out] });
let server = start();
const stop = async () => {
  const ended = new Promise((done) => server.on("exit", done));
  if (server.kill()) await ended;
};
after(async () => {
  await stop();
  rmSync(directory, { recursive: true, force: true });
});

/** The path of the server's socket. */
export const socket = join(directory, "data", "server.sock");
const until = Date.now() + 60_000;
let port: string | undefined;
while (!port || !existsSync(socket)) {
  const said = readFileSync(log, "utf8");
  if (server.exitCode !== null || Date.now() > until) throw new Error(said);
  port = /address=127\.0\.0\.1:(\d+)\n/.exec(said)?.[1];
  await sleep(20);
}
const made = JSON.parse(execFileSync(program, ["key", "create", "--json", "tests"], { env }).toString()) as { secret: string };

/** The two ways to the server. */
export const ways: Readonly<Record<string, ClientOptions>> = {
  "a unix socket": { server: `unix://${socket}` },
  "TLS and a key": { server: `https://127.0.0.1:${port}`, key: made.secret, ca: readFileSync(pem, "utf8") },
};

/** Waits until something holds. */
export async function eventually(what: () => Promise<boolean>): Promise<void> {
  for (const until = Date.now() + 60_000; !(await what()); await sleep(20)) if (Date.now() > until) throw new Error("it never held");
}

/** Ends the server, and starts it again after body has run. Its port changes. */
export async function restarted(body: () => Promise<void>): Promise<void> {
  await stop();
  try {
    await body();
  } finally {
    server = start();
  }
}

/** Stops the server, as a machine that hangs, while body runs. */
export async function stalled(body: () => Promise<void>): Promise<void> {
  server.kill("SIGSTOP");
  try {
    await body();
  } finally {
    server.kill("SIGCONT");
  }
}

/** Declares a test, for each way to the server. */
export function eachWay(name: string, body: (client: Client) => Promise<void>): void {
  for (const [way, options] of Object.entries(ways)) {
    test(`${name}, by ${way}`, async () => {
      await using client = new Client(options);
      await body(client);
    });
  }
}

/// <reference lib="esnext.disposable" preserve="true" />
/**
 * Safe computers for AI agents.
 *
 *     import { Sandbox } from "@sandpit/sdk";
 *
 *     await using sb = await Sandbox.create();
 *     console.log((await sb.run("echo hello")).stdout);
 */
export { type CallOptions, Client, type ClientOptions, type RequestParts } from "./client.js";
export type { CodeContext, CodeError, CodeOptions, CodeOutput, CodeRun } from "./code.js";
export type { EndpointOptions } from "./config.js";
export {
  AlreadyExistsError,
  AuthenticationError,
  BusyError,
  ClosedError,
  DiskFullError,
  type ErrorDetails,
  FileError,
  FileExistsError,
  FileNotFoundError,
  FilePermissionError,
  ForbiddenError,
  IntegrityError,
  InvalidError,
  IsADirectoryError,
  NotADirectoryError,
  NotFoundError,
  ProtocolError,
  QuotaError,
  RateLimitedError,
  SandpitError,
  ServerTimeoutError,
  StartError,
  StateError,
  StreamLostError,
  UnavailableError,
  UnsupportedError,
} from "./errors.js";
export { type Command, CommandFailedError, type CommandOptions, CommandTimedOutError, type RunOptions, type StartOptions } from "./exec.js";
export { type Content, type FileOptions, Files, type WriteOptions } from "./files.js";
export type { Body } from "./http.js";
export type { Json } from "./json.js";
export { type FileInfo, type Info, type LogEntry, type Output, type ProcessInfo, Result } from "./models.js";
export { type OneShot, Run, run } from "./oneshot.js";
export { Process, Stdin, type TerminalSize } from "./process.js";
export { type CreateOptions, type FindOptions, Sandbox } from "./sandbox.js";
export { version } from "./version.js";

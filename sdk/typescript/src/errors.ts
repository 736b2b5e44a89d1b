import { type Json, text } from "./json.js";

/** What is known about an error beside its message. */
export interface ErrorDetails {
  code?: string;
  hint?: string;
  requestId?: string;
  status?: number;
  path?: string;
  exitCode?: number;
  retryAfter?: number;
  cause?: unknown;
}

/** An error of a server, or of the connection to it. All errors of this package extend it. */
export class SandpitError extends Error {
  /** One of the codes of the API reference, which are stable; empty if no server has answered. */
  readonly code: string;
  /** What to do about the error, if that is known. */
  readonly hint: string;
  /** The ID of the request, which is in the server's audit and log. */
  readonly requestId: string;
  /** The HTTP status; 0 if the error came otherwise. */
  readonly status: number;
  /** The path that a file error is about. */
  readonly path: string;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, "cause" in details ? { cause: details.cause } : undefined);
    this.name = new.target.name;
    this.code = details.code ?? "";
    this.hint = details.hint ?? "";
    this.requestId = details.requestId ?? "";
    this.status = details.status ?? 0;
    this.path = details.path ?? "";
  }
}

/** The request is invalid: the caller must change it. */
export class InvalidError extends SandpitError {}

/** The key is missing, wrong, revoked or expired. */
export class AuthenticationError extends SandpitError {}

/** A policy, or the server's rules about hosts and origins, forbid the request. */
export class ForbiddenError extends SandpitError {}

/** A limit of the policy, the namespace or the sandbox is reached. */
export class QuotaError extends ForbiddenError {}

/** The sandbox, process, context, image or secret does not exist. */
export class NotFoundError extends SandpitError {}

/** The name is in use. */
export class AlreadyExistsError extends SandpitError {}

/** The present state does not allow the request, such as a command in a stopped sandbox. */
export class StateError extends SandpitError {
  /** Seconds after which the same request may succeed by itself; 0: it won't. */
  readonly retryAfter: number;
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details);
    this.retryAfter = details.retryAfter ?? 0;
  }
}

/** The sandbox was removed or has failed, or the client was closed. */
export class ClosedError extends StateError {}

/** The program can't be started. */
export class StartError extends SandpitError {
  /** What a shell would exit with: 127 if the program does not exist, else 126. */
  readonly exitCode: number;
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details);
    this.exitCode = details.exitCode ?? 126;
  }
}

/** The machine, the sandbox or this version of the server does not support the request. */
export class UnsupportedError extends SandpitError {}

/** The server can't be reached, is shutting down, or can't serve the request now: the same request may succeed later. */
export class UnavailableError extends SandpitError {}

/** The key has made too many requests. */
export class RateLimitedError extends SandpitError {
  /** Seconds after which to try again. */
  readonly retryAfter: number;
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details);
    this.retryAfter = details.retryAfter ?? 1;
  }
}

/** The machine has no capacity at present. */
export class BusyError extends UnavailableError {
  /** Seconds after which to try again. */
  readonly retryAfter: number;
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details);
    this.retryAfter = details.retryAfter ?? 1;
  }
}

/** A stream broke off before its last event, and could not be resumed. */
export class StreamLostError extends UnavailableError {}

/** Data does not match its digest or its format. */
export class IntegrityError extends SandpitError {}

/** A sandbox, a registry or a server has violated its protocol. The caller can't change that. */
export class ProtocolError extends SandpitError {}

/** The server or the sandbox took too long. */
export class ServerTimeoutError extends SandpitError {}

/** There is no space left, in the sandbox or on the machine. */
export class DiskFullError extends SandpitError {}

/** An operation on a file of the sandbox failed. */
export class FileError extends SandpitError {}

/** The file does not exist. */
export class FileNotFoundError extends FileError {}

/** The file exists already. */
export class FileExistsError extends FileError {}

/** The path is a directory, and the operation needs a file. */
export class IsADirectoryError extends FileError {}

/** The path is not a directory, or is a directory that is not empty. */
export class NotADirectoryError extends FileError {}

/** The user of the sandbox may not do that with the file. */
export class FilePermissionError extends FileError {}

type Kind = new (message: string, details: ErrorDetails) => SandpitError;

const kinds = new Map<unknown, Kind>([
  ["closed", ClosedError],
  ["integrity", IntegrityError],
  ["protocol", ProtocolError],
  ["state", StateError],
  ["outcome_unknown", StateError],
  ["start_failed", StartError],
  ["forbidden", ForbiddenError],
  ["preview_invalid", ForbiddenError],
  ["host_refused", ForbiddenError],
  ["origin_refused", ForbiddenError],
  ["unsupported", UnsupportedError],
  ["no_route", UnsupportedError],
  ["method_not_allowed", UnsupportedError],
  ["disk_full", DiskFullError],
  ["no_space", DiskFullError],
  ["quota_exceeded", QuotaError],
  ["output_too_large", QuotaError],
  ["rate_limited", RateLimitedError],
  ["audit_rate", RateLimitedError],
  ["too_many_streams", RateLimitedError],
  ["overloaded", BusyError],
  ["too_many_connections", BusyError],
  ["unavailable", UnavailableError],
  ["draining", UnavailableError],
  ["audit_unavailable", UnavailableError],
  ["body_timeout", UnavailableError],
  ["is_directory", IsADirectoryError],
  ["not_directory", NotADirectoryError],
  ["not_empty", NotADirectoryError],
  ["file_not_found", FileNotFoundError],
  ["file_exists", FileExistsError],
  ["permission", FilePermissionError],
  ["not_found", NotFoundError],
  ["exists", AlreadyExistsError],
  ["invalid", InvalidError],
  ["too_large", InvalidError],
  ["invalid_range", InvalidError],
  ["unsupported_media", InvalidError],
  ["upgrade_required", InvalidError],
  ["idempotency_mismatch", InvalidError],
  ["timeout", ServerTimeoutError],
  ["unauthenticated", AuthenticationError],
  ["ticket_invalid", AuthenticationError],
]);

// A code that this version does not know, because the server is newer, gets the class of its status.
const classes = new Map<number, Kind>([
  [400, InvalidError],
  [401, AuthenticationError],
  [403, ForbiddenError],
  [404, NotFoundError],
  [409, StateError],
  [410, ClosedError],
  [413, InvalidError],
  [422, InvalidError],
  [429, RateLimitedError],
  [501, UnsupportedError],
  [502, UnavailableError],
  [503, UnavailableError],
  [504, ServerTimeoutError],
  [507, DiskFullError],
]);

/** Returns the seconds of a Retry-After header, at most a minute. */
function seconds(header: string): number {
  const value = Number(header);
  return Number.isFinite(value) ? Math.min(Math.max(value, 0), 60) : 1;
}

/** Returns the error that a server has sent as JSON. */
export function errorOf(status: number, body: Json, retryAfter?: string): SandpitError {
  const kind = kinds.get(body["code"]) ?? classes.get(status) ?? SandpitError;
  return new kind(text(body, "message") || `the server answered with status ${status}`, {
    code: text(body, "code"),
    hint: text(body, "hint"),
    requestId: text(body, "request_id"),
    path: text(body, "path"),
    status,
    ...(retryAfter === undefined ? {} : { retryAfter: seconds(retryAfter) }),
    ...(typeof body["exit_code"] === "number" ? { exitCode: body["exit_code"] } : {}),
  });
}

"""What can go wrong. Every error of the package is a SandpitError."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models import CodeRun, Result

__all__ = [
    "AlreadyExistsError",
    "AuthenticationError",
    "BusyError",
    "ClosedError",
    "CodeFailed",
    "CodeTimedOut",
    "CommandFailed",
    "CommandTimedOut",
    "DiskFullError",
    "FileAlreadyExists",
    "FileMissing",
    "FilePermissionError",
    "ForbiddenError",
    "IntegrityError",
    "InvalidError",
    "IsADirectory",
    "NotADirectory",
    "NotFoundError",
    "ProtocolError",
    "QuotaError",
    "RateLimitedError",
    "SandpitError",
    "ServerTimeout",
    "StartError",
    "StateError",
    "StreamLost",
    "UnavailableError",
    "UnsupportedError",
]


class SandpitError(Exception):
    """An error of a server, or of the way to it.

    ``code`` is stable, and is one of the codes of the API reference, or empty if no server has answered. ``hint``
    says what to do about it, if that is known. ``request_id`` is in the server's audit and log.
    """

    _errno: int | None = None
    """The number of an error that is an OSError."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        hint: str = "",
        request_id: str = "",
        status: int = 0,
        path: str = "",
    ) -> None:
        super().__init__(message)
        if isinstance(self, OSError):
            _mark(self, self._errno, path or None)
        self.message = message
        self.code = code
        self.hint = hint
        self.request_id = request_id
        self.status = status
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        # That of exceptions passes args alone. An OSError has what is not in its dict, too.
        state = self.__dict__ | ({"errno": self.errno, "filename": self.filename} if isinstance(self, OSError) else {})
        return _remake, (type(self), state)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


def _mark(err: OSError, number: int | None, filename: str | None) -> None:
    err.errno, err.filename = number, filename


def _remake(kind: type[SandpitError], state: dict[str, Any]) -> SandpitError:
    """Return a copy of an error."""
    err = kind.__new__(kind)
    err.args = (state["message"],)
    for name, value in state.items():
        setattr(err, name, value)
    return err


class InvalidError(SandpitError, ValueError):
    """The request makes no sense: another one is needed."""


class AuthenticationError(SandpitError):
    """The key is missing, wrong, revoked or expired."""


class ForbiddenError(SandpitError):
    """A policy, or the server's rules about hosts and origins, forbid the request."""


class QuotaError(ForbiddenError):
    """A limit of the policy, the namespace or the sandbox is reached."""


class NotFoundError(SandpitError, LookupError):
    """There is no such sandbox, process, context, image or secret."""


class AlreadyExistsError(SandpitError):
    """The name is in use."""


class StateError(SandpitError):
    """That is not possible in the present state, such as an exec in a stopped sandbox."""


class ClosedError(StateError):
    """The sandbox was removed, or has failed."""


class StartError(SandpitError):
    """The program can't be started. ``exit_code`` is what a shell would tell: 127 or 126."""

    exit_code: int = 126


class UnsupportedError(SandpitError, NotImplementedError):
    """The machine, the sandbox or a server of this version does not offer that."""


class RateLimitedError(SandpitError):
    """Too many requests of one key. ``retry_after`` is in seconds."""

    retry_after: float = 1.0


class UnavailableError(SandpitError, ConnectionError):
    """The server can't be reached, is shutting down, or can do nothing now: the same request may succeed later."""


class BusyError(UnavailableError):
    """The machine has no room at present. ``retry_after`` is in seconds."""

    retry_after: float = 1.0


class StreamLost(UnavailableError):
    """A stream broke off before its last event, and could not be resumed."""


class IntegrityError(SandpitError):
    """Data is not what its digest or its format says."""


class ProtocolError(SandpitError):
    """A sandbox, a registry or a server has broken its protocol. Somebody else has to act."""


class ServerTimeout(SandpitError, TimeoutError):
    """The server or the sandbox took too long."""

    _errno = errno.ETIMEDOUT


class DiskFullError(SandpitError, OSError):
    """There is no space left, in the sandbox or on the machine."""

    _errno = errno.ENOSPC


class FileMissing(SandpitError, FileNotFoundError):
    """There is no such file in the sandbox."""

    _errno = errno.ENOENT


class FileAlreadyExists(SandpitError, FileExistsError):
    """The file exists already."""

    _errno = errno.EEXIST


class IsADirectory(SandpitError, IsADirectoryError):
    """A file is needed, but this is a directory."""

    _errno = errno.EISDIR


class NotADirectory(SandpitError, NotADirectoryError):
    """A directory is needed, but this is something else; or a directory is not empty."""

    _errno = errno.ENOTDIR


class FilePermissionError(SandpitError, PermissionError):
    """The user of the sandbox may not do that with the file."""

    _errno = errno.EACCES


class CommandFailed(SandpitError):
    """A command that was to be checked has failed. ``result`` has its output."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class CommandTimedOut(CommandFailed, TimeoutError):
    """A command that was to be checked was killed at the end of its time."""

    _errno = errno.ETIMEDOUT


class CodeFailed(SandpitError):
    """A run of code that was to be checked has failed. ``result`` has its output."""

    def __init__(self, message: str, result: CodeRun) -> None:
        super().__init__(message)
        self.result = result


class CodeTimedOut(CodeFailed, TimeoutError):
    """A run of code that was to be checked was ended at the end of its time."""

    _errno = errno.ETIMEDOUT


_KINDS: dict[str, type[SandpitError]] = {
    "closed": ClosedError,
    "integrity": IntegrityError,
    "protocol": ProtocolError,
    "canceled": SandpitError,
    "internal": SandpitError,
    "state": StateError,
    "outcome_unknown": StateError,
    "start_failed": StartError,
    "forbidden": ForbiddenError,
    "preview_invalid": ForbiddenError,
    "host_refused": ForbiddenError,
    "origin_refused": ForbiddenError,
    "unsupported": UnsupportedError,
    "no_route": UnsupportedError,
    "method_not_allowed": UnsupportedError,
    "disk_full": DiskFullError,
    "no_space": DiskFullError,
    "quota_exceeded": QuotaError,
    "output_too_large": QuotaError,
    "rate_limited": RateLimitedError,
    "audit_rate": RateLimitedError,
    "too_many_streams": RateLimitedError,
    "overloaded": BusyError,
    "too_many_connections": BusyError,
    "unavailable": UnavailableError,
    "draining": UnavailableError,
    "audit_unavailable": UnavailableError,
    "body_timeout": UnavailableError,
    "is_directory": IsADirectory,
    "not_directory": NotADirectory,
    "not_empty": NotADirectory,
    "file_not_found": FileMissing,
    "file_exists": FileAlreadyExists,
    "permission": FilePermissionError,
    "not_found": NotFoundError,
    "exists": AlreadyExistsError,
    "invalid": InvalidError,
    "too_large": InvalidError,
    "invalid_range": InvalidError,
    "unsupported_media": InvalidError,
    "upgrade_required": InvalidError,
    "idempotency_mismatch": InvalidError,
    "timeout": ServerTimeout,
    "unauthenticated": AuthenticationError,
    "ticket_invalid": AuthenticationError,
}

# Codes that this version does not know, as of a newer server, are told by the class of their status.
_CLASSES: dict[int, type[SandpitError]] = {
    400: InvalidError,
    401: AuthenticationError,
    403: ForbiddenError,
    404: NotFoundError,
    409: StateError,
    410: ClosedError,
    413: InvalidError,
    422: InvalidError,
    429: RateLimitedError,
    501: UnsupportedError,
    502: UnavailableError,
    503: UnavailableError,
    504: ServerTimeout,
    507: DiskFullError,
}


def _retry_after(text: str | None) -> float:
    try:
        return min(max(float(text or 1), 0.0), 60.0)
    except ValueError:
        return 1.0


def from_body(status: int, body: Mapping[str, Any], retry_after: str | None = None) -> SandpitError:
    """Return the error that a server has told."""
    code = str(body.get("code") or "")
    kind = _KINDS.get(code) or _CLASSES.get(status, SandpitError)
    err = kind(
        str(body.get("message") or f"the server answered with status {status}"),
        code=code,
        hint=str(body.get("hint") or ""),
        request_id=str(body.get("request_id") or ""),
        status=status,
        path=str(body.get("path") or ""),
    )
    if isinstance(err, (RateLimitedError, BusyError)):
        err.retry_after = _retry_after(retry_after)
    if isinstance(err, StartError) and isinstance(body.get("exit_code"), int):
        err.exit_code = body["exit_code"]
    return err

"""Safe computers for AI agents.

    from sandpit import Sandbox

    with Sandbox.create() as sb:
        print(sb.run("echo hello").stdout)

Sandbox and Client are for ordinary programs, AsyncSandbox and AsyncClient the same for async ones.
"""

from ._async.client import AsyncClient
from ._async.files import AsyncFiles
from ._async.oneshot import async_run
from ._async.process import AsyncProcess, AsyncStdin
from ._async.sandbox import AsyncSandbox
from ._sync.client import Client
from ._sync.files import Files
from ._sync.oneshot import run
from ._sync.process import Process, Stdin
from ._sync.sandbox import Sandbox
from ._version import __version__
from .errors import (
    AlreadyExistsError,
    AuthenticationError,
    BusyError,
    ClosedError,
    CodeFailed,
    CodeTimedOut,
    CommandFailed,
    CommandTimedOut,
    DiskFullError,
    FileAlreadyExists,
    FileMissing,
    FilePermissionError,
    ForbiddenError,
    IntegrityError,
    InvalidError,
    IsADirectory,
    NotADirectory,
    NotFoundError,
    ProtocolError,
    QuotaError,
    RateLimitedError,
    SandpitError,
    ServerTimeout,
    StartError,
    StateError,
    StreamLost,
    UnavailableError,
    UnsupportedError,
)
from .models import CodeContext, CodeError, CodeOutput, CodeRun, FileInfo, Info, LogEntry, Output, ProcessInfo, Result, Run

__all__ = [
    "AlreadyExistsError",
    "AsyncClient",
    "AsyncFiles",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncStdin",
    "AuthenticationError",
    "BusyError",
    "Client",
    "ClosedError",
    "CodeContext",
    "CodeError",
    "CodeFailed",
    "CodeOutput",
    "CodeRun",
    "CodeTimedOut",
    "CommandFailed",
    "CommandTimedOut",
    "DiskFullError",
    "FileAlreadyExists",
    "FileInfo",
    "FileMissing",
    "FilePermissionError",
    "Files",
    "ForbiddenError",
    "Info",
    "IntegrityError",
    "InvalidError",
    "IsADirectory",
    "LogEntry",
    "NotADirectory",
    "NotFoundError",
    "Output",
    "Process",
    "ProcessInfo",
    "ProtocolError",
    "QuotaError",
    "RateLimitedError",
    "Result",
    "Run",
    "Sandbox",
    "SandpitError",
    "ServerTimeout",
    "StartError",
    "StateError",
    "Stdin",
    "StreamLost",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "async_run",
    "run",
]

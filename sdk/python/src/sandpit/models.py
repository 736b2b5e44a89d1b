"""What a server answers. Each value keeps the JSON that it was read from in ``raw``, with the fields of newer servers."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

JSON = Mapping[str, Any]

Data = bytes | bytearray | memoryview | str
"""What can be written; a text as UTF-8."""


def view(data: Data) -> memoryview:
    """Return the bytes of data."""
    return memoryview(data.encode() if isinstance(data, str) else data).cast("B")


def _time(text: Any) -> datetime | None:
    """Read a time of RFC 3339, which may have nanoseconds."""
    if not isinstance(text, str) or not text:
        return None
    text = text.replace("Z", "+00:00")
    whole, dot, rest = text.partition(".")
    if dot:  # Python 3.10 reads three or six digits only
        digits = len(rest) - len(rest.lstrip("0123456789"))
        text = f"{whole}.{rest[:digits][:6].ljust(6, '0')}{rest[digits:]}"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def text_of(raw: JSON, name: str) -> str:
    """Return a text that is base64 where it is not UTF-8. Its other bytes are surrogates then, as in os.fsdecode."""
    value = str(raw.get(name) or "")
    if raw.get("encoding") == "base64":
        try:
            return base64.b64decode(value).decode(errors="surrogateescape")
        except binascii.Error:
            return value
    return value


@dataclass(frozen=True)
class Info:
    """A sandbox as its server describes it."""

    id: str
    name: str
    state: str
    image: str
    labels: Mapping[str, str]
    created_at: datetime | None
    expires_at: datetime | None
    raw: JSON = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: JSON) -> Info:
        return cls(
            id=str(raw["id"]),
            name=str(raw.get("name") or ""),
            state=str(raw.get("state") or ""),
            image=str(raw.get("image") or ""),
            labels=dict(raw.get("labels") or {}),
            created_at=_time(raw.get("created_at")),
            expires_at=_time(raw.get("expires_at")),
            raw=raw,
        )


@dataclass(frozen=True)
class Result:
    """How a command has ended, with its output as far as it was collected.

    ``exit_code`` is 124 after a timeout, and 128 and the number of the signal for a program that was killed.
    """

    exit_code: int
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    signal: int = 0
    timed_out: bool = False
    oom_killed: bool = False
    truncated: bool = False
    lost_bytes: int = 0
    """Bytes of output that are missing, because the connection was lost for too long."""
    seconds: float = 0.0
    raw: JSON = field(repr=False, compare=False, default_factory=lambda: dict[str, Any]())

    @property
    def ok(self) -> bool:
        """Whether the command has succeeded, and no output was lost."""
        return self.exit_code == 0 and self.lost_bytes == 0

    @property
    def stdout(self) -> str:
        """Standard output as text. Bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error as text. Bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode(errors="replace")

    @classmethod
    def read(cls, raw: JSON, stdout: bytes = b"", stderr: bytes = b"", lost: int = 0) -> Result:
        return cls(
            exit_code=int(raw["exit_code"]),
            stdout_bytes=stdout,
            stderr_bytes=stderr,
            signal=int(raw.get("signal") or 0),
            timed_out=bool(raw.get("timed_out")),
            oom_killed=bool(raw.get("oom_killed")),
            truncated=bool(raw.get("truncated")),
            lost_bytes=lost,
            seconds=float(raw.get("wall_seconds") or 0),
            raw=raw,
        )


@dataclass(frozen=True)
class ProcessInfo:
    """A process as its server describes it. ``result`` is None while it runs."""

    id: str
    pid: int
    argv: tuple[str, ...]
    background: bool
    started_at: datetime | None
    result: Result | None
    tag: str
    raw: JSON = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: JSON) -> ProcessInfo:
        argv: list[str] = list(raw.get("argv") or [])
        if raw.get("encoding") == "base64":
            argv = [base64.b64decode(a).decode(errors="replace") for a in argv]
        return cls(
            id=str(raw["id"]),
            pid=int(raw.get("pid") or 0),
            argv=tuple(argv),
            background=bool(raw.get("background")),
            started_at=_time(raw.get("started_at")),
            result=Result.read(raw["result"]) if raw.get("result") else None,
            tag=str(raw.get("tag") or ""),
            raw=raw,
        )


@dataclass(frozen=True)
class Output:
    """A piece of output of a process. A character of several bytes may be cut between two pieces."""

    stream: str
    """``stdout``, ``stderr``, or ``lost``: then ``lost_bytes`` are missing here."""
    data: bytes
    lost_bytes: int = 0

    @property
    def text(self) -> str:
        """The data as text. Bytes that are not UTF-8 are replaced."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True)
class FileInfo:
    """A file of a sandbox. ``type`` is ``file``, ``directory``, ``symlink``, ``pipe`` or another kind."""

    name: str
    type: str
    size: int
    mode: int
    uid: int
    gid: int
    modified_at: datetime | None
    target: str
    raw: JSON = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: JSON) -> FileInfo:
        try:
            mode = int(str(raw.get("mode") or "0"), 8)
        except ValueError:
            mode = 0
        return cls(
            name=text_of(raw, "name"),
            type=str(raw.get("type") or ""),
            size=int(raw.get("size") or 0),
            mode=mode,
            uid=int(raw.get("uid") or 0),
            gid=int(raw.get("gid") or 0),
            modified_at=_time(raw.get("mod_time")),
            target=text_of(raw, "target"),
            raw=raw,
        )


@dataclass(frozen=True)
class CodeOutput:
    """A value that code has displayed, in all its forms: ``forms["text"]``, ``forms["png"]`` in base64, ..."""

    main: bool
    forms: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The value as text."""
        return str(self.forms.get("text") or "")

    @classmethod
    def read(cls, raw: JSON) -> CodeOutput:
        return cls(main=bool(raw.get("main")), forms={k: v for k, v in raw.items() if k != "main"})


@dataclass(frozen=True)
class CodeError:
    """An error of the code that was run."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True)
class CodeRun:
    """What a run of code has given."""

    context: str
    stdout: str
    stderr: str
    outputs: tuple[CodeOutput, ...]
    error: CodeError | None
    exit_code: int
    """That of the last command (bash), of a program, or of an interpreter that ended; else 0."""
    timed_out: bool
    truncated: bool
    """Whether output is missing because it was too much."""
    interpreter_end: str
    """How the interpreter ended during the run; empty: it runs."""
    state_lost: str
    """Why the variables of earlier runs are gone; empty: they are there."""
    raw: JSON = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end without an error and with exit code 0."""
        return self.error is None and self.exit_code == 0 and not self.timed_out and not self.interpreter_end

    @property
    def text(self) -> str:
        """The value of the last expression, as text."""
        return next((o.text for o in reversed(self.outputs) if o.main), "")

    @classmethod
    def read(cls, raw: JSON) -> CodeRun:
        error: JSON | None = raw.get("error")
        outputs: list[JSON] = list(raw.get("outputs") or [])
        return cls(
            context=str(raw.get("context") or ""),
            stdout=text_of(raw, "stdout"),
            stderr=text_of(raw, "stderr"),
            outputs=tuple(CodeOutput.read(o) for o in outputs),
            error=CodeError(str(error["name"]), str(error["value"]), str(error["traceback"])) if error else None,
            exit_code=int(raw.get("exit_code") or 0),
            timed_out=bool(raw.get("timed_out")),
            truncated=bool(raw.get("truncated")),
            interpreter_end=str(raw.get("interpreter_end") or ""),
            state_lost=str(raw.get("state_lost") or ""),
            raw=raw,
        )


@dataclass(frozen=True)
class CodeContext:
    """An interpreter with its state."""

    id: str
    language: str
    dir: str
    busy: bool
    raw: JSON = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: JSON) -> CodeContext:
        return cls(str(raw["id"]), str(raw.get("language") or ""), str(raw.get("dir") or ""), bool(raw.get("busy")), raw)


@dataclass(frozen=True)
class LogEntry:
    """A piece of output in the log of a sandbox."""

    seq: int
    """The position: later entries have greater ones."""
    time: datetime | None
    process: str
    stream: str
    data: bytes
    raw: JSON = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The data as text. Bytes that are not UTF-8 are replaced."""
        return self.data.decode(errors="replace")

    @classmethod
    def read(cls, raw: JSON) -> LogEntry:
        data = base64.b64decode(str(raw.get("data") or ""))
        return cls(int(raw["seq"]), _time(raw.get("time")), str(raw.get("process") or ""), str(raw.get("stream") or ""), data, raw)


@dataclass(frozen=True)
class Run:
    """What a command in a sandbox of its own has produced."""

    result: Result
    files: Mapping[str, bytes] = field(repr=False)
    """The content of the files that were collected, by their absolute paths."""
    omitted: Mapping[str, str]
    """Why files were left out, by their paths."""
    unmatched: tuple[str, ...]
    """Patterns without a match."""

    @property
    def ok(self) -> bool:
        """Whether the command has succeeded."""
        return self.result.ok

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 124 after a timeout."""
        return self.result.exit_code

    @property
    def stdout(self) -> str:
        """Standard output as text."""
        return self.result.stdout

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.result.stderr

    def save(self, directory: str | os.PathLike[str], *, below: str = "/") -> list[str]:
        """Write the files into a directory of this machine, with their paths below a directory of the sandbox.

        Their names are the sandbox's, and nothing is trusted: no link is followed, and nothing is written elsewhere.
        Returns the paths of what was written, relative to the directory.
        """
        from ._save import save

        return save(self.files, directory, below)

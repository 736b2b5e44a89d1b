"""Writes files whose names nobody vouches for."""

from __future__ import annotations

import os
import posixpath
import secrets
from collections.abc import Mapping

from .errors import InvalidError, SandpitError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def save(files: Mapping[str, bytes], directory: str | os.PathLike[str], below: str) -> list[str]:
    """Write files below a directory, which is made if it is missing."""
    below = posixpath.join("/", below)
    os.makedirs(directory, exist_ok=True)
    top = os.open(directory, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        written: list[str] = []
        for path, data in files.items():
            name = posixpath.relpath(path, below) if posixpath.isabs(path) else path
            parts = name.split("/")
            if any(p in ("", ".", "..") or "\0" in p for p in parts):
                raise InvalidError(f"{path!r} is not below {below!r}: it is not written")
            try:
                _write(top, parts, data)
            except OSError as err:
                raise SandpitError(f"{name!r} can't be written below {os.fspath(directory)!r}: {err.strerror}; a link or a file may be in its way") from err
            written.append(name)
        return written
    finally:
        os.close(top)


def _write(top: int, parts: list[str], data: bytes) -> None:
    at = os.dup(top)
    try:
        for part in parts[:-1]:
            try:
                os.mkdir(part, 0o755, dir_fd=at)
            except FileExistsError:
                pass
            # A link there, also one to a directory, is refused by the kernel.
            deeper = os.open(part, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = deeper
        # What has the name now is replaced and not opened: it may be a link or a pipe.
        temporary = f".{secrets.token_hex(8)}"
        with os.fdopen(os.open(temporary, _NEW, 0o644, dir_fd=at), "wb") as f:
            try:
                f.write(data)
                f.flush()
                os.replace(temporary, parts[-1], src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                os.unlink(temporary, dir_fd=at)
                raise
    finally:
        os.close(at)

# Made from _async by scripts/sync.py: change that.
"""Files of a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from ..errors import StreamLost
from ..models import Data, FileInfo, text_of, view
from .client import Client

CHUNK = 1 << 20


class Files:
    """The files of a sandbox. Paths are absolute, or below the sandbox's working directory.

    ``user`` makes an operation one of that user: what they may not do is a PermissionError.
    """

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._path = path

    def read(self, path: str, *, user: str | None = None) -> bytes:
        """Return the content of a file."""
        with self._client.stream("GET", self._path, params={"path": path, "user": user}) as answer:
            try:
                return answer.read()
            except httpx.HTTPError as err:
                raise StreamLost(f"reading {path}: the connection was lost: {err}") from err

    def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict", user: str | None = None) -> str:
        """Return the content of a file as text."""
        return (self.read(path, user=user)).decode(encoding, errors)

    def stream(self, path: str, *, user: str | None = None) -> Iterator[bytes]:
        """Yield the content of a file, of any size, in pieces."""
        with self._client.stream("GET", self._path, params={"path": path, "user": user}) as answer:
            try:
                for data in answer.iter_raw(CHUNK):
                    yield data
            except httpx.HTTPError as err:
                raise StreamLost(f"reading {path}: the connection was lost: {err}") from err

    def write(
        self,
        path: str,
        data: Data | Iterator[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        append: bool = False,
        user: str | None = None,
    ) -> int:
        """Write a file, and return how many bytes that were. With parents, missing directories are made."""
        content = view(data) if isinstance(data, (bytes, bytearray, memoryview, str)) else data
        params = {"path": path, "mode": None if mode is None else f"{mode:o}", "parents": parents, "append": append, "user": user}
        told = self._client.call("PUT", self._path, content=content, params=params, headers={"Content-Type": "application/octet-stream"})
        return int(told["bytes"])

    def list(self, path: str, *, user: str | None = None) -> list[FileInfo]:
        """Return what is in a directory."""
        return [FileInfo.read(f) for f in self._client.pages(f"{self._path}/list", "entries", {"path": path, "user": user})]

    def stat(self, path: str, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """Describe a file. Without follow, a link is described itself."""
        return FileInfo.read(self._client.call("GET", f"{self._path}/stat", params={"path": path, "follow": "true" if follow else "false", "user": user}))

    def exists(self, path: str, *, user: str | None = None) -> bool:
        """Report whether there is such a file. A link that leads nowhere exists."""
        try:
            self.stat(path, follow=False, user=user)
            return True
        except FileNotFoundError:
            return False

    def mkdir(self, path: str, *, parents: bool = True, mode: int | None = None, user: str | None = None) -> None:
        """Make a directory. With parents, it may exist, and missing ones above it are made."""
        params = {"path": path, "parents": parents, "mode": None if mode is None else f"{mode:o}", "user": user}
        self._client.call("POST", f"{self._path}/mkdir", params=params, once=True)

    def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file or an empty directory, or with recursive everything below it as well."""
        self._client.call("DELETE", self._path, params={"path": path, "recursive": recursive, "user": user})

    def rename(self, source: str, target: str, *, user: str | None = None) -> None:
        """Rename a file. One of the target's name is replaced."""
        self._client.call("POST", f"{self._path}/rename", params={"from": source, "to": target, "user": user}, once=True)

    def copy(self, source: str, target: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Copy a file, or with recursive a directory."""
        self._client.call("POST", f"{self._path}/copy", params={"from": source, "to": target, "recursive": recursive, "user": user}, once=True)

    def symlink(self, path: str, target: str, *, user: str | None = None) -> None:
        """Make a link at path that leads to target."""
        self._client.call("POST", f"{self._path}/symlink", params={"path": path, "target": target, "user": user}, once=True)

    def readlink(self, path: str, *, user: str | None = None) -> str:
        """Return where a link leads."""
        return text_of(self._client.call("GET", f"{self._path}/readlink", params={"path": path, "user": user}), "target")

    def find(self, path: str, glob: str = "**", *, user: str | None = None) -> Iterator[FileInfo]:
        """Yield the files below a directory whose path matches."""
        for f in self._client.pages(f"{self._path}/find", "entries", {"path": path, "glob": glob, "user": user}):
            yield FileInfo.read(f)

"""Files of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from ..errors import StreamLost
from ..models import Data, FileInfo, text_of, view
from .client import AsyncClient

CHUNK = 1 << 20


class AsyncFiles:
    """The files of a sandbox. Paths are absolute, or below the sandbox's working directory.

    ``user`` makes an operation one of that user: what they may not do is a PermissionError.
    """

    def __init__(self, client: AsyncClient, path: str) -> None:
        self._client = client
        self._path = path

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        """Return the content of a file."""
        async with self._client.stream("GET", self._path, params={"path": path, "user": user}) as answer:
            try:
                return await answer.aread()
            except httpx.HTTPError as err:
                raise StreamLost(f"reading {path}: the connection was lost: {err}") from err

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict", user: str | None = None) -> str:
        """Return the content of a file as text."""
        return (await self.read(path, user=user)).decode(encoding, errors)

    async def stream(self, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        """Yield the content of a file, of any size, in pieces."""
        async with self._client.stream("GET", self._path, params={"path": path, "user": user}) as answer:
            try:
                async for data in answer.aiter_raw(CHUNK):
                    yield data
            except httpx.HTTPError as err:
                raise StreamLost(f"reading {path}: the connection was lost: {err}") from err

    async def write(
        self,
        path: str,
        data: Data | AsyncIterator[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        append: bool = False,
        user: str | None = None,
    ) -> int:
        """Write a file, and return how many bytes that were. With parents, missing directories are made."""
        content = view(data) if isinstance(data, (bytes, bytearray, memoryview, str)) else data
        params = {"path": path, "mode": None if mode is None else f"{mode:o}", "parents": parents, "append": append, "user": user}
        told = await self._client.call("PUT", self._path, content=content, params=params, headers={"Content-Type": "application/octet-stream"})
        return int(told["bytes"])

    async def list(self, path: str, *, user: str | None = None) -> list[FileInfo]:
        """Return what is in a directory."""
        return [FileInfo.read(f) async for f in self._client.pages(f"{self._path}/list", "entries", {"path": path, "user": user})]

    async def stat(self, path: str, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """Describe a file. Without follow, a link is described itself."""
        return FileInfo.read(await self._client.call("GET", f"{self._path}/stat", params={"path": path, "follow": "true" if follow else "false", "user": user}))

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Report whether there is such a file. A link that leads nowhere exists."""
        try:
            await self.stat(path, follow=False, user=user)
            return True
        except FileNotFoundError:
            return False

    async def mkdir(self, path: str, *, parents: bool = True, mode: int | None = None, user: str | None = None) -> None:
        """Make a directory. With parents, it may exist, and missing ones above it are made."""
        params = {"path": path, "parents": parents, "mode": None if mode is None else f"{mode:o}", "user": user}
        await self._client.call("POST", f"{self._path}/mkdir", params=params, once=True)

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file or an empty directory, or with recursive everything below it as well."""
        await self._client.call("DELETE", self._path, params={"path": path, "recursive": recursive, "user": user})

    async def rename(self, source: str, target: str, *, user: str | None = None) -> None:
        """Rename a file. One of the target's name is replaced."""
        await self._client.call("POST", f"{self._path}/rename", params={"from": source, "to": target, "user": user}, once=True)

    async def copy(self, source: str, target: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Copy a file, or with recursive a directory."""
        await self._client.call("POST", f"{self._path}/copy", params={"from": source, "to": target, "recursive": recursive, "user": user}, once=True)

    async def symlink(self, path: str, target: str, *, user: str | None = None) -> None:
        """Make a link at path that leads to target."""
        await self._client.call("POST", f"{self._path}/symlink", params={"path": path, "target": target, "user": user}, once=True)

    async def readlink(self, path: str, *, user: str | None = None) -> str:
        """Return where a link leads."""
        return text_of(await self._client.call("GET", f"{self._path}/readlink", params={"path": path, "user": user}), "target")

    async def find(self, path: str, glob: str = "**", *, user: str | None = None) -> AsyncIterator[FileInfo]:
        """Yield the files below a directory whose path matches."""
        async for f in self._client.pages(f"{self._path}/find", "entries", {"path": path, "glob": glob, "user": user}):
            yield FileInfo.read(f)

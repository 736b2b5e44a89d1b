"""Runs of one command in a sandbox of its own."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import SandpitError
from ..models import Data, Run
from .client import AsyncClient, lent
from .sandbox import AsyncSandbox, Command, Env

MAX_FILES = 1000
"""How many files a run returns by default."""

MAX_BYTES = 64 << 20
"""How many bytes all files of a run may have by default."""

_SPECIAL = frozenset("*?[{\\")


def _split(pattern: str, dir: str) -> tuple[str, str]:
    """Return the directory in which to look, and the pattern below it."""
    parts = posixpath.join(dir, pattern).split("/")
    plain = 0
    while plain < len(parts) - 1 and not _SPECIAL & set(parts[plain]):
        plain += 1
    return "/".join(parts[:plain]) or "/", "/".join(parts[plain:])


async def async_run(
    cmd: Command,
    *,
    files: Mapping[str, Data] | None = None,
    collect: Iterable[str] = (),
    input: Data | None = None,
    env: Env | None = None,
    dir: str | None = None,
    user: str | None = None,
    timeout: float | None = None,
    check: bool = False,
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
    client: AsyncClient | None = None,
    **create: Any,
) -> Run:
    """Run a command in a new sandbox, and return its output and files. The sandbox is always removed.

    ``files`` has the content of files to write before, by their paths in the sandbox. ``collect`` has the patterns of files
    to return, in which ``*`` stands for any name and ``**`` for any directories; they are below ``dir``, absolute, or below the
    home of the user (``~/``). Files are returned after a failure and after a timeout, too. With ``check`` a failure raises
    CommandFailed instead. What ``create`` says is for the sandbox: see its create method.
    """
    async with lent(client) as used, await AsyncSandbox.create(client=used, **create) as sb:
        collect, files = [collect] if isinstance(collect, str) else list(collect), dict(files or {})
        if any(p.startswith("~/") for p in [*collect, *files]):
            home = (await sb.run('printf "%s/" "$HOME"', env=env, user=user, check=True)).stdout

            def absolute(path: str) -> str:
                return home + path[2:] if path.startswith("~/") else path

            collect, files = [absolute(p) for p in collect], {absolute(p): data for p, data in files.items()}
        where = posixpath.join(str(create.get("workdir") or ""), dir or "")
        if not posixpath.isabs(where) and not all(map(posixpath.isabs, [*collect, *files])):
            where = posixpath.join((await sb.run("pwd", check=True)).stdout.rstrip("\n"), where)
        for path, data in files.items():
            await sb.files.write(posixpath.join(where, path), data, user=user)
        result = await sb.run(cmd, input=input, env=env, dir=dir, user=user, timeout=timeout, check=check)
        found: dict[str, bytes] = {}
        omitted: dict[str, str] = {}
        unmatched: list[str] = []
        left = max_bytes
        for pattern in collect:
            top, below = _split(pattern, where)
            matched = False
            try:
                async for f in sb.files.find(top, below, user=user):
                    if f.type == "directory" and below.endswith("**"):
                        continue
                    matched = True
                    path = posixpath.normpath(posixpath.join(top, f.name))
                    if path in found or path in omitted:
                        continue
                    if len(found) + len(omitted) >= max_files:
                        omitted["..."] = f"there are more than {max_files} files"
                        break
                    if f.type != "file":
                        omitted[path] = f"it is a {f.type}, not a file"
                    elif f.size > left:
                        omitted[path] = f"it has {f.size} bytes, and {left} of {max_bytes} are left"
                    else:
                        try:
                            content = bytearray()
                            async for part in sb.files.stream(path, user=user):
                                content += part
                                if len(content) > left:
                                    break
                        except OSError as err:
                            omitted[path] = str(err)
                            continue
                        if len(content) > left:
                            omitted[path] = f"it grew beyond the {left} bytes that are left"
                            continue
                        found[path] = bytes(content)
                        left -= len(content)
            except FileNotFoundError:
                pass
            except SandpitError as err:
                omitted[pattern] = str(err)
                continue
            if not matched:
                unmatched.append(pattern)
        return Run(result, found, omitted, tuple(unmatched))

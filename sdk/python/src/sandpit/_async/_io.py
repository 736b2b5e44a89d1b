"""What differs between the two kinds of programs beyond words."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import anyio


async def pause(seconds: float) -> None:
    """Wait."""
    await anyio.sleep(seconds)


async def undo(what: Callable[[], Awaitable[object]], patience: float) -> None:
    """Carry something out although the caller was cancelled, who learns of nothing else. It is given up after patience seconds."""
    with anyio.move_on_after(patience, shield=True), contextlib.suppress(Exception):
        await what()

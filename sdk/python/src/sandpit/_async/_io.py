"""What differs between the two kinds of programs beyond words."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import anyio


async def pause(seconds: float) -> None:
    """Wait."""
    await anyio.sleep(seconds)


async def undo(what: Callable[[], Awaitable[object]], patience: float) -> None:
    """Carry something out although the caller was cancelled, who learns of nothing else. It is given up after patience seconds."""
    with anyio.move_on_after(patience, shield=True), contextlib.suppress(Exception):
        await what()


@contextlib.asynccontextmanager
async def beside() -> AsyncGenerator[Callable[[Callable[[], Coroutine[Any, Any, None]]], object], None]:
    """Give the block a function that carries something out beside it. That must not fail, and is given up at the end of the block."""
    failed: BaseException | None = None
    async with anyio.create_task_group() as group:
        try:
            yield group.start_soon
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as err:  # which the group would put into another one
            failed = err
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed

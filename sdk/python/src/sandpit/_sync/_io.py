"""What differs between the two kinds of programs beyond words."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator

PATIENCE = 10.0
"""Seconds in which what was carried out beside something must have ended."""


def pause(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def undo(what: Callable[[], object], patience: float) -> None:
    """Carry something out although the caller was interrupted, who learns of nothing else. Its requests have bounds of their own."""
    del patience
    with contextlib.suppress(Exception):
        what()


@contextlib.contextmanager
def beside() -> Generator[Callable[[Callable[[], None]], None], None, None]:
    """Give the block a function that carries something out beside it. That must not fail, and ends by itself soon after the block."""
    threads: list[threading.Thread] = []

    def begin(what: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=what, name="sandpit", daemon=True))
        threads[-1].start()

    try:
        yield begin
    finally:
        for thread in threads:
            thread.join(PATIENCE)

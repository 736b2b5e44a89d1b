"""What differs between the two kinds of programs beyond words."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable


def pause(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def undo(what: Callable[[], object], patience: float) -> None:
    """Carry something out although the caller was interrupted, who learns of nothing else. Its requests have bounds of their own."""
    del patience
    with contextlib.suppress(Exception):
        what()

"""What differs between the two kinds of programs beyond words."""

from __future__ import annotations

import time
from collections.abc import Callable


def pause(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def undo(what: Callable[[], object], patience: float) -> None:
    """Carry something out although the caller was interrupted. Its requests have bounds of their own."""
    del patience
    what()

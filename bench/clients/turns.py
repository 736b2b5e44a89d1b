"""Does what the lines of standard input name, one at a time, and answers each with a line of JSON: the times that it
took, in milliseconds, or an error."""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def once(f: Callable[[], Any]) -> tuple[float, Any]:
    """Runs a function, and returns how long it took, and its value."""
    start = time.perf_counter()
    value = f()
    return (time.perf_counter() - start) * 1000, value


def serve(operations: Any) -> None:
    """Serves the methods of an object, of the names in clients_linux.go, which return their times."""
    for line in sys.stdin:
        name, *argument = line.split()
        try:
            answer = {"ms": getattr(operations, name)(*map(int, argument)) or []}
        except Exception as error:  # noqa: BLE001: it is told
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


def create(n: int, make: Callable[[], Any], remove: Callable[[Any], Any]) -> list[float]:
    """Makes n sandboxes at once, each until its first command has answered. To remove them does not count."""
    with ThreadPoolExecutor(n) as pool:
        made = [pool.submit(once, make) for _ in range(n)]
        good = [m.result() for m in made if m.exception() is None]
    for _, sandbox in good:
        remove(sandbox)  # one by one, for the rate of the key
    return [m.result()[0] for m in made]


def content(size: int) -> bytes:
    """Returns what is sent and received."""
    return b"sandpit\n" * (size // 8)


def check(good: bool, what: object) -> None:
    if not good:
        raise RuntimeError(what)

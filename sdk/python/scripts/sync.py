"""Writes each _sync from the _async beside it: the same program without async and await.

With --check it changes nothing, and fails if a file would change.
"""

from __future__ import annotations

import pathlib
import re
import sys

NAMES = {
    "AsyncGenerator": "Generator",
    "AsyncIterator": "Iterator",
    "AsyncIterable": "Iterable",
    "AsyncHTTPTransport": "HTTPTransport",
    "asynccontextmanager": "contextmanager",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "aclose": "close",
    "aread": "read",
    "aiter_raw": "iter_raw",
    "aiter_lines": "iter_lines",
    "_async": "_sync",
    "async_run": "run",
}
HEAD = "# Made from _async by scripts/sync.py: change that.\n"


def sync(text: str) -> str:
    """Return the source of the other kind."""
    text = re.sub(r"AsyncGenerator\[([\w.]+), None\]", r"Generator[\1, None, None]", text)
    text = re.sub(r"Awaitable\[(\w+)\]", r"\1", text)
    text = text.replace("import AsyncGenerator, AsyncIterator, Awaitable, Callable", "import AsyncGenerator, AsyncIterator, Callable")
    text = re.sub(r"\b(async|await) +", "", text)
    text = re.sub(r"\w+", lambda m: NAMES.get(m[0], m[0]), text)
    return HEAD + re.sub(r"\bAsync(?=[A-Z])", "", text)


def main() -> int:
    root = pathlib.Path(__file__).parent.parent
    stale = []
    for source in sorted(root.glob("*/**/_async/*.py")):
        if source.name in ("_io.py", "__init__.py"):
            continue
        target = source.parent.parent / "_sync" / source.name
        want = sync(source.read_text())
        if target.exists() and target.read_text() == want:
            continue
        stale.append(target.name)
        if "--check" not in sys.argv:
            target.write_text(want)
    if stale and "--check" in sys.argv:
        print(f"out of date: {', '.join(stale)}; run python scripts/sync.py", file=sys.stderr)
        return 1
    return 0


sys.exit(main())

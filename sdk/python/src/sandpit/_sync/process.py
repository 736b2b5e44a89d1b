# Made from _async by scripts/sync.py: change that.
"""Processes of a sandbox."""

from __future__ import annotations

import json
import math
import signal as signals
import time
import uuid
from collections.abc import Iterator, Callable
from typing import Any

import httpx

from .. import _frames
from ..errors import InvalidError, NotFoundError, SandpitError, ServerTimeout, StreamLost, UnavailableError, from_body
from ..models import Data, Output, ProcessInfo, Result, view
from .client import Client, Patience, segment

MAX_INPUT = 1 << 20
"""The longest piece of input of one request, in bytes."""


def _died(payload: bytes) -> SandpitError | None:
    """Return why a stream has ended, by its last frame; None if there was no more."""
    end = json.loads(payload)
    if end.get("reason") == "ended":
        return None
    if end.get("error"):
        return from_body(0, end["error"])
    return StreamLost(f"the stream of the process has ended: {end.get('reason')}")


class Stream:
    """The output of one process, over as many connections as that takes.

    ``open`` makes the request: of it the first connection, and those after a loss, in which the server repeats what
    it has kept. ``started`` is called once the process is known.
    """

    def __init__(self, open: Callable[[], Any], started: Callable[[ProcessInfo], object] | None = None) -> None:
        self._open = open
        self._started = started
        self._known = False  # the present connection has named the process
        self.process: ProcessInfo | None = None
        self.result: dict[str, Any] | None = None

    def outputs(self) -> Iterator[Output]:
        """Yield the output until the process has ended."""
        cursor, patience = _frames.Cursor(), Patience()
        while True:
            before, began, self._known = cursor.position, time.monotonic(), False
            try:
                for output in self._once(cursor):
                    yield output
                return
            except UnavailableError as err:
                if self.process is None:
                    raise
                if cursor.position > before or (self._known and time.monotonic() - began > 1):
                    patience.renew()
                patience.again(err)

    def _once(self, cursor: _frames.Cursor) -> Iterator[Output]:
        cursor.restart()
        frames = _frames.Frames()
        try:
            with self._open() as answer:
                for data in answer.iter_raw():
                    for kind, payload in frames.feed(data):
                        if kind in (_frames.STDOUT, _frames.STDERR):
                            new = cursor.output(payload)
                            if new:
                                yield Output("stdout" if kind == _frames.STDOUT else "stderr", new)
                        elif kind == _frames.LOST:
                            lost = cursor.lost(int.from_bytes(payload, "big"))
                            if lost:
                                yield Output("lost", b"", lost)
                        elif kind == _frames.STARTED:
                            first, self._known = self.process is None, True
                            self.process = ProcessInfo.read(json.loads(payload))
                            if first and self._started is not None:
                                self._started(self.process)
                        elif kind == _frames.RESULT:
                            self.result = json.loads(payload)
                        elif kind == _frames.END:
                            failed = _died(payload)
                            if failed is not None:
                                raise failed
                            return
        except httpx.HTTPError as err:
            raise StreamLost(f"the connection was lost: {err or type(err).__name__}") from err
        raise StreamLost("the connection was lost before the end of the stream")


class Stdin:
    """Standard input of a process. Writes of one program at a time come in their order."""

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._path = path

    def write(self, data: Data, *, close: bool = False) -> None:
        """Write, and with close end the input. It waits until the server has taken all; the process may read later."""
        data = view(data)
        for at in range(0, max(len(data), int(close)), MAX_INPUT):
            end = at + MAX_INPUT
            last = {"close": close and end >= len(data)}
            key, patience = {"Idempotency-Key": str(uuid.uuid4())}, Patience()
            while True:
                try:  # the server ends it if the process reads nothing for long
                    self._client.call("POST", self._path, content=data[at:end], params=last, headers=key, timeout=86400.0)
                    break
                except UnavailableError as err:
                    patience.again(err)

    def close(self) -> None:
        """End the input."""
        self.write(b"", close=True)


class Process:
    """A process in the background. It goes on when this program ends, until it ends itself or its sandbox does."""

    def __init__(self, client: Client, sandbox: str, info: ProcessInfo) -> None:
        self._client = client
        self._path = f"{sandbox}/processes/{segment(info.id)}"
        self.info = info
        """As it was when this value was made. See refresh."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.info.id}: {' '.join(self.info.argv)!r}>"

    @property
    def id(self) -> str:
        """The id, with which another program finds it: sandbox.process(id)."""
        return self.info.id

    @property
    def pid(self) -> int:
        """The process id in the sandbox."""
        return self.info.pid

    @property
    def stdin(self) -> Stdin:
        """Standard input, of a process that was started with stdin=True or a terminal."""
        return Stdin(self._client, f"{self._path}/stdin")

    def _post(self, what: str, **more: Any) -> None:
        self._client.call("POST", f"{self._path}/{what}", once=True, **more)

    def output(self, *, history: bool = True) -> Iterator[Output]:
        """Yield the output as it comes, until the process ends. With history it begins with what the server has kept, the latest MiB.

        A lost connection is made again, and the output goes on where it was. What the server no longer has then comes as
        an Output with ``lost_bytes``.
        """
        path, first = f"{self._path}/output", [history]

        def open() -> Any:
            wanted = first[0]
            first[0] = True
            return self._client.stream("GET", path, params={"history": None if wanted else "false"}, headers={"Accept": _frames.STREAM_TYPE})

        stream = Stream(open)
        for output in stream.outputs():
            yield output

    def refresh(self) -> ProcessInfo:
        """Ask the server how it is."""
        self.info = ProcessInfo.read(self._client.call("GET", self._path))
        return self.info

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until it has ended. After timeout seconds that raises TimeoutError; the process goes on, and can be waited for again."""
        if timeout is not None and math.isnan(timeout):
            raise InvalidError("timeout is nan: pass a number, or None")
        until = None if timeout is None else time.monotonic() + timeout
        patience = Patience()
        while True:
            left = 30.0 if until is None else max(0.0, min(30.0, until - time.monotonic()))
            try:
                raw = self._client.call("GET", f"{self._path}/wait", params={"timeout": left or 0.001})
            except UnavailableError as err:
                if not left:
                    raise
                patience.again(err)
                continue
            patience.renew()
            if raw.get("result"):
                self.info = ProcessInfo.read(raw)
                return Result.read(raw["result"])
            if until is not None and time.monotonic() >= until:
                raise ServerTimeout(f"process {self.id} has not ended after {timeout} seconds; it goes on")

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or to its process group."""
        self._post("signal", json={"signal": int(number), "group": group})

    def interrupt(self) -> None:
        """Send the signal of ^C to its process group."""
        self.signal(signals.SIGINT, group=True)

    def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal."""
        self._post("resize", json={"rows": rows, "cols": cols})

    def kill(self) -> None:
        """Kill it, with everything that it has started. It is not an error if it has ended."""
        try:
            self._client.call("DELETE", self._path)
        except NotFoundError:
            pass

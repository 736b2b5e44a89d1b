"""The streams of /v1, without any input or output: frames, and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from .errors import StreamLost

STREAM_TYPE = "application/vnd.sandpit.stream"
STARTED, STDOUT, STDERR, LOST, RESULT, END, PING, STDIN_CLOSED = range(1, 9)

# The longest frame that a server sends, in bytes (internal/api/v1, MaxFrame).
MAX_FRAME = 1 << 20


class Frames:
    """Cuts bytes into frames: a type byte, a length of four bytes (big-endian), and a payload."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the frames that data completes. Output comes in pieces, as it arrives."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 5:
            kind = buffer[at]
            length = int.from_bytes(buffer[at + 1 : at + 5], "big")
            if length > MAX_FRAME:
                raise StreamLost(f"the server sent a frame of {length} bytes: it is not a server of Sandpit")
            if len(buffer) - at - 5 < length:
                break
            yield kind, bytes(buffer[at + 5 : at + 5 + length])
            at += 5 + length
        del buffer[:at]


class ServerEvent(NamedTuple):
    """A server-sent event."""

    event: str
    id: str
    data: Any


class ServerEvents:
    """Cuts text into server-sent events, whose data is JSON."""

    def __init__(self) -> None:
        self._rest = b""
        self._event, self._id, self._data = "", "", b""

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Yield the events that data completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if name == b"event":
                self._event = value.decode()
            elif name == b"id":
                self._id = value.decode()
            elif name == b"data":
                self._data += value
            elif not name and not value and self._data:
                yield ServerEvent(self._event, self._id, json.loads(self._data))
                self._event, self._data = "", b""


class Cursor:
    """Makes one output of the answers to a request that is repeated after a lost connection.

    Each answer begins with what the server has kept: with how many bytes are lost, and then the rest.
    """

    def __init__(self) -> None:
        self.position = 0  # bytes of output that were passed on, or reported as lost
        self._at = 0  # the same in the present answer

    def restart(self) -> None:
        """Begin the next answer."""
        self._at = 0

    def output(self, data: bytes) -> bytes:
        """Return what of data is new."""
        known = min(len(data), max(0, self.position - self._at))
        self._at += len(data)
        self.position = max(self.position, self._at)
        return data[known:] if known else data

    def lost(self, count: int) -> int:
        """Return how many of the count bytes that the server has lost were not passed on before."""
        before = self.position
        self._at += count
        self.position = max(self.position, self._at)
        return self.position - before

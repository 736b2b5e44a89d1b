"""The way to a server."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import quote, urlencode

import httpx

from .. import _config
from .._version import __version__
from ..errors import ClosedError, InvalidError, RateLimitedError, SandpitError, ServerTimeout, StateError, StreamLost, UnavailableError, from_body
from ._io import pause, undo

UNDO_PATIENCE = 10.0
"""Seconds for a server to undo what a cancelled call has begun."""

PATIENCE = 60.0
"""Seconds in which a server must answer, or go on with an answer."""


RECONNECT = 30.0
"""Seconds for a server that was lost to come back, as after a restart."""

Body = memoryview | AsyncIterator[bytes] | None
"""The body of a request that is not JSON."""

PIECE = 1 << 20
"""The longest piece of a body that is given to the connection at once, in bytes: it copies what is left with each send."""


class _Pieces:
    """The pieces of a body, as often as they are wanted."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._data), PIECE):
            yield bytes(self._data[at : at + PIECE])


class Patience:
    """Bounds how long something is tried again."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._tries = 0

    def renew(self) -> None:
        """Begin anew, after a success."""
        self._since, self._tries = None, 0

    async def again(self, err: UnavailableError) -> None:
        """Return when it is time for another try after an error, or raise that."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= RECONNECT:
            raise err
        await pause(min(0.1 * 2**self._tries, 2.0))
        self._tries += 1


def segment(id: str) -> str:
    """Return a part of a path that stands for something, such as a sandbox."""
    if id in ("", ".", ".."):
        raise InvalidError(f"{id!r} is not a name or id")
    return quote(id, safe="")


class AsyncClient:
    """A connection to a server, for any number of sandboxes and tasks at once.

    ``server`` is ``https://HOST:PORT`` or ``unix:///PATH``; by default that of SANDPIT_SERVER, or this user's own
    server. ``key`` is by default that of SANDPIT_KEY. ``namespace`` is one inside the key's own, by default that of
    SANDPIT_NAMESPACE. ``verify`` is
    what httpx takes: an SSL context with the certificates to trust.
    """

    def __init__(self, server: str | None = None, key: str | None = None, *, namespace: str | None = None, verify: Any = True) -> None:
        self.endpoint = _config.find(server, key, namespace)
        self._closed = ""
        headers = {"User-Agent": f"sandpit-python/{__version__}"}
        if self.endpoint.key:
            headers["Authorization"] = f"Bearer {self.endpoint.key}"
        if self.endpoint.namespace:
            headers["X-Sandpit-Namespace"] = self.endpoint.namespace
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        transport = None
        if self.endpoint.socket:
            transport = httpx.AsyncHTTPTransport(uds=self.endpoint.socket, limits=limits)
        self._http = httpx.AsyncClient(
            base_url=self.endpoint.url,
            headers=headers,
            transport=transport,
            limits=limits,
            timeout=httpx.Timeout(PATIENCE, connect=10.0),
            verify=verify,
            # A proxy of the environment is not for a server of this machine.
            trust_env=self.endpoint.url.startswith("https://"),
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self, why: str = "the client was closed") -> None:
        """Close the connections. Sandboxes stay. Later calls raise ClosedError, which says why."""
        if not self._http.is_closed:
            self._closed = why
        await self._http.aclose()

    def _failed(self, err: httpx.HTTPError) -> SandpitError:
        what = str(err) or type(err).__name__
        if self.endpoint.url.startswith("https://") and re.search("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE", what):
            return UnavailableError(f"the server {self.endpoint.shown} does not speak TLS", hint="write http:// instead of https://")
        if isinstance(err, httpx.ReadTimeout):
            return ServerTimeout(f"the server {self.endpoint.shown} did not answer in time")
        return UnavailableError(f"the server {self.endpoint.shown} can't be reached: {what}", hint="is it running?")

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: Body = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[httpx.Response, None]:
        """Make a request whose answer is read by the caller.

        It is made once more after a 429, and after a connection that was lost without an answer if that changes nothing
        twice: a read, a removal, or one with an Idempotency-Key.
        """
        if self._http.is_closed:
            raise ClosedError(self._closed, hint="make another one")
        query = {k: "true" if v is True else v for k, v in (params or {}).items() if v is not None and v is not False}
        if query:  # paths are bytes: what is not UTF-8 is in surrogates, as in os.fsdecode
            path += "?" + urlencode(query, doseq=True, quote_via=quote, errors="surrogateescape")
        again = content is None or isinstance(content, memoryview)
        body: _Pieces | AsyncIterator[bytes] | None
        if isinstance(content, memoryview):
            headers = {**(headers or {}), "Content-Length": str(len(content))}
            body = _Pieces(content)
        else:
            body = content
        try:
            request = self._http.build_request(method, path, json=json, content=body, headers=headers)
        except (TypeError, ValueError) as err:  # of the encoder of JSON
            raise InvalidError(f"an argument is not of the right type: {err}") from err
        if timeout is not None:
            request.extensions["timeout"] = httpx.Timeout(timeout, connect=10.0).as_dict()
        safe = again and (method in ("GET", "DELETE") or "Idempotency-Key" in request.headers)
        while True:
            try:
                answer = await self._http.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as err:
                if not safe:
                    raise self._failed(err) from err
                safe = False
                continue
            except httpx.HTTPError as err:
                raise self._failed(err) from err
            try:
                if answer.status_code < 400:
                    yield answer
                    return
                refused = await self._refusal(answer)
            finally:
                await answer.aclose()
            if not again or not isinstance(refused, RateLimitedError):
                raise refused
            again = False
            await pause(refused.retry_after)

    async def _refusal(self, answer: httpx.Response) -> SandpitError:
        said = b""
        try:
            said = await answer.aread()
            body = cast("dict[str, Any]", answer.json())
        except (httpx.HTTPError, ValueError):
            body = {}
        if answer.status_code == 400 and b"HTTP request to an HTTPS server" in said:
            return UnavailableError(f"the server {self.endpoint.shown} speaks TLS only", hint="write https:// instead of http://", status=400)
        if not isinstance(body, dict) or "code" not in body:  # pyright: ignore[reportUnnecessaryIsInstance]
            return UnavailableError(
                f"{self.endpoint.shown} answered with status {answer.status_code}, but not as a server of Sandpit",
                hint="is the address right? A proxy may be in between",
                status=answer.status_code,
            )
        return from_body(answer.status_code, body, answer.headers.get("Retry-After"))

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: Body = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        timeout: float | None = None,
        cancelled: Callable[[Any], Awaitable[object]] | None = None,
    ) -> Any:
        """Make a request, and return the JSON of its answer. With once it can be repeated safely, and has a key for that.

        If the call is cancelled, ``cancelled`` gets the answer that the server has made, to undo it.
        """
        if once:
            headers = {**(headers or {}), "Idempotency-Key": str(uuid.uuid4())}
        try:
            return await self._answer(method, path, json, content, params, headers, timeout)
        except BaseException as err:
            if cancelled is None or isinstance(err, Exception):
                raise

            async def take_back() -> None:
                while True:
                    try:
                        made = await self._answer(method, path, json, content, params, headers, UNDO_PATIENCE)
                    except StateError:  # the first request is in progress
                        await pause(0.05)
                        continue
                    await cancelled(made)
                    return

            await undo(take_back, UNDO_PATIENCE)
            raise

    async def _answer(
        self,
        method: str,
        path: str,
        json: Any,
        content: Body,
        params: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
    ) -> Any:
        async with self.stream(method, path, json=json, content=content, params=params, headers=headers, timeout=timeout) as answer:
            try:
                await answer.aread()
            except httpx.HTTPError as err:
                raise StreamLost(f"the answer of {self.endpoint.shown} was cut: {err}") from err
            if not answer.content:
                return None
            try:
                return answer.json()
            except ValueError as err:
                raise UnavailableError(f"{self.endpoint.shown} did not answer as a server of Sandpit", hint="is the address right?") from err

    async def pages(self, path: str, name: str, params: Mapping[str, Any] | None = None) -> AsyncIterator[dict[str, Any]]:
        """Go through a list, page by page."""
        after: str | None = None
        while True:
            page: dict[str, Any] = await self.call("GET", path, params={**(params or {}), "after": after})
            entries: list[dict[str, Any]] = page.get(name) or []
            for entry in entries:
                yield entry
            after = page.get("next")
            if not after:
                return

    async def version(self) -> dict[str, Any]:
        """Return the version of the server."""
        return dict(await self.call("GET", "/v1/version"))

    async def capabilities(self) -> dict[str, Any]:
        """Return what the server offers, and what it enforces."""
        return dict(await self.call("GET", "/v1/capabilities"))

    async def policy(self) -> dict[str, Any]:
        """Return the policy of the caller."""
        return dict(await self.call("GET", "/v1/policy"))


@asynccontextmanager
async def lent(client: AsyncClient | None, *, keep: bool = False) -> AsyncGenerator[AsyncClient, None]:
    """Give the block the client, or one of its own. That is closed at the end, with keep only after a failure."""
    used, done = client or AsyncClient(), False
    try:
        yield used
        done = keep
    finally:
        if client is None and not done:
            await undo(used.aclose, UNDO_PATIENCE)

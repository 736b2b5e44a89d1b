# Made from _async by scripts/sync.py: change that.
"""Sandboxes."""

from __future__ import annotations

import builtins
import json
import math
import os
import uuid
import warnings
from collections.abc import Iterator, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from .. import _frames
from ..errors import CodeFailed, CodeTimedOut, CommandFailed, CommandTimedOut, InvalidError, NotFoundError, SandpitError, StateError, StreamLost
from ..models import CodeContext, CodeRun, Data, Info, LogEntry, Output, ProcessInfo, Result, view
from ._io import beside, pause, undo
from .client import UNDO_PATIENCE, Client, lent, segment
from .files import Files
from .process import Process, Stream

Env = Mapping[str, str]

Command = str | Sequence[str | os.PathLike[str]]
"""A script of the shell, or a program with its arguments."""


def _spec(**fields: Any) -> dict[str, Any]:
    """Return the fields of a request that are given."""
    return {name: _plain(name, value) for name, value in fields.items() if value is not None}


def _plain(name: str, value: Any) -> Any:
    """Return a value as one of JSON."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidError(f"{name} is {value}: pass a finite number, or None")
    return os.fspath(value) if isinstance(value, os.PathLike) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _all(texts: str | Iterable[str]) -> builtins.list[str]:
    """Return one text or several as a list."""
    return [texts] if isinstance(texts, str) else [*texts]


def _command(cmd: Command, **fields: Any) -> dict[str, Any]:
    if isinstance(cmd, str):
        return {"script": cmd, **_spec(**fields)}
    if isinstance(cmd, (bytes, bytearray, memoryview)) or not isinstance(cmd, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"a command is a script as a text, or a sequence of a program and its arguments; not a {type(cmd).__name__}")
    argv = [os.fspath(a) if isinstance(a, os.PathLike) else a for a in cmd]
    for at, argument in enumerate(argv):
        if not isinstance(argument, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"argument {at} of the command is {argument!r}: pass a text or a path")
    return {"argv": argv, **_spec(**fields)}


class Sandbox:
    """A sandbox. As a context manager it is removed at the end; otherwise it stays until its lifetime ends.

    with Sandbox.create() as sb:
        print((sb.run("echo hello")).stdout)
    """

    def __init__(self, client: Client, info: Info, *, owns_client: bool = False) -> None:
        self._client = client
        self._owns = owns_client
        self._removed = False
        self._path = f"/v1/sandboxes/{segment(info.id)}"
        self.info = info
        """As it was when this value was made. See refresh."""
        self.files = Files(client, f"{self._path}/files")

    @classmethod
    def create(
        cls,
        image: str | None = None,
        *,
        name: str | None = None,
        env: Env | None = None,
        user: str | None = None,
        workdir: str | None = None,
        labels: Mapping[str, str] | None = None,
        memory: int | None = None,
        cpus: float | None = None,
        disk: int | None = None,
        life: float | None = None,
        idle: float | None = None,
        on_expiry: str | None = None,
        egress: str | Sequence[str] | Mapping[str, Any] | None = None,
        secrets: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
        spec: Mapping[str, Any] | None = None,
        client: Client | None = None,
    ) -> Sandbox:
        """Create a sandbox, and start it.

        ``memory`` and ``disk`` are in bytes, ``life`` and ``idle`` in seconds. ``egress`` has the destinations that may be
        reached, such as ``pypi.org:443``, or the egress of the API; nothing is reached by default. ``secrets`` names stored
        secrets. ``spec`` has further fields of the API's Spec. Without a client, one is made and closed with the sandbox.
        """
        if isinstance(secrets, (str, Mapping)):
            secrets = [secrets]
        rules = egress if egress is None or isinstance(egress, Mapping) else {"allow": _all(egress)}
        body = _spec(
            image=image,
            name=name,
            env=env,
            user=user,
            workdir=workdir,
            labels=labels,
            limits=_spec(memory=memory, cpus=cpus, disk=disk, life=life) or None,
            idle=idle,
            on_expiry=on_expiry,
            egress=rules,
            secrets=None if secrets is None else [{"name": s} if isinstance(s, str) else dict(s) for s in secrets],
        )
        body.update(spec or {})
        with lent(client, keep=True) as used:

            def remove(made: Any) -> None:
                used.call("DELETE", f"/v1/sandboxes/{segment(made['id'])}", timeout=UNDO_PATIENCE)

            info = Info.read(used.call("POST", "/v1/sandboxes", json=body, once=True, cancelled=remove))
            return cls(used, info, owns_client=client is None)

    @classmethod
    def get(cls, name: str, *, client: Client | None = None) -> Sandbox:
        """Return a sandbox that exists, by its name or id."""
        with lent(client, keep=True) as used:
            return cls(used, Info.read(used.call("GET", f"/v1/sandboxes/{segment(name)}")), owns_client=client is None)

    @classmethod
    def list(
        cls,
        *,
        labels: Mapping[str, str] | str | Sequence[str] | None = None,
        states: str | Sequence[str] | None = None,
        client: Client | None = None,
    ) -> builtins.list[Info]:
        """Return the sandboxes of the caller that have all these labels and one of these states, the oldest first."""
        chosen = [f"{k}={v}" for k, v in labels.items()] if isinstance(labels, Mapping) else _all(labels or [])
        with lent(client) as used:
            params = {"label": chosen or None, "state": _all(states or []) or None}
            return [Info.read(s) for s in used.pages("/v1/sandboxes", "sandboxes", params)]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *trace: object) -> None:
        if isinstance(error, Exception):
            try:
                self.remove()
            except SandpitError as err:  # which must not hide the other one
                warnings.warn(f"removing sandbox {self.id}: {err}", ResourceWarning, stacklevel=2)
        elif error is not None:
            undo(self.remove, UNDO_PATIENCE)
        else:
            self.remove()

    @property
    def id(self) -> str:
        """The id, which never changes."""
        return self.info.id

    def refresh(self) -> Info:
        """Ask the server how it is."""
        self.info = Info.read(self._client.call("GET", self._path))
        return self.info

    def remove(self) -> None:
        """Remove it with everything in it. It is not an error if it is gone already."""
        if self._removed:
            return
        try:
            self._client.call("DELETE", self._path)
            self._removed = True
        except NotFoundError:
            self._removed = True
        finally:
            if self._owns:
                self._client.close(f"sandbox {self.id} was removed" if self._removed else "the client was closed")

    def close(self) -> None:
        """Close the connections. The sandbox stays."""
        if self._owns:
            self._client.close()

    def run(
        self,
        cmd: Command,
        *,
        input: Data | None = None,
        env: Env | None = None,
        dir: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        on_output: Callable[[Output], object] | None = None,
    ) -> Result:
        """Run a command and wait for it. A text is a script of the shell, a sequence a program with its arguments.

        After ``timeout`` seconds the command is killed with all that it has started: the result has ``timed_out``, exit code
        124, and the output so far. With ``check`` a failure raises CommandFailed, a timeout CommandTimedOut, which is a
        TimeoutError. ``on_output`` gets the output as it comes. If the call is cancelled, the command is killed.

        ``input`` has any size; what the command does not read is dropped. A result with ``lost_bytes`` is not ok.
        """
        # By its tag the process is found if the call is cancelled before the server has answered.
        tag = f"run-{uuid.uuid4().hex}"
        data = view(input or b"")
        body = _command(
            cmd,
            env=env,
            dir=dir,
            user=user,
            timeout=timeout,
            tag=tag,
            stdin=bool(data) or None,
        )
        headers = {"Accept": _frames.STREAM_TYPE, "Idempotency-Key": str(uuid.uuid4())}
        unwritten: builtins.list[Exception] = []

        def write() -> None:
            assert stream.process is not None
            process = Process(self._client, self._path, stream.process)
            try:
                process.stdin.write(data, close=True)
            except Exception as err:
                if isinstance(err, (StateError, NotFoundError)) and err.code != "outcome_unknown":
                    return  # it reads no more
                unwritten.append(err)
                undo(process.kill, UNDO_PATIENCE)

        out, err, lost = bytearray(), bytearray(), 0
        with beside() as begin:
            stream = Stream(
                lambda: self._client.stream("POST", f"{self._path}/exec", headers=headers, json=body),
                (lambda _: begin(write)) if data else None,
            )
            try:
                for output in stream.outputs():
                    if output.stream == "lost":
                        lost += output.lost_bytes
                    else:
                        (out if output.stream == "stdout" else err).extend(output.data)
                    if on_output is not None:
                        on_output(output)
            except BaseException as failed:
                if stream.process is not None and stream.result is None:
                    undo(Process(self._client, self._path, stream.process).kill, UNDO_PATIENCE)
                elif not isinstance(failed, Exception) and stream.process is None:

                    def find_and_kill() -> None:
                        for delay in (0.0, 0.1, 0.3, 0.6):  # the request may still be on its way
                            pause(delay)
                            for p in self.processes():
                                if p.tag == tag:
                                    Process(self._client, self._path, p).kill()
                                    return

                    undo(find_and_kill, UNDO_PATIENCE)
                raise
        if unwritten:
            raise unwritten[0]
        if stream.result is None:
            raise StreamLost("the stream of the command has ended without its result")
        result = Result.read(stream.result, bytes(out), bytes(err), lost)
        if check and not result.ok:
            what = cmd if isinstance(cmd, str) else " ".join(map(str, cmd))
            if result.lost_bytes and not result.exit_code:
                raise CommandFailed(f"{what!r} has succeeded, but {result.lost_bytes} bytes of its output were lost", result)
            if result.timed_out:
                raise CommandTimedOut(f"{what!r} was killed after {timeout} seconds", result)
            raise CommandFailed(f"{what!r} failed with exit code {result.exit_code}: {result.stderr.strip()[-500:]}", result)
        return result

    def start(
        self,
        cmd: Command,
        *,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
        env: Env | None = None,
        dir: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        tag: str | None = None,
    ) -> Process:
        """Start a process in the background. ``terminal`` gives it one, of so many rows and columns."""
        body = _command(
            cmd,
            env=env,
            dir=dir,
            user=user,
            timeout=timeout,
            tag=tag,
            stdin=stdin or None,
            terminal=None if terminal is None else {"rows": terminal[0], "cols": terminal[1]},
        )

        def kill(made: Any) -> None:
            Process(self._client, self._path, ProcessInfo.read(made)).kill()

        made = self._client.call("POST", f"{self._path}/processes", json=body, once=True, cancelled=kill)
        return Process(self._client, self._path, ProcessInfo.read(made))

    def process(self, id: str) -> Process:
        """Return a process that was started earlier, by its id or pid."""
        return Process(self._client, self._path, ProcessInfo.read(self._client.call("GET", f"{self._path}/processes/{segment(id)}")))

    def processes(self) -> builtins.list[ProcessInfo]:
        """Return the processes, also those that have ended lately, the oldest first."""
        return [ProcessInfo.read(p) for p in self._client.pages(f"{self._path}/processes", "processes")]

    def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        context: CodeContext | str | None = None,
        env: Env | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> CodeRun:
        """Run code that keeps its state, in a context, or in the default one of the language (Python).

        With ``check`` a failure raises CodeFailed, a timeout CodeTimedOut, which is a TimeoutError.
        """
        body = _spec(
            code=code,
            language=language,
            context=context.id if isinstance(context, CodeContext) else context,
            env=env,
            timeout=timeout,
        )
        # Without a timeout the code may take as long as it likes.
        result = CodeRun.read(self._client.call("POST", f"{self._path}/code", json=body, timeout=86400.0))
        if check and result.timed_out:
            raise CodeTimedOut(f"the code was ended after {timeout} seconds", result)
        if check and not result.ok:
            why = f"{result.error.name}: {result.error.value}" if result.error else result.interpreter_end or f"exit code {result.exit_code}"
            raise CodeFailed(f"the code failed: {why}", result)
        return result

    def create_context(self, *, language: str | None = None, id: str | None = None, dir: str | None = None, env: Env | None = None) -> CodeContext:
        """Create an interpreter beside the default one, with a state of its own."""
        body = _spec(language=language, id=id, dir=dir, env=env)
        return CodeContext.read(self._client.call("POST", f"{self._path}/contexts", json=body, once=True))

    def contexts(self) -> builtins.list[CodeContext]:
        """Return the contexts, the oldest first."""
        return [CodeContext.read(c) for c in self._client.pages(f"{self._path}/contexts", "contexts")]

    def remove_context(self, context: CodeContext | str) -> None:
        """Remove a context, and kill what runs in it."""
        self._client.call("DELETE", self._context(context))

    def restart_context(self, context: CodeContext | str) -> None:
        """Kill the interpreter of a context. The next run starts a new one, without the state."""
        self._client.call("POST", f"{self._context(context)}/restart", once=True)

    def interrupt_context(self, context: CodeContext | str) -> None:
        """Interrupt the present run of a context, as ^C does. The state is kept. Without a run it does nothing."""
        self._client.call("POST", f"{self._context(context)}/interrupt", once=True)

    def _context(self, context: CodeContext | str) -> str:
        return f"{self._path}/contexts/{segment(context.id if isinstance(context, CodeContext) else context)}"

    def pause(self) -> Info:
        """Freeze all processes. A request to the sandbox, or resume, makes them go on."""
        return self._change("pause")

    def resume(self) -> Info:
        """Make a paused sandbox go on."""
        return self._change("resume")

    def stop(self, *, grace: float | None = None) -> Info:
        """End all processes, and keep the files. grace is how many seconds they have after SIGTERM."""
        return self._change("stop", _spec(grace=grace))

    def restart(self) -> Info:
        """Start a sandbox that was stopped."""
        return self._change("start")

    def _change(self, what: str, body: Mapping[str, Any] | None = None) -> Info:
        self.info = Info.read(self._client.call("POST", f"{self._path}/{what}", json=body, once=True))
        return self.info

    def extend(self, life: float) -> Info:
        """Set how many seconds it lives from now on."""
        self.info = Info.read(self._client.call("PUT", f"{self._path}/lifetime", json=_spec(life=life)))
        return self.info

    def metrics(self) -> dict[str, Any]:
        """Return what it uses now."""
        return dict(self._client.call("GET", f"{self._path}/metrics"))

    def ports(self) -> builtins.list[int]:
        """Return the ports on which programs listen."""
        return [int(p["port"]) for p in self._client.pages(f"{self._path}/ports", "ports")]

    def preview(self, port: int, *, expires: float | None = None) -> str:
        """Return a URL that opens a port in a browser without a key. Whoever has it gets in, until it expires."""
        told = self._client.call("POST", f"{self._path}/ports/{port}/previews", json=_spec(expires=expires))
        return str(told.get("url") or "")

    def logs(self, *, tail: int | None = None, process: str | None = None) -> Iterator[LogEntry]:
        """Yield the entries of the log so far, or the last ones."""
        params = {"tail": tail, "process": process}
        with self._client.stream("GET", f"{self._path}/logs", params=params, headers={"Accept": "application/x-ndjson"}) as answer:
            for line in answer.iter_lines():
                entry: dict[str, Any] = json.loads(line) if line else {}
                if "seq" in entry:
                    yield LogEntry.read(entry)

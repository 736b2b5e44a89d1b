"""What goes wrong on the way, on a real server."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandpit import AsyncClient, AsyncProcess, AsyncSandbox, Client, ClosedError, Sandbox, UnavailableError
from sandpit._async import client as patience

from .conftest import Restartable, Server


class Cutter:
    """Passes connections on to a server, and cuts each of the first ones after some bytes of answers."""

    def __init__(self, target: str, path: pathlib.Path, cuts: list[int]) -> None:
        self.target, self.path, self.cuts = target, path, cuts
        self.cut = 0

    async def __aenter__(self) -> Cutter:
        self.server = await asyncio.start_unix_server(self.serve, str(self.path))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self.target)

        async def up() -> None:
            while data := await reader.read(65536):
                up_writer.write(data)
                await up_writer.drain()
            up_writer.close()

        task = asyncio.create_task(up())
        passed = 0
        try:
            while data := await up_reader.read(65536):
                passed += len(data)
                if self.cuts and passed > self.cuts[0]:
                    self.cuts.pop(0)
                    self.cut += 1
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        task.cancel()
        writer.close()
        up_writer.close()


async def test_a_lost_connection_loses_no_output(running: Server, tmp_path: pathlib.Path) -> None:
    async with Cutter(f"{running.home}/data/server.sock", tmp_path / "s", []) as cutter, AsyncClient(f"unix://{cutter.path}") as client:
        async with await AsyncSandbox.create(client=client) as sb:
            cutter.cuts += [30_000, 200_000, 10]
            got = await sb.run("for i in $(seq 60000); do echo $i; done; exit 5")
            assert got.stdout.split() == [str(i) for i in range(1, 60001)]
            assert (got.exit_code, got.lost_bytes) == (5, 0)
            assert cutter.cut == 3
            p = await sb.start("for i in $(seq 60000); do echo $i; done")
            cutter.cuts += [30_000, 100_000]
            assert b"".join([o.data async for o in p.output()]).split() == [b"%d" % i for i in range(1, 60001)]
            assert cutter.cut == 5
            data = os.urandom(900_000)  # a server keeps the latest MiB
            cutter.cuts += [200_000, 10, 500_000]
            got = await sb.run("cat; exit 5", input=data)
            assert (got.stdout_bytes == data, got.exit_code, got.lost_bytes) == (True, 5, 0)
            assert cutter.cut == 8


GATED = "while [ ! -e /tmp/go ]; do sleep 0.02; done"


async def test_a_restart_of_the_server_is_waited_for(restartable: Restartable) -> None:
    async with AsyncClient(restartable.address) as client, await AsyncSandbox.create(client=client) as sb:
        begun = [asyncio.Event(), asyncio.Event()]
        p = await sb.start(f"echo a; {GATED}; echo b; exit 4")

        async def follow() -> bytes:
            seen = b""
            async for o in p.output():
                seen += o.data
                begun[0].set()
            return seen

        tasks = [
            asyncio.create_task(p.wait()),
            asyncio.create_task(follow()),
            asyncio.create_task(sb.run(f"echo c; {GATED}; cat; exit 5", input="in", on_output=lambda _: begun[1].set())),
        ]
        for event in begun:
            await asyncio.wait_for(event.wait(), 60)
        restartable.stop()
        await asyncio.sleep(1)
        restartable.start()
        await sb.files.write("/tmp/go", "")
        ended, followed, ran = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert (ended.exit_code, followed, ran.stdout, ran.exit_code) == (4, b"a\nb\n", "c\nin", 5)


def test_a_restart_of_the_server_is_waited_for_by_threads(restartable: Restartable) -> None:
    with Client(restartable.address) as client, Sandbox.create(client=client) as sb, ThreadPoolExecutor() as pool:
        begun = [threading.Event(), threading.Event()]
        p = sb.start(f"echo a; {GATED}; echo b; exit 4")

        def follow() -> bytes:
            seen = b""
            for o in p.output():
                seen += o.data
                begun[0].set()
            return seen

        ended, followed = pool.submit(p.wait), pool.submit(follow)
        ran = pool.submit(sb.run, f"echo c; {GATED}; cat; exit 5", input="in", on_output=lambda _: begun[1].set())
        assert all(event.wait(60) for event in begun)
        restartable.stop()
        time.sleep(1)
        restartable.start()
        sb.files.write("/tmp/go", "")
        assert (ended.result(60).exit_code, followed.result(60)) == (4, b"a\nb\n")
        assert (ran.result(60).stdout, ran.result(60).exit_code) == ("c\nin", 5)


async def test_a_server_that_does_not_come_back_is_an_error(restartable: Restartable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "RECONNECT", 0.5)
    async with AsyncClient(restartable.address) as client:
        sb = await AsyncSandbox.create(client=client)
        p = await sb.start("sleep 1000")
        restartable.stop()
        with pytest.raises(UnavailableError, match="can't be reached"):
            await p.wait()
        with pytest.raises(UnavailableError, match="can't be reached"):
            await p.wait(timeout=0)
        restartable.start()
        await sb.remove()


async def test_a_connection_that_is_always_lost_is_an_error(running: Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "RECONNECT", 0.5)
    async with Cutter(f"{running.home}/data/server.sock", tmp_path / "s", []) as cutter, AsyncClient(f"unix://{cutter.path}") as client:
        async with await AsyncSandbox.create(client=client) as sb:
            p = await sb.start("sleep 1000")
            cutter.cuts += [0] * 20
            with pytest.raises(UnavailableError):
                async for _ in p.output():
                    pass
            cutter.cuts.clear()


async def test_a_cancelled_command_is_killed(running: Server) -> None:
    async with AsyncClient(f"unix://{running.home}/data/server.sock") as client:
        async with await AsyncSandbox.create(client=client) as sb:
            begun = asyncio.Event()
            task = asyncio.create_task(sb.run("echo begun; sleep 1000", on_output=lambda _: begun.set()))
            await asyncio.wait_for(begun.wait(), 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (only,) = await sb.processes()
            assert (await (await sb.process(only.id)).wait(timeout=60)).signal == 9


async def test_a_removed_sandbox_ends_its_streams(running: Server) -> None:
    async with AsyncClient(f"unix://{running.home}/data/server.sock") as client:
        sb = await AsyncSandbox.create(client=client)
        p = await sb.start("echo begun; sleep 1000")
        seen = asyncio.Event()

        async def follow() -> None:
            async for _ in p.output():
                seen.set()

        task = asyncio.create_task(follow())
        await asyncio.wait_for(seen.wait(), 60)
        await sb.remove()
        try:
            await asyncio.wait_for(task, 60)
        except Exception as err:
            assert "removed" in str(err) or "closed" in str(err)
        with pytest.raises(LookupError):
            await sb.run("true")


def test_a_server_that_is_not_there_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConnectionError, match=r"can't be reached|No such file"):
        Client("http://127.0.0.1:1", "sp_x").version()
    with pytest.raises(ConnectionError, match="No such file"):
        Client(f"unix://{tmp_path}/none")


async def test_a_call_that_is_cancelled_early_leaves_nothing(running: Server) -> None:
    async with AsyncClient(f"unix://{running.home}/data/server.sock") as client:
        before = {i.id for i in await AsyncSandbox.list(client=client)}
        for k in range(12):
            task = asyncio.create_task(AsyncSandbox.create(client=client))
            await asyncio.sleep(0.001 * k)
            task.cancel()
            try:
                await (await task).remove()
            except asyncio.CancelledError:
                pass
        assert {i.id for i in await AsyncSandbox.list(client=client)} <= before
        async with await AsyncSandbox.create(client=client) as sb:
            for start in (sb.run, sb.start):
                for k in range(12):
                    task = asyncio.create_task(start("sleep 1000"))
                    await asyncio.sleep(0.0005 * k)
                    task.cancel()
                    try:
                        started = await task
                        if isinstance(started, AsyncProcess):
                            await started.kill()
                    except asyncio.CancelledError:
                        pass
            for p in await sb.processes():
                await (await sb.process(p.id)).wait(timeout=60)


async def test_what_a_program_raises_is_not_hidden(running: Server) -> None:
    with pytest.raises(ValueError, match="mine"), pytest.warns(ResourceWarning, match="the client was closed"):
        async with AsyncClient(f"unix://{running.home}/data/server.sock") as client:
            async with await AsyncSandbox.create(life=60, client=client) as sb:
                await client.aclose()
                raise ValueError("mine")
    async with await AsyncSandbox.create(client=AsyncClient(f"unix://{running.home}/data/server.sock")) as sb:
        await sb.remove()
        await sb.remove()
        with pytest.raises(LookupError):
            await sb.run("true")
    await client.aclose()


def test_a_run_of_code_is_interrupted(running: Server) -> None:
    with Client(f"unix://{running.home}/data/server.sock") as client, Sandbox.create(client=client) as sb, ThreadPoolExecutor() as pool:
        context = sb.create_context()
        run = pool.submit(sb.run_code, "x = 1\nwhile True: pass", context=context, timeout=60)
        while not [c for c in sb.contexts() if c.id == context.id and c.busy] and not run.done():
            time.sleep(0.01)
        while not run.done():  # it may not have begun when it counts as busy
            sb.interrupt_context(context)
            time.sleep(0.1)
        error = run.result().error
        assert error is not None and error.name == "KeyboardInterrupt"


def test_a_removed_sandbox_says_so(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDPIT_SERVER", f"unix://{running.home}/data/server.sock")
    with Sandbox.create() as sb:
        sb.remove()
        with pytest.raises(ClosedError, match=f"sandbox {sb.id} was removed"):
            sb.run("true")
    with Sandbox.create() as sb:
        other = Sandbox.get(sb.id)
        other.close()
        with pytest.raises(ClosedError, match="the client was closed"):
            other.run("true")


def test_a_wrong_scheme_is_named(running: Server, restartable: Restartable) -> None:
    with Client(running.address.replace("https", "http"), running.key) as client, pytest.raises(UnavailableError, match=r"speaks TLS only\nhint: write https"):
        client.version()
    with Client(restartable.tcp, "sp_key") as client, pytest.raises(UnavailableError, match=r"does not speak TLS\nhint: write http:"):
        client.version()


def test_long_data_is_sent_in_pieces(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    real = socket.socket.send

    def send(self: socket.socket, data: bytes) -> int:
        sent.append(len(data))
        return real(self, data)

    data = os.urandom(20_000_000)
    with Client(f"unix://{running.home}/data/server.sock") as client, Sandbox.create(client=client) as sb:
        monkeypatch.setattr(socket.socket, "send", send, raising=False)
        assert sb.files.write("/tmp/a", data) == len(data)
        assert max(sent) <= 2 << 20 and sum(sent) > len(data)
        sent.clear()
        assert sb.run("cmp - /tmp/a", input=data).ok
        assert max(sent) <= 2 << 20 and sum(sent) > len(data)
        assert sb.files.write("/tmp/b", "") == 0 and sb.files.write("/tmp/b", bytearray(b"x")) == 1


async def test_names_that_are_not_utf8_can_be_used(running: Server) -> None:
    async with AsyncClient(f"unix://{running.home}/data/server.sock") as client:
        async with await AsyncSandbox.create(client=client) as sb:
            await sb.run("mkdir /tmp/d; printf x >/tmp/d/$(printf 'a\\377b')", check=True)
            (only,) = await sb.files.list("/tmp/d")
            assert only.name == "a\udcffb"
            assert await sb.files.read(f"/tmp/d/{only.name}") == b"x"


def test_the_examples_of_the_readme_run(running: Server) -> None:
    text = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        env = {**os.environ, "SANDPIT_SERVER": f"unix://{running.home}/data/server.sock"}
        done = subprocess.run([sys.executable, "-c", example], env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "hello" in done.stdout

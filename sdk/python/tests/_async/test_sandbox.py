"""Sandboxes as programs use them, on a real server."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from sandpit import AsyncClient, AsyncSandbox, CodeFailed, CommandFailed, CommandTimedOut, InvalidError, NotFoundError, SandpitError

from ..conftest import Server


async def test_a_command_has_its_output_and_exit_code(server: Server) -> None:
    async with AsyncClient(**server.options()) as client, await AsyncSandbox.create(client=client) as sb:
        got = await sb.run("echo out; echo err >&2; exit 3")
        assert (got.stdout, got.stderr, got.exit_code, got.ok) == ("out\n", "err\n", 3, False)
        got = await sb.run(["printf", "%s", "-n 'a b'\n"])
        assert got.stdout == "-n 'a b'\n"
        with pytest.raises(CommandFailed, match="exit code 3") as failed:
            await sb.run("echo why >&2; exit 3", check=True)
        assert failed.value.result.stderr == "why\n"


async def test_input_and_output_may_be_any_bytes(server: Server) -> None:
    async with AsyncClient(**server.options()) as client, await AsyncSandbox.create(client=client) as sb:
        data = bytes(range(256)) * 5000
        assert (await sb.run(["cat"], input=data)).stdout_bytes == data
        assert (await sb.run("cat; echo -n é", input="ü")).stdout == "üé"


async def test_input_of_any_size_is_written_while_output_is_read(server: Server) -> None:
    async with AsyncClient(**server.options()) as client, await AsyncSandbox.create(client=client) as sb:
        data = os.urandom(20_000_000)
        got = await sb.run(["cat"], input=memoryview(data))
        assert got.stdout_bytes == data and got.ok
        assert (await sb.run("head -c 3000000 /dev/zero; cat", input=data)).stdout_bytes == bytes(3_000_000) + data
        # What a command does not read is dropped.
        assert (await sb.run("head -c 5; exit 3", input=data)).stdout_bytes == data[:5]
        assert (await sb.run("exec <&-; echo closed", input=data)).stdout == "closed\n"
        assert (await sb.run("sleep 1000", input=data, timeout=0.5)).timed_out
        with pytest.raises(ValueError, match="mine"):
            await sb.run(["cat"], input=data, on_output=_fail)
        for p in await sb.processes():
            await (await sb.process(p.id)).wait(timeout=60)


def _fail(_: object) -> None:
    raise ValueError("mine")


async def test_a_timeout_kills_and_keeps_the_output(server: Server) -> None:
    async with AsyncClient(**server.options()) as client, await AsyncSandbox.create(client=client) as sb:
        got = await sb.run("echo begun; sleep 1000", timeout=0.5)
        assert got.timed_out and got.exit_code == 124 and got.stdout == "begun\n"
        with pytest.raises(CommandTimedOut):
            await sb.run("sleep 1000", timeout=0.1, check=True)
        with pytest.raises(TimeoutError):
            await sb.run("sleep 1000", timeout=0.1, check=True)
        for p in await sb.processes():
            await (await sb.process(p.id)).wait(timeout=60)


async def test_output_comes_while_the_command_runs(server: Server) -> None:
    async with AsyncClient(**server.options()) as client, await AsyncSandbox.create(client=client) as sb:
        seen: list[str] = []
        await sb.run("echo a; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo b", on_output=lambda o: seen.append(o.text) or None, timeout=0.5)
        assert seen == ["a\n"]


async def test_a_background_process_is_written_to_and_waited_for(server: Server) -> None:
    async with AsyncClient(**server.options()) as client, await AsyncSandbox.create(client=client) as sb:
        p = await sb.start(["cat"], stdin=True)
        with pytest.raises(TimeoutError, match="it goes on"):
            await p.wait(timeout=0.2)
        await p.stdin.write("one\n")
        await (await sb.process(p.id)).stdin.write(b"two\n")
        await p.stdin.aclose()
        assert b"".join([o.data async for o in p.output()]) == b"one\ntwo\n"
        assert (await p.wait()).exit_code == 0
        p = await sb.start("trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done")
        async for _ in p.output():
            break
        await p.interrupt()
        assert (await p.wait(timeout=60)).exit_code == 7
        p = await sb.start("sleep 1000")
        await p.kill()
        await p.kill()
        assert (await p.wait()).signal == 9


async def test_files_are_written_read_and_listed(server: Server) -> None:
    async with AsyncClient(**server.options()) as client, await AsyncSandbox.create(client=client) as sb:
        data = bytes(range(256)) * 20000
        assert await sb.files.write("/tmp/a/b c\n.bin", data, mode=0o640) == len(data)
        assert await sb.files.read("/tmp/a/b c\n.bin") == data
        assert b"".join([part async for part in sb.files.stream("/tmp/a/b c\n.bin")]) == data
        info = await sb.files.stat("/tmp/a/b c\n.bin")
        assert (info.size, info.mode, info.type) == (len(data), 0o640, "file")
        assert [f.name for f in await sb.files.list("/tmp/a")] == ["b c\n.bin"]
        await sb.files.symlink("/tmp/a/link", "nowhere")
        assert await sb.files.exists("/tmp/a/link") and not await sb.files.exists("/tmp/a/nowhere")
        assert await sb.files.readlink("/tmp/a/link") == "nowhere"
        with pytest.raises(FileNotFoundError) as missing:
            await sb.files.read_text("/tmp/none")
        assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, "/tmp/none")
        with pytest.raises(IsADirectoryError):
            await sb.files.read("/tmp/a")
        with pytest.raises(PermissionError):
            await sb.files.write("/etc/passwd", b"", user="nobody")
        await sb.files.remove("/tmp/a", recursive=True)
        assert not await sb.files.exists("/tmp/a")


async def test_code_keeps_its_state(server: Server) -> None:
    async with AsyncClient(**server.options()) as client, await AsyncSandbox.create(client=client) as sb:
        assert (await sb.run_code("x = 20\nprint('hi')\nx + 1")).text == "21"
        assert (await sb.run_code("x * 2")).text == "40"
        failed = await sb.run_code("1/0")
        assert failed.error is not None and failed.error.name == "ZeroDivisionError" and not failed.ok
        with pytest.raises(CodeFailed, match="ZeroDivisionError") as raised:
            await sb.run_code("print('before'); 1/0", check=True)
        assert raised.value.result.stdout == "before\n"
        with pytest.raises(TimeoutError):
            await sb.run_code("import time\ntime.sleep(1000)", timeout=0.3, check=True)
        failed = await sb.run_code("exit 3", language="bash")
        assert (failed.exit_code, failed.error, failed.ok) == (3, None, False)
        ended = await sb.run_code("import os; os._exit(4)")
        assert ended.interpreter_end and not ended.ok
        other = await sb.create_context(language="python", dir="/tmp")
        assert (await sb.run_code("x", context=other)).error is not None
        assert (await sb.run_code("import time\ntime.sleep(1000)", context=other, timeout=0.3)).timed_out
        await sb.run_code("y = 1", context=other)
        await sb.interrupt_context(other)
        assert (await sb.run_code("y", context=other)).text == "1"
        await sb.restart_context(other.id)
        assert (await sb.run_code("y", context=other)).error is not None
        await sb.remove_context(other)
        assert other.id not in [c.id for c in await sb.contexts()]


async def test_a_sandbox_is_found_listed_and_removed(server: Server) -> None:
    async with AsyncClient(**server.options()) as client:
        async with await AsyncSandbox.create(labels={"team": "sdk"}, memory=128 << 20, client=client) as sb:
            again = await AsyncSandbox.get(sb.id, client=client)
            assert again.id == sb.id and again.info.labels == {"team": "sdk"}
            assert sb.id in [i.id for i in await AsyncSandbox.list(labels={"team": "sdk"}, states=["running"], client=client)]
            assert sb.id not in [i.id for i in await AsyncSandbox.list(labels={"team": "other"}, client=client)]
        with pytest.raises(NotFoundError):
            await AsyncSandbox.get(sb.id, client=client)
        await sb.remove()


async def test_one_name_may_stand_for_several(server: Server) -> None:
    async with AsyncClient(**server.options()) as client:
        with pytest.raises(SandpitError, match="no-such-secret"):
            await AsyncSandbox.create(secrets="no-such-secret", client=client)
        async with await AsyncSandbox.create(labels={"a": "b"}, egress="example.com", client=client) as sb:
            assert [i.id for i in await AsyncSandbox.list(labels="a=b", states="running", client=client)] == [sb.id]


async def test_odd_arguments_are_refused(server: Server) -> None:
    async with AsyncClient(**server.options()) as client, await AsyncSandbox.create(client=client) as sb:
        assert (await sb.run([pathlib.PurePosixPath("/bin/echo"), "a"], dir=pathlib.PurePosixPath("/tmp"))).stdout == "a\n"
        for cmd in (None, b"true", 3, ["echo", 3], ["echo", None]):
            with pytest.raises(InvalidError, match="command"):
                await sb.run(cmd)
        for seconds in (float("nan"), float("inf")):
            with pytest.raises(InvalidError, match="timeout is"):
                await sb.run("true", timeout=seconds)
        with pytest.raises(InvalidError, match="life is nan"):
            await sb.extend(float("nan"))
        with pytest.raises(InvalidError, match="timeout is nan"):
            await (await sb.start("true")).wait(timeout=float("nan"))
        with pytest.raises(InvalidError, match="not of the right type"):
            await sb.run("true", env={"A": b"b"})


async def test_an_error_says_what_to_do(server: Server) -> None:
    async with AsyncClient(**server.options()) as client:
        with pytest.raises(ValueError) as refused:
            await AsyncSandbox.create(name="not a name", client=client)
        assert isinstance(refused.value, SandpitError) and refused.value.code == "invalid" and refused.value.request_id

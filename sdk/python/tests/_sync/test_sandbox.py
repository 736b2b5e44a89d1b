# Made from _async by scripts/sync.py: change that.
"""Sandboxes as programs use them, on a real server."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from sandpit import Client, Sandbox, CodeFailed, CommandFailed, CommandTimedOut, InvalidError, NotFoundError, SandpitError

from ..conftest import Server


def test_a_command_has_its_output_and_exit_code(server: Server) -> None:
    with Client(**server.options()) as client, Sandbox.create(client=client) as sb:
        got = sb.run("echo out; echo err >&2; exit 3")
        assert (got.stdout, got.stderr, got.exit_code, got.ok) == ("out\n", "err\n", 3, False)
        got = sb.run(["printf", "%s", "-n 'a b'\n"])
        assert got.stdout == "-n 'a b'\n"
        with pytest.raises(CommandFailed, match="exit code 3") as failed:
            sb.run("echo why >&2; exit 3", check=True)
        assert failed.value.result.stderr == "why\n"


def test_input_and_output_may_be_any_bytes(server: Server) -> None:
    with Client(**server.options()) as client, Sandbox.create(client=client) as sb:
        data = bytes(range(256)) * 5000
        assert (sb.run(["cat"], input=data)).stdout_bytes == data
        assert (sb.run("cat; echo -n é", input="ü")).stdout == "üé"


def test_input_of_any_size_is_written_while_output_is_read(server: Server) -> None:
    with Client(**server.options()) as client, Sandbox.create(client=client) as sb:
        data = os.urandom(20_000_000)
        got = sb.run(["cat"], input=memoryview(data))
        assert got.stdout_bytes == data and got.ok
        assert (sb.run("head -c 3000000 /dev/zero; cat", input=data)).stdout_bytes == bytes(3_000_000) + data
        # What a command does not read is dropped.
        assert (sb.run("head -c 5; exit 3", input=data)).stdout_bytes == data[:5]
        assert (sb.run("exec <&-; echo closed", input=data)).stdout == "closed\n"
        assert (sb.run("sleep 1000", input=data, timeout=0.5)).timed_out
        with pytest.raises(ValueError, match="mine"):
            sb.run(["cat"], input=data, on_output=_fail)
        for p in sb.processes():
            (sb.process(p.id)).wait(timeout=60)


def _fail(_: object) -> None:
    raise ValueError("mine")


def test_a_timeout_kills_and_keeps_the_output(server: Server) -> None:
    with Client(**server.options()) as client, Sandbox.create(client=client) as sb:
        got = sb.run("echo begun; sleep 1000", timeout=0.5)
        assert got.timed_out and got.exit_code == 124 and got.stdout == "begun\n"
        with pytest.raises(CommandTimedOut):
            sb.run("sleep 1000", timeout=0.1, check=True)
        with pytest.raises(TimeoutError):
            sb.run("sleep 1000", timeout=0.1, check=True)
        for p in sb.processes():
            (sb.process(p.id)).wait(timeout=60)


def test_output_comes_while_the_command_runs(server: Server) -> None:
    with Client(**server.options()) as client, Sandbox.create(client=client) as sb:
        seen: list[str] = []
        sb.run("echo a; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo b", on_output=lambda o: seen.append(o.text) or None, timeout=0.5)
        assert seen == ["a\n"]


def test_a_background_process_is_written_to_and_waited_for(server: Server) -> None:
    with Client(**server.options()) as client, Sandbox.create(client=client) as sb:
        p = sb.start(["cat"], stdin=True)
        with pytest.raises(TimeoutError, match="it goes on"):
            p.wait(timeout=0.2)
        p.stdin.write("one\n")
        (sb.process(p.id)).stdin.write(b"two\n")
        p.stdin.close()
        assert b"".join([o.data for o in p.output()]) == b"one\ntwo\n"
        assert (p.wait()).exit_code == 0
        p = sb.start("trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done")
        for _ in p.output():
            break
        p.interrupt()
        assert (p.wait(timeout=60)).exit_code == 7
        p = sb.start("sleep 1000")
        p.kill()
        p.kill()
        assert (p.wait()).signal == 9


def test_files_are_written_read_and_listed(server: Server) -> None:
    with Client(**server.options()) as client, Sandbox.create(client=client) as sb:
        data = bytes(range(256)) * 20000
        assert sb.files.write("/tmp/a/b c\n.bin", data, mode=0o640) == len(data)
        assert sb.files.read("/tmp/a/b c\n.bin") == data
        assert b"".join([part for part in sb.files.stream("/tmp/a/b c\n.bin")]) == data
        info = sb.files.stat("/tmp/a/b c\n.bin")
        assert (info.size, info.mode, info.type) == (len(data), 0o640, "file")
        assert [f.name for f in sb.files.list("/tmp/a")] == ["b c\n.bin"]
        sb.files.symlink("/tmp/a/link", "nowhere")
        assert sb.files.exists("/tmp/a/link") and not sb.files.exists("/tmp/a/nowhere")
        assert sb.files.readlink("/tmp/a/link") == "nowhere"
        with pytest.raises(FileNotFoundError) as missing:
            sb.files.read_text("/tmp/none")
        assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, "/tmp/none")
        with pytest.raises(IsADirectoryError):
            sb.files.read("/tmp/a")
        with pytest.raises(PermissionError):
            sb.files.write("/etc/passwd", b"", user="nobody")
        sb.files.remove("/tmp/a", recursive=True)
        assert not sb.files.exists("/tmp/a")


def test_code_keeps_its_state(server: Server) -> None:
    with Client(**server.options()) as client, Sandbox.create(client=client) as sb:
        assert (sb.run_code("x = 20\nprint('hi')\nx + 1")).text == "21"
        assert (sb.run_code("x * 2")).text == "40"
        failed = sb.run_code("1/0")
        assert failed.error is not None and failed.error.name == "ZeroDivisionError" and not failed.ok
        with pytest.raises(CodeFailed, match="ZeroDivisionError") as raised:
            sb.run_code("print('before'); 1/0", check=True)
        assert raised.value.result.stdout == "before\n"
        with pytest.raises(TimeoutError):
            sb.run_code("import time\ntime.sleep(1000)", timeout=0.3, check=True)
        failed = sb.run_code("exit 3", language="bash")
        assert (failed.exit_code, failed.error, failed.ok) == (3, None, False)
        ended = sb.run_code("import os; os._exit(4)")
        assert ended.interpreter_end and not ended.ok
        other = sb.create_context(language="python", dir="/tmp")
        assert (sb.run_code("x", context=other)).error is not None
        assert (sb.run_code("import time\ntime.sleep(1000)", context=other, timeout=0.3)).timed_out
        sb.run_code("y = 1", context=other)
        sb.interrupt_context(other)
        assert (sb.run_code("y", context=other)).text == "1"
        sb.restart_context(other.id)
        assert (sb.run_code("y", context=other)).error is not None
        sb.remove_context(other)
        assert other.id not in [c.id for c in sb.contexts()]


def test_a_sandbox_is_found_listed_and_removed(server: Server) -> None:
    with Client(**server.options()) as client:
        with Sandbox.create(labels={"team": "sdk"}, memory=128 << 20, client=client) as sb:
            again = Sandbox.get(sb.id, client=client)
            assert again.id == sb.id and again.info.labels == {"team": "sdk"}
            assert sb.id in [i.id for i in Sandbox.list(labels={"team": "sdk"}, states=["running"], client=client)]
            assert sb.id not in [i.id for i in Sandbox.list(labels={"team": "other"}, client=client)]
        with pytest.raises(NotFoundError):
            Sandbox.get(sb.id, client=client)
        sb.remove()


def test_one_name_may_stand_for_several(server: Server) -> None:
    with Client(**server.options()) as client:
        with pytest.raises(SandpitError, match="no-such-secret"):
            Sandbox.create(secrets="no-such-secret", client=client)
        with Sandbox.create(labels={"a": "b"}, egress="example.com", client=client) as sb:
            assert [i.id for i in Sandbox.list(labels="a=b", states="running", client=client)] == [sb.id]


def test_odd_arguments_are_refused(server: Server) -> None:
    with Client(**server.options()) as client, Sandbox.create(client=client) as sb:
        assert (sb.run([pathlib.PurePosixPath("/bin/echo"), "a"], dir=pathlib.PurePosixPath("/tmp"))).stdout == "a\n"
        for cmd in (None, b"true", 3, ["echo", 3], ["echo", None]):
            with pytest.raises(InvalidError, match="command"):
                sb.run(cmd)
        for seconds in (float("nan"), float("inf")):
            with pytest.raises(InvalidError, match="timeout is"):
                sb.run("true", timeout=seconds)
        with pytest.raises(InvalidError, match="life is nan"):
            sb.extend(float("nan"))
        with pytest.raises(InvalidError, match="timeout is nan"):
            (sb.start("true")).wait(timeout=float("nan"))
        with pytest.raises(InvalidError, match="not of the right type"):
            sb.run("true", env={"A": b"b"})


def test_an_error_says_what_to_do(server: Server) -> None:
    with Client(**server.options()) as client:
        with pytest.raises(ValueError) as refused:
            Sandbox.create(name="not a name", client=client)
        assert isinstance(refused.value, SandpitError) and refused.value.code == "invalid" and refused.value.request_id
